"""What a run has done so far, and how people are told."""

from typing import Any

import pytest

from engine.cell import Reading, ReadingStatus
from engine.errors import ErrorClass, ProviderError
from engine.events import Level, Notice, StageCount
from engine.ledger import BudgetWarning, Scope
from engine.progress import Progress
from engine.request import Usage
from engine.telling import Telling
from engine.testing import make_leased


def test_progress_goes_on_from_what_earlier_runs_finished() -> None:
    """Counts are of the sweep, money is of the run."""
    progress = Progress({"task": StageCount(read=10, unreadable=2, failed=1)})
    progress.read("task", Reading(status=ReadingStatus.COMPLETE, version=1))
    progress.read("judge", Reading(status=ReadingStatus.UNREADABLE, version=1))
    progress.failed("task", 3)
    progress.settled(Usage(input_tokens=5, output_tokens=2), 7)
    assert progress.stages() == {
        "task": StageCount(read=11, unreadable=2, failed=4),
        "judge": StageCount(read=1, unreadable=1),
    }
    assert (progress.failures, progress.calls, progress.spent_nano) == (4, 1, 7)
    assert (progress.input_tokens, progress.output_tokens) == (5, 2)


def test_progress_keeps_how_much_the_store_knew_of_a_stage() -> None:
    """Also of one in which nothing is done."""
    stages = Progress({"task": StageCount(read=1, known=8), "judge": StageCount(known=3)}).stages()
    assert stages == {"task": StageCount(read=1, known=8), "judge": StageCount(known=3)}


ERROR = ProviderError(ErrorClass.CONTENT, "blocked")


@pytest.mark.parametrize(
    ("tell", "notice"),
    [
        pytest.param(
            lambda telling: telling.budget([BudgetWarning(Scope("sweep", "s"), 80)]),
            Notice(
                kind="budget",
                level=Level.WARNING,
                text="sweep s has used 80 % of its budget",
                fields={"scope": "sweep s", "percent": 80},
            ),
            id="budget",
        ),
        pytest.param(
            lambda telling: telling.failed(make_leased(3), ERROR),
            Notice(
                kind="request_failed",
                level=Level.WARNING,
                text="task request to m-1 failed (content): blocked",
                fields={"request": 3, "error_class": "content"},
            ),
            id="failed",
        ),
        pytest.param(
            lambda telling: telling.stopped("scripted", ERROR),
            Notice(
                kind="provider_stopped",
                level=Level.ERROR,
                text="scripted takes no more calls in this run (content): blocked",
                fields={"provider": "scripted", "error_class": "content"},
            ),
            id="stopped",
        ),
        pytest.param(
            lambda telling: telling.defect("oops", cell=4),
            Notice(kind="defect", level=Level.ERROR, text="oops", fields={"cell": 4}),
            id="defect",
        ),
    ],
)
def test_a_notice_is_a_sentence_for_people_and_fields_for_programs(tell: Any, notice: Notice) -> None:
    """Of a kind that can be filtered."""
    heard: list[Notice] = []
    tell(Telling(heard.append))
    assert heard == [notice]
