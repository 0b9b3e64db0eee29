"""The live view and the plain lines: what they show of batches."""

import time
from collections.abc import Sequence
from io import StringIO

import pytest
from rich.console import Console

from bench.display import BATCHES_SHOWN, Display, plain_line
from engine.events import BatchView, Snapshot, StageCount


def snapshot(batches: Sequence[BatchView]) -> Snapshot:
    """A run with these batches."""
    return Snapshot(
        stages={"task": StageCount(read=1)}, lanes=(), accounts={}, errors={}, calls=1, input_tokens=1, output_tokens=1,
        spent_nano=1, started=0.0, now=60.0, planning=False, draining=False, refused="", batches=tuple(batches),
    )  # fmt: skip


def batch(number: int = 1, **fields: object) -> BatchView:
    """A batch under way for about five minutes."""
    plain = {
        "id": number, "lane": "openai/gpt-5.5 (batch)", "stage": "open", "requests": 2000, "status": "in_progress",
        "created_ms": int(time.time() * 1000) - 300_000,
    }  # fmt: skip
    return BatchView(**{**plain, **fields})  # type: ignore[arg-type]


def drawn(batches: Sequence[BatchView]) -> str:
    """What the live view shows."""
    screen = StringIO()
    display = Display(Console(file=screen, width=160), "sweep s", simulated=False)
    display.watch(lambda: snapshot(batches), {"task": 10})
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
