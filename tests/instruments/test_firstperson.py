"""Third-person phrases become first-person sentences where the rule is sure, and nothing where it is not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instruments.firstperson import occupation_fact, preference_fact
from instruments.personas import FIRST_PERSON


@pytest.mark.parametrize(
    ("phrase", "fact"),
    [
        pytest.param("Collects sea glass", "I collect sea glass.", id="verb"),
        pytest.param("Has a soft spot for brass bands.", "I have a soft spot for brass bands.", id="has"),
        pytest.param("Is wary of lifts", "I'm wary of lifts.", id="is"),
        pytest.param("Carries a compass", "I carry a compass.", id="ies"),
        pytest.param("Watches moths", "I watch moths.", id="ches"),
        pytest.param("Focuses on one thing", "I focus on one thing.", id="uses"),
        pytest.param("Chooses the slow train", "I choose the slow train.", id="oses"),
        pytest.param("Goes to bed early", "I go to bed early.", id="goes"),
        pytest.param("Rarely eats before noon", "I rarely eat before noon.", id="adverb"),
        pytest.param("Does not own a watch", "I don't own a watch.", id="negated"),
        pytest.param("Can't stand jazz", "I can't stand jazz.", id="modal"),
        pytest.param("Keeps his tools in order", "I keep my tools in order.", id="possessive"),
        pytest.param("Treats herself to cake", "I treat myself to cake.", id="reflexive"),
        pytest.param("Passionate about tram maps", "I'm passionate about tram maps.", id="quality"),
        pytest.param("A lover of fog", "I'm a lover of fog.", id="noun phrase"),
        pytest.param("The user likes rain", "I like rain.", id="subject"),
        pytest.param("They like rain", "I like rain.", id="plural subject"),
        pytest.param("Prefers rail, avoiding planes", "I prefer rail, avoiding planes.", id="participle"),
    ],
)
def test_a_sure_phrase_is_turned(phrase: str, fact: str) -> None:
    """Verb, pronouns and full stop are the speaker's own."""
    assert preference_fact(phrase) == fact
    assert FIRST_PERSON.search(fact)


@pytest.mark.parametrize(
    "phrase",
    [
        pytest.param("Enjoys hiking and collects stones", id="second verb"),
        pytest.param("Likes coffee and drinks", id="verb or noun"),
        pytest.param("Comics about space", id="no verb"),
        pytest.param("Respects people who share their food", id="someone else's"),
        pytest.param("Values her mother and her advice", id="whose"),
        pytest.param("Likes the way she sings", id="she"),
        pytest.param("Enjoys", id="no object"),
        pytest.param("", id="empty"),
        pytest.param("Likes \u202ehidden text", id="control character"),
        pytest.param("Likes " + "very " * 60 + "long phrases", id="too long"),
    ],
)
def test_a_doubtful_phrase_is_left_alone(phrase: str) -> None:
    """A wrong sentence would be a wrong fact."""
    assert preference_fact(phrase) is None


@settings(deadline=None)
@given(st.text())
def test_any_text_is_a_printable_sentence_or_nothing(text: str) -> None:
    """No text raises, and what comes out can be shown and stored."""
    for fact in (preference_fact(text), occupation_fact(text)):
        assert fact is None or (fact.isprintable() and fact.endswith("."))


@pytest.mark.parametrize(
    ("occupation", "fact"),
    [
        ("Lighthouse keeper", "I'm a lighthouse keeper."),
        ("engineer", "I'm an engineer."),
        ("University lecturer", "I'm a university lecturer."),
        ("Honest Broker", "I'm an honest broker."),
        ("MRI technician", "I'm an MRI technician."),
        ("UX Designer", "I'm a UX designer."),
        ("French Teacher", "I'm a French teacher."),
        ("a night nurse", "I'm a night nurse."),
        ("Nurse, who works nights", "I'm a nurse."),
        ("Software Engineer (backend)", "I'm a software engineer."),
        ("Retired", "I'm retired."),
        ("Retired teacher at a school", "I'm a retired teacher."),
        ("Assistant to her father", None),
        ("x" * 80, None),
        (" ", None),
    ],
)
def test_an_occupation_is_told_as_one_would(occupation: str, fact: str | None) -> None:
    """With the right article and without what follows the occupation itself."""
    assert occupation_fact(occupation) == fact
