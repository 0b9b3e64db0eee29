"""Counts what a run has done so far, for snapshots. Cheap enough to be called for every request."""

from collections import Counter

from engine.cell import Reading, ReadingStatus
from engine.events import StageCount
from engine.request import Usage


class Progress:
    """Counters of one run; `stages` starts from what earlier runs finished."""

    def __init__(self, finished: dict[str, StageCount]) -> None:
        self._read = Counter({stage: count.read for stage, count in finished.items()})
        self._unreadable = Counter({stage: count.unreadable for stage, count in finished.items()})
        self._failed = Counter({stage: count.failed for stage, count in finished.items()})
        self._known = {stage: count.known for stage, count in finished.items()}
        self.errors: Counter[str] = Counter()
        self.calls = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.spent_nano = 0
        self.failures = sum(self._failed.values())

    def settled(self, usage: Usage, nano: int) -> None:
        """Count one answered call."""
        self.calls += 1
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.spent_nano += nano

    def read(self, stage: str, reading: Reading) -> None:
        """Count one reading."""
        self._read[stage] += 1
        if reading.status is ReadingStatus.UNREADABLE:
            self._unreadable[stage] += 1

    def failed(self, stage: str, cells: int) -> None:
        """Count the cells of a request that failed for good."""
        self._failed[stage] += cells
        self.failures += cells

    def stages(self) -> dict[str, StageCount]:
        """Return progress by stage."""
        return {
            stage: StageCount(
                read=self._read[stage],
                unreadable=self._unreadable[stage],
                failed=self._failed[stage],
                known=self._known.get(stage, 0),
            )
            for stage in {*self._read, *self._failed}
        }
