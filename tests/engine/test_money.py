"""Money: exact integers, rounded up once."""

from decimal import Decimal
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.money import FREE, NANO, PER_MILLION, Price, cost_nano, dollars, nano_from_usd, usd, worst_cost_nano
from engine.request import Usage

tokens = st.integers(0, 10_000_000)
prices = st.integers(0, 200 * NANO)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    """Usages whose cached and written tokens are parts of the input."""
    plain, cached, written = draw(tokens), draw(tokens), draw(tokens)
    return Usage(
        input_tokens=plain + cached + written,
        cached_tokens=cached,
        cache_write_tokens=written,
        output_tokens=draw(tokens),
    )


@given(usages(), prices, prices, st.none() | prices, st.none() | prices)
def test_a_cost_is_the_exact_sum_rounded_up_once(
    usage: Usage, into: int, out: int, cached: int | None, written: int | None
) -> None:
    """Against fractions: no part of a call is rounded on its own."""
    plain = usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens
    exact = Fraction(
        plain * into
        + usage.cached_tokens * (into if cached is None else cached)
        + usage.cache_write_tokens * (into if written is None else written)
        + usage.output_tokens * out,
        PER_MILLION,
    )
    price = Price(input=into, output=out, cached=cached, cache_write=written)
    assert cost_nano(price, usage) == ceil(exact)


@given(usages(), prices, prices, st.none() | prices, st.none() | prices)
def test_no_usage_within_its_bounds_costs_more_than_the_worst_case(
    usage: Usage, into: int, out: int, cached: int | None, written: int | None
) -> None:
    """The reservation covers every split of the input into plain, cached and written tokens."""
    price = Price(input=into, output=out, cached=cached, cache_write=written)
    assert cost_nano(price, usage) <= worst_cost_nano(price, usage.input_tokens, usage.output_tokens)


@pytest.mark.parametrize(
    ("usage", "nano"),
    [
        pytest.param(Usage(input_tokens=1_000_000), 2 * NANO, id="input"),
        pytest.param(Usage(output_tokens=1_000_000), 10 * NANO, id="output"),
        pytest.param(Usage(input_tokens=1_000_000, cached_tokens=1_000_000), NANO // 5, id="all cached"),
        pytest.param(Usage(input_tokens=1_000_000, cache_write_tokens=1_000_000), 5 * NANO // 2, id="all written"),
        pytest.param(Usage(output_tokens=1_000_000, reasoning_tokens=900_000), 10 * NANO, id="reasoning is output"),
        pytest.param(Usage(input_tokens=1), 2_000, id="a single token"),
        pytest.param(Usage(), 0, id="nothing"),
    ],
)
def test_each_kind_of_token_has_its_price(usage: Usage, nano: int) -> None:
    """Two dollars in, ten out, cache reads at a tenth, cache writes at a quarter more, a million tokens each."""
    price = Price(input=2 * NANO, output=10 * NANO, cached=NANO // 5, cache_write=5 * NANO // 2)
    assert cost_nano(price, usage) == nano


def test_cached_tokens_cost_the_input_price_where_none_is_given() -> None:
    """No discount is assumed."""
    price = Price(input=3 * NANO, output=0)
    assert cost_nano(price, Usage(input_tokens=10, cached_tokens=10)) == cost_nano(price, Usage(input_tokens=10))


def test_a_fraction_of_a_nano_dollar_is_rounded_up() -> None:
    """One token at one nano-dollar a million still costs something."""
    assert cost_nano(Price(input=1, output=0), Usage(input_tokens=1)) == 1


def test_a_reply_that_claims_more_cached_tokens_than_input_never_earns_money() -> None:
    """An adapter's mistake cannot make a cost negative."""
    price = Price(input=2 * NANO, output=0, cached=0)
    assert cost_nano(price, Usage(input_tokens=5, cached_tokens=50)) == 0


def test_a_reply_that_claims_negative_tokens_never_earns_money() -> None:
    """Usage comes from the wire like everything else."""
    assert cost_nano(Price(input=1, output=2), Usage(input_tokens=-5, output_tokens=-7)) == 0


@given(usages())
def test_a_free_model_costs_nothing(usage: Usage) -> None:
    """Local models have a price of zero, not no price."""
    assert cost_nano(FREE, usage) == 0


@given(st.integers(0, 10**24))
def test_dollars_survive_the_way_through_text(nano: int) -> None:
    """Decimal text of at most nine decimals is exact in both directions."""
    assert nano_from_usd(str(Decimal(nano).scaleb(-9))) == nano
    assert nano_from_usd(usd(nano).removeprefix("$")) == nano


@pytest.mark.parametrize(
    ("amount", "nano"),
    [("0", 0), ("2.50", 2_500_000_000), (3, 3_000_000_000), (Decimal("0.000000001"), 1), ("1e-9", 1), ("1E3", 10**12)],
)
def test_an_amount_in_dollars_becomes_nano_dollars(amount: str | int | Decimal, nano: int) -> None:
    """Text, whole numbers and decimals are taken alike."""
    assert nano_from_usd(amount) == nano


@pytest.mark.parametrize(
    "text",
    ["", "ten", "-1", "nan", "inf", "-inf", "0.0000000001", "1e-10", "1.0000000000000000000000000000001", "1e999999"],
)
def test_what_is_no_exact_amount_is_refused(text: str) -> None:
    """Never rounded, never guessed; the message quotes the text."""
    with pytest.raises(ValueError, match=f"'{text}'"):
        nano_from_usd(text)


@pytest.mark.parametrize(
    ("nano", "text"),
    [
        (0, "$0.00"),
        (1_250_000_000, "$1.25"),
        (75_000, "$0.000075"),
        (1, "$0.000000001"),
        (100 * NANO, "$100.00"),
        (-1, "-$0.000000001"),
        (-1_500_000_000, "-$1.50"),
    ],
)
def test_money_is_shown_in_plain_figures(nano: int, text: str) -> None:
    """At least two decimals, as many as it takes, no exponent."""
    assert usd(nano) == text


@pytest.mark.parametrize(
    ("nano", "shown"),
    [
        (0, "$0.00"), (387_214_393, "$0.3872"), (8_457_203_641, "$8.4572"), (25 * NANO, "$25.00"),
        (1_234_567_890_123, "$1,234.5679"), (75_000, "$0.000075"), (1, "$0.000000001"), (1_234_567, "$0.00123"),
        (10_000_000, "$0.01"), (9_999_999, "$0.01"), (-387_214_393, "-$0.3872"), (500_000_000, "$0.50"),
    ],
)  # fmt: skip
def test_money_for_people_has_four_digits_or_three_that_count(nano: int, shown: str) -> None:
    """Nine decimals cannot be read."""
    assert dollars(nano) == shown


@given(st.integers(-(10**15), 10**15))
def test_money_for_people_is_within_its_last_digit_and_never_hides_a_sum(nano: int) -> None:
    """What is not nothing is not shown as nothing."""
    shown = dollars(nano)
    found = nano_from_usd(shown.lstrip("-$").replace(",", ""))
    assert abs(found - abs(nano)) <= (50_000 if abs(nano) >= NANO // 100 else abs(nano) / 199)
    assert (found == 0) == (nano == 0)
