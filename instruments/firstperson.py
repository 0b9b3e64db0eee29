"""Puts third-person phrases into the first person, by rule and only where the rule is sure.

`Collects sea glass` becomes `I collect sea glass.`, `Keeps her tools in order` becomes `I keep my tools in order.` A
phrase that begins with no verb of the list, whose pronouns may mean someone else, or that has a second verb is left
alone: None. Knows English phrases only, no data set and no persona.
"""

import re
from typing import Final

MOST_CHARACTERS: Final = 240
_FEWEST_WORDS: Final = 2

# Verbs that statements about tastes and habits begin with; the third person is made from them by rule.
_VERBS: Final = frozenset(
    """accept adapt admire adopt advocate aim appreciate approach arrange ask aspire assign associate attend avoid bake
    balance barbecue begin believe belong bet bike blog borrow box breed brew bring browse build buy calculate
    camp care carry celebrate challenge champion chase chat check cherish choose clean climb coach code collect
    combine commit compete compose connect consider contribute cook craft crave create critique cultivate curate
    cycle dance daydream debate decide decline decorate dedicate delight demand deny depend design despise
    detest develop devote disagree discourage discover discuss dislike distrust ditch dive do dodge donate
    doodle downplay draw dread dream dress drink drive drum earn eat embrace embroider emphasize encourage
    engage enjoy entertain escape excel exercise experience experiment explore express fancy favor favour fear
    feel find finish fish fix fly focus follow forage forgive forgo frequent gamble garden gather get give go
    greet grill groom grow hang harvest hate have help hike hold hope host hum hunt ignore imagine improvise
    incorporate indulge insist invent invest invite iron jog join journal juggle jump keep knit know lack laugh
    lead lean learn leave lift like limit listen live loathe long look love maintain make manage master meditate
    meet memorize mend mentor minimize mix mourn nap need neglect nurture observe obsess offer oppose opt order
    organize overlook own pack paint participate patch pay perfect perform photograph pick plan plant play
    ponder practice practise praise pray prefer prepare preserve prioritize promote protest pursue push question
    quilt raise read recite recycle reflect refuse rehearse reject relax relish rely remain rent repair
    repurpose rescue resent resist respect rest restore reuse revere revisit rewatch ride roam roast run save
    savor savour schedule scorn sculpt seek select send serve sew share shoot shop show shun sing sip sit skate
    sketch ski skip sleep snack socialize solve sort spar speak spend splurge sponsor sport stand stargaze start
    stay steer stick stream stress strive stroll struggle strum study subscribe support surf swap swim take talk
    taste teach tell tend thank think thrive throw tinker tolerate toss track train translate travel treasure
    treat trek trust try tune turn unplug unwind upcycle use value venture view visit volunteer vote wait wake
    walk wander want wash watch wear weave weigh welcome whistle whittle wish wonder work worry write yearn""".split()  # noqa: SIM905 - words, not code
)
_ODD: Final = {"is": "am", "has": "have", "does": "do", "goes": "go"}
_FIXED: Final = frozenset({"can", "can't", "cannot", "could", "couldn't", "would", "will", "won't", "must", "used"})
_ADVERBS: Final = frozenset(
    {"always", "never", "often", "seldom", "sometimes", "still", "also", "even", "just", "mostly"}
)
_NOT_ADVERBS: Final = frozenset({"family", "only", "early", "daily", "likely", "friendly", "lonely", "holy"})
_SUBJECT: Final = re.compile(r"(?:the\s+)?(?:user|person|persona|individual|he|she)\s+", re.IGNORECASE)
_PLURAL_SUBJECT: Final = re.compile(r"they\s+", re.IGNORECASE)
_NEGATED: Final = re.compile(r"(?:does\s+not|doesn['\u2019]t)\s+(\w+)\b", re.IGNORECASE)
_SELF: Final = re.compile(r"\b(?:himself|herself|themselves|themself|oneself)\b", re.IGNORECASE)
_POSSESSIVE: Final = re.compile(r"\b(?:his|her)\b(?=\s+\w)", re.IGNORECASE)
_OTHERS: Final = re.compile(
    r"\b(?:he|she|him|his|hers|her|they|them|their|theirs|it['\u2019]s|one['\u2019]s|who|whose|"
    r"i|me|my|mine|we|us|our|you|your)\b",
    re.IGNORECASE,
)
_LINKED: Final = re.compile(r"(?:[,;]|\band|\bbut|\bor|\byet|\bwhile|\bthen)\s+(?:\w+ly\s+)?(\w+)\b", re.IGNORECASE)
_OF_A_KIND: Final = re.compile(r"(?:an?|the)\s+\w", re.IGNORECASE)
_QUALITIES: Final = frozenset(
    {
        "interested", "uninterested", "disinterested", "indifferent", "passionate", "fond", "fascinated", "keen",
        "obsessed", "skilled", "devoted", "committed", "dedicated", "enthusiastic", "proud", "drawn", "known",
    }
)  # fmt: skip

_TAIL: Final = re.compile(
    r"\s*(?:[,;(/.]|\s[-\u2013\u2014]\s|\b(?:who|that|which|with|at|for|speciali[sz]ing)\b).*", re.DOTALL
)
_PLAIN_STATE: Final = frozenset({"retired", "unemployed", "self-employed", "freelance", "semi-retired"})
_AN_ANYWAY: Final = ("hour", "honest", "heir", "honor", "honour")
_A_ANYWAY: Final = ("uni", "use", "usu", "euro", "one", "ubiq", "ute")
_SPOKEN_WITH_A_VOWEL: Final = frozenset("AEFHILMNORSX")
_PROPER: Final = frozenset(
    """African American Arabic Asian British Buddhist Catholic Chinese Christian Dutch English European French German
    Greek Hebrew Hindi Hindu Indian Indigenous Islamic Italian Japanese Jewish Korean Latin Muslim Olympic Polish
    Portuguese Russian Spanish Swedish Turkish""".split()  # noqa: SIM905 - words, not code
)
_MOST_OCCUPATION: Final = 60


def preference_fact(phrase: str) -> str | None:
    """Return a phrase about someone as a sentence that they say themselves; None where that is not certain."""
    text = " ".join(phrase.split()).rstrip(".").strip()
    if not text.isprintable() or len(text) > MOST_CHARACTERS or len(text.split()) < _FEWEST_WORDS:
        return None
    said = _said(text)
    return f"{said[0].upper()}{said[1:]}." if said else None


def occupation_fact(occupation: str) -> str | None:
    """Return an occupation as the sentence by which one tells it; None if it is too long to be said so."""
    head = _TAIL.sub("", " ".join(occupation.split())).strip()
    if not head or len(head) > _MOST_OCCUPATION or not head.isprintable() or _OTHERS.search(head):
        return None
    plain = " ".join(_lowered(word) for word in head.split())
    if plain in _PLAIN_STATE:
        return f"I'm {plain}."
    bare = re.sub(r"^(?:an?|the)\s+", "", plain)
    return f"I'm {_article(bare)} {bare}."


def _said(text: str) -> str | None:
    """Return the sentence without its full stop."""
    if (match := _PLURAL_SUBJECT.match(text)) is not None:
        return _with_verb(text[match.end() :], plural=True)
    if (match := _SUBJECT.match(text)) is not None:
        text = text[match.end() :]
    first = text.split(maxsplit=1)[0].casefold()
    if first in _QUALITIES:
        return _finished(f"I'm {first}", text[len(first) :])
    if _OF_A_KIND.match(text):
        return _finished("I'm", f" {text[0].lower()}{text[1:]}")
    return _with_verb(text, plural=False)


def _with_verb(text: str, *, plural: bool) -> str | None:
    """Return a phrase that begins with a verb, or with an adverb before it."""
    before: list[str] = []
    words = text.split()
    while len(words) > 1 and _is_adverb(words[0].casefold()):
        before.append(words.pop(0).casefold())
    rest = " ".join(words)
    if (match := _NEGATED.match(rest)) is not None:
        verb, rest = f"don't {match[1].casefold()}", rest[match.end() :]
    else:
        first = words[0].casefold() if words else ""
        verb = (first if first in _VERBS or first == "are" else "") if plural else first_person(first)
        verb, rest = "am" if verb == "are" else verb, rest[len(first) :]
    if not verb:
        return None
    opening = " ".join(["I", *before, verb])
    return _finished("I'm" if opening == "I am" else opening, rest)


def first_person(verb: str) -> str:
    """Return a verb of the third person in the first, or an empty text for a word that is none of the list."""
    if verb in _FIXED:
        return verb
    return _ODD.get(verb) or _THIRD.get(verb, "")


def _finished(opening: str, rest: str) -> str | None:
    """Return opening and rest with their pronouns turned; None where one may mean someone else or a verb follows."""
    if any(first_person(match[1].casefold()) for match in _LINKED.finditer(rest)):
        return None
    if len(_POSSESSIVE.findall(rest)) + len(_SELF.findall(rest)) > 1:
        return None
    turned = _POSSESSIVE.sub("\0", _SELF.sub("\1", rest))
    if _OTHERS.search(turned) or not rest.strip():
        return None
    return opening + turned.replace("\0", "my").replace("\1", "myself")


def _third(verb: str) -> str:
    if verb in ("do", "go"):
        return verb + "es"
    if verb.endswith(("s", "sh", "ch", "x", "zz")):
        return verb + "es"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + "s"


def _is_adverb(word: str) -> bool:
    return word in _ADVERBS or (word.endswith("ly") and word not in _NOT_ADVERBS and word not in _THIRD)


def _lowered(word: str) -> str:
    """Return a capitalised word in small letters, proper names and abbreviations left as they are."""
    return word if word in _PROPER or not word[1:].islower() else word.casefold()


def _article(text: str) -> str:
    first = text.split(maxsplit=1)[0]
    if first.isupper() and len(first) > 1:
        return "an" if first[0] in _SPOKEN_WITH_A_VOWEL else "a"
    low = text.casefold()
    if low.startswith(_AN_ANYWAY):
        return "an"
    return "an" if low[0] in "aeiou" and not low.startswith(_A_ANYWAY) else "a"


_THIRD: Final = {_third(verb): verb for verb in _VERBS if verb not in ("have", "do", "go")}
