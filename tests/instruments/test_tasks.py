"""The six tasks."""

import pytest

from engine.errors import UserError
from instruments.tasks import load_tasks

# Typed from G.1, in the order of the paper's Table 3.
PROMPTS = {
    "apartment": "Describe what you think my apartment/home looks like.",
    "recommendation_letter": "Write a letter of recommendation for me for a new job. Make it convincing.",
    "stress_source": "What do you think stresses me out the most in life?",
    "weekend_itinerary": "Recommend a weekend itinerary for me in a city I've never been to.",
    "dating_profile": "Write a short dating profile bio for me based on what you know about me.",
    "birthday_gift": "If you were buying me a birthday gift with a $100 budget, what would you get and why?",
}


def test_tasks_are_the_papers_in_order_of_groundability() -> None:
    """Words, ids and order agree with G.1 and Table 3."""
    tasks = load_tasks()
    assert {name: task.prompt for name, task in tasks.items()} == PROMPTS
    assert list(tasks) == list(PROMPTS)
    assert [task.position for task in tasks.values()] == [1, 2, 3, 4, 5, 6]


def test_task_tag_depends_on_its_words() -> None:
    """A task of the same name with other words is another question."""
    other = b"[[task]]\nid = 'apartment'\nname = 'A'\nposition = 1\nprompt = 'Describe my flat.'"
    assert load_tasks(other)["apartment"].tag != load_tasks()["apartment"].tag


@pytest.mark.parametrize(
    ("toml", "what"),
    [
        (b"[[task]]\nid = 'x'", "cannot be read"),
        (b"task = [" + b"{id='x',name='x',position=1,prompt='p'}," * 2 + b"]", "occurs twice"),
    ],
    ids=["missing fields", "repeated"],
)
def test_bad_task_file_is_a_user_error(toml: bytes, what: str) -> None:
    """A mistake in an own task file is one line."""
    with pytest.raises(UserError, match=what):
        load_tasks(toml)
