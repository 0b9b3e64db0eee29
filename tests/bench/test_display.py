"""The live view and the plain lines: batches, sums over all runs, and any width."""

import time
from collections.abc import Sequence
from io import StringIO

import pytest
from rich.console import Console

from bench.display import BATCHES_SHOWN, Display, plain_line
from engine.events import BatchView, Snapshot, StageCount
from engine.lane import LaneSnapshot
from engine.ledger import Account, Cap, Scope


def snapshot(batches: Sequence[BatchView] = (), **fields: object) -> Snapshot:
    """A run with these batches."""
    plain = {
        "stages": {"task": StageCount(read=1)}, "lanes": (), "accounts": {}, "errors": {}, "calls": 1,
        "input_tokens": 1, "output_tokens": 1, "spent_nano": 1, "started": 0.0, "now": 60.0, "planning": False,
        "draining": False, "refused": "", "batches": tuple(batches),
    }  # fmt: skip
    return Snapshot(**{**plain, **fields})  # type: ignore[arg-type]


def batch(number: int = 1, **fields: object) -> BatchView:
    """A batch under way for about five minutes."""
    plain = {
        "id": number, "lane": "openai/gpt-5.5 (batch)", "stage": "open", "requests": 2000, "status": "in_progress",
        "created_ms": int(time.time() * 1000) - 300_000,
    }  # fmt: skip
    return BatchView(**{**plain, **fields})  # type: ignore[arg-type]


def drawn(batches: Sequence[BatchView] = (), *, width: int = 160, **fields: object) -> str:
    """What the live view shows."""
    screen = StringIO()
    display = Display(Console(file=screen, width=width), "sweep s", simulated=False)
    display.watch(lambda: snapshot(batches, **fields), {"task": 10})
    display._console.print(display._picture())
    return screen.getvalue()


def test_the_live_view_has_a_row_for_every_batch() -> None:
    """Lane, stage, requests, the provider's word and age."""
    (row,) = [row for row in drawn([batch()]).splitlines() if "batch 1" in row]
    words = ("openai/gpt-5.5 (batch)", "open", "2,000 requests", "in_progress", "age 5:0")
    assert all(word in row for word in words), row


def test_a_batch_that_was_not_created_has_no_age() -> None:
    """Nor a status."""
    shown = drawn([batch(stage="in_doubt", created_ms=0, status="")])
    assert "in doubt" in shown
    assert "age" not in shown


def test_many_batches_do_not_fill_the_screen() -> None:
    """The rest is counted."""
    shown = drawn([batch(number) for number in range(BATCHES_SHOWN + 3)])
    assert sum("in_progress" in row for row in shown.splitlines()) == BATCHES_SHOWN
    assert f"and 3 more batches: {BATCHES_SHOWN + 3} open (22,000 requests) in all" in shown


@pytest.mark.parametrize("text", ["\x1b]0;x\x07", "a\nb", "\u202e"], ids=["escape", "line", "override"])
def test_what_a_provider_says_is_drawn_as_text(text: str) -> None:
    """A status must not drive the terminal."""
    shown = drawn([batch(status=text)])
    assert not set("\x1b\x07\u202e") & set(shown)
    assert len(shown.splitlines()) == len(drawn([batch()]).splitlines())


def test_the_plain_line_counts_batches_by_stage() -> None:
    """And the requests in them; without batches it is silent."""
    line = plain_line(snapshot([batch(), batch(2, stage="in_doubt"), batch(3)]), {"task": 10})
    assert "batches 2 open, 1 in doubt (6,000 requests)" in line
    assert "batch" not in plain_line(snapshot([]), {"task": 10})


RESUMED = {
    "accounts": {
        Scope("sweep", "s"): Account(spent_nano=387_214_393, cap=Cap(nano=1_000_000_000)),
        Scope("model", "m"): Account(spent_nano=999_000_000_000),
    },
    "spent_nano": 0,
}


def test_what_is_spent_is_of_all_runs_and_this_run_stands_apart() -> None:
    """A resumed run with nothing to do has a half-used cap, and the sum beside it is of the same runs."""
    assert "spent $0.3872  this run: calls 1, errors 0, spent $0.00" in plain_line(snapshot(**RESUMED), {"task": 10})
    shown = drawn(**RESUMED)
    assert "spent $0.3872 ($0.00 in this run)" in shown
    assert "budget of sweep s: $0.3872 + $0.00 reserved of $1.00" in shown


def test_a_sweep_that_asks_for_less_than_before_has_what_was_planned_before() -> None:
    """Not 8 of 4."""
    stages = {"task": StageCount(read=40, known=48), "probe": StageCount(read=8), "judge": StageCount()}
    line = plain_line(snapshot(stages=stages), {"probe": 4, "task": 24, "judge": 24})
    assert "probe 8/8  task 40/48  judge 0/24" in line
    assert "40/48" in drawn(stages=stages)


LANE = LaneSnapshot(
    name="anthropic/claude-opus-4-6-20260415", queued=1234, in_flight=17, concurrency=2500, sent=98765, throttled=43210,
    stopped="", paused_until=99.0,
)  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_the_live_view_fits_and_cuts_no_figure(width: int) -> None:
    """Names, ids and counts of lanes and batches are whole; what has no room is left out."""
    batches = [batch(12345, lane="anthropic/claude-opus-4-6-20260415 (batch)", status="cancelling by its provider")]
    stages = {"task": StageCount(read=123_456, unreadable=2_345, failed=6_789, known=234_567)}
    rows = drawn(batches, width=width, lanes=(LANE,), stages=stages).splitlines()
    assert max(map(len, rows)) <= width
    words = " ".join(rows)
    for whole in ("17/2500", LANE.name, "130245/234567", "2345 unreadable", "6789 failed", "batch 12345", "2,000"):
        assert whole in words
    assert "…" not in words
