"""What goes wrong with simulated batches by itself: as likely as it was said, the same in every run, orders first."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.simulator.batchquirks import COUNTED, MOMENTS, MOST, SWITCHED, Oddities
from bench.simulator.batchrules import BatchSettings, Chances, Quirks


def sure(*names: str) -> Chances:
    """Return chances under which these always happen."""
    return Chances(**dict.fromkeys(names, 1.0))


def test_nothing_goes_wrong_by_default() -> None:
    """Every default is the harmless one."""
    odd = Oddities(Chances(), 0)
    assert (odd.next("openai"), odd.lose("openai", "lose_create"), odd.stumbles("openai")) == (Quirks(), "", False)


@given(seed=st.integers(), chances=st.dictionaries(st.sampled_from([*COUNTED, *SWITCHED]), st.floats(0, 1)))
def test_the_same_seed_meets_the_same_trouble(seed: int, chances: dict[str, float]) -> None:
    """Provider by provider, whatever the others do in between."""
    first, second = Oddities(Chances(**chances), seed), Oddities(Chances(**chances), seed)
    alone = [first.next("openai") for _ in range(5)]
    between = [(second.next("openai"), second.next("gemini"))[0] for _ in range(5)]
    assert alone == between


@pytest.mark.parametrize("name", [*COUNTED, *SWITCHED, "invalid"])
def test_what_is_certain_happens_and_nothing_else(name: str) -> None:
    """One to three looks, downloads or rows; or a switch."""
    odd = Oddities(sure(name), 0)
    found = [msgspec.structs.asdict(odd.next("openai")) for _ in range(30)]
    ordinary = msgspec.structs.asdict(Quirks())
    assert {field for each in found for field, value in each.items() if value != ordinary[field]} == {name}
    values = {each[name] for each in found}
    assert values == (
        set(range(1, MOST + 1)) if name in COUNTED else {True} if name in SWITCHED else {"invalid_request"}
    )


def test_chances_are_kept() -> None:
    """A quarter of a thousand, give or take four standard deviations."""
    odd = Oddities(Chances(stuck=0.25, lose_create=0.25), 7)
    stuck = sum(odd.next("openai").stuck for _ in range(1_000))
    lost = Counter(odd.lose("openai", "lose_create") for _ in range(1_000))
    assert 195 < stuck < 305
    assert 695 < lost.pop("") < 805
    assert set(lost) == set(MOMENTS)
    assert min(lost.values()) > 45


def test_dashscope_loses_no_row_by_chance() -> None:
    """Its documents promise that what is not there was not charged."""
    odd = Oddities(sure("lose_rows", "repeat_rows"), 0)
    assert (odd.next("dashscope").lose_rows, odd.next("dashscope").repeat_rows > 0) == (0, True)
    assert odd.next("openai").lose_rows > 0


def test_an_order_goes_before_chance() -> None:
    """Until it is withdrawn; a lost call once."""
    odd = Oddities(sure("stuck", "lose_create", "bad_gateways"), 0)
    odd.order([Quirks(provider="openai", fresh_404=1, lose_create="after")])
    assert (odd.next("openai").stuck, odd.next("openai").fresh_404, odd.next("gemini").stuck) == (False, 1, True)
    assert odd.lose("openai", "lose_create") == "after"
    odd.order([])
    assert odd.next("openai").stuck


@pytest.mark.parametrize("chance", [-0.1, 1.5])
def test_a_chance_is_a_share(chance: float) -> None:
    """What is none is told when the settings are read."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"chances": {"stuck": chance}}, BatchSettings)
