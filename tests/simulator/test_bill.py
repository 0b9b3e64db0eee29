"""The bill: complete, append-only, readable while it is written."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.simulator.bill import Bill, content_hash, read_bill, summarize
from engine.errors import UserError
from engine.request import Usage

USAGE = Usage(input_tokens=100, output_tokens=20)


def charge(bill: Bill, content: str = "aa" * 16, nano: int = 5, **more: str) -> int:
    fields = {"provider": "openai", "model": "m", "stage": "task"} | more
    return bill.charge(at=1.0, content=content, usage=USAGE, nano=nano, **fields)  # type: ignore[arg-type]


def test_a_charge_is_in_the_file_before_anything_else_happens(tmp_path: Path) -> None:
    """Nobody has closed or flushed anything."""
    bill = Bill(tmp_path)
    charge(bill)
    assert [line.n for line in read_bill(bill.path)] == [1]
    bill.close()


def test_a_reopened_bill_goes_on_counting(tmp_path: Path) -> None:
    """Numbers go on, contents stay known."""
    first = Bill(tmp_path)
    charge(first)
    first.close()
    second = Bill(tmp_path)
    assert second.times("aa" * 16) == 1
    assert charge(second) == 2
    second.close()


@pytest.mark.parametrize("tail", [b'{"kind":"char', b'{"kind":"charge"}x', b"\x00\x00"])
def test_a_torn_last_line_is_cut_off(tail: bytes, tmp_path: Path) -> None:
    """The simulator was killed while it wrote; what stood before is whole."""
    bill = Bill(tmp_path)
    charge(bill)
    bill.close()
    with bill.path.open("ab") as file:
        file.write(tail)
    again = Bill(tmp_path)
    charge(again)
    again.close()
    assert [line.n for line in read_bill(bill.path)] == [1, 2]


def test_the_summary_tells_what_was_paid_twice_and_what_was_lost(tmp_path: Path) -> None:
    """Repeated counts beyond the first; undelivered counts both kinds."""
    bill = Bill(tmp_path)
    charge(bill, nano=5)
    charge(bill, nano=7, outcome="dropped")
    bill.lost(charge(bill, content="bb" * 16, nano=11, stage="judge"))
    summary = bill.summary()
    bill.close()
    assert (summary.total.calls, summary.total.nano, summary.distinct) == (3, 23, 2)
    assert (summary.repeated.calls, summary.repeated.nano) == (1, 7)
    assert (summary.undelivered.calls, summary.undelivered.nano) == (2, 18)
    assert {stage: total.calls for stage, total in summary.stages.items()} == {"task": 2, "judge": 1}


def test_a_missing_bill_is_an_empty_one(tmp_path: Path) -> None:
    """Nothing was charged."""
    assert summarize(tmp_path / "none.jsonl").total.calls == 0


def test_a_file_that_is_no_bill_is_named_with_its_line(tmp_path: Path) -> None:
    """Somebody else's file is not continued and not touched."""
    (tmp_path / "bill.jsonl").write_text('{"kind":"receipt"}\n')
    with pytest.raises(UserError, match=r"this is no bill: .*bill\.jsonl, line 1.*another folder"):
        Bill(tmp_path)


@given(st.permutations(["model", "messages", "temperature", "max_tokens"]))
def test_the_order_of_fields_does_not_matter(order: list[str]) -> None:
    """The same question has the same hash however it is written down."""
    body: dict[str, object] = {
        "model": "m",
        "messages": [{"role": "user", "content": "é"}],
        "temperature": 0.7,
        "max_tokens": 9,
    }
    assert content_hash("m", {name: body[name] for name in order}) == content_hash("m", body)


@pytest.mark.parametrize("field", ["stream", "stream_options", "metadata", "user", "service_tier", "request_id"])
def test_how_an_answer_travels_does_not_matter(field: str) -> None:
    """Transport fields are no part of what is asked."""
    assert content_hash("m", {"messages": [], field: "x"}) == content_hash("m", {"messages": []})


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(("n", {"messages": ["a"]}), id="model"),
        pytest.param(("m", {"messages": ["b"]}), id="messages"),
        pytest.param(("m", {"messages": ["a"], "temperature": 0}), id="sampling"),
        pytest.param(("m", {"messages": ["a"], "system": "s"}), id="system"),
    ],
)
def test_another_question_has_another_hash(other: tuple[str, dict[str, object]]) -> None:
    """Whatever is asked differently."""
    assert content_hash(*other) != content_hash("m", {"messages": ["a"]})
