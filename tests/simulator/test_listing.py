"""Lists of models, page by page."""

import pytest

from bench.simulator.listing import page

NAMES = ["a", "b", "c"]


def test_anthropic_pages_end_with_the_last_model() -> None:
    """`after_id` goes on behind a name; `has_more` says whether anything follows."""
    first = page("anthropic", NAMES, {"limit": "2"})
    second = page("anthropic", NAMES, {"limit": "2", "after_id": first["last_id"]})
    assert ([model["id"] for model in first["data"]], first["has_more"]) == (["a", "b"], True)
    assert ([model["id"] for model in second["data"]], second["has_more"]) == (["c"], False)


def test_gemini_pages_carry_a_token_until_the_last() -> None:
    """Names come with their `models/`."""
    first = page("gemini", NAMES, {"pageSize": "2"})
    second = page("gemini", NAMES, {"pageSize": "2", "pageToken": first["nextPageToken"]})
    assert [model["name"] for model in first["models"] + second["models"]] == ["models/a", "models/b", "models/c"]
    assert "nextPageToken" not in second


@pytest.mark.parametrize("style", ["openai", "anthropic", "gemini"])
def test_an_account_without_models_lists_none(style: str) -> None:
    """An empty page in every style."""
    found = page(style, [], {})
    assert found.get("data", found.get("models")) == []
