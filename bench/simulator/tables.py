"""The population in numbers: records for the published tables and for the counts derived from them, and their files."""

from collections.abc import Iterable
from importlib.resources import files
from itertools import starmap
from operator import add
from typing import Final

import msgspec

DATA: Final = files("bench.simulator") / "data"
PERSONAS: Final = 150
GROUP_SIZE: Final = 50


class JudgeRow(msgspec.Struct, frozen=True):
    """Table 1: number of claims and percentages."""

    claims: int
    grounded: float
    stereotype: float
    fabricated: float
    over_inference: float


class AuditRow(msgspec.Struct, frozen=True):
    """Table 6: records with a valid self-audit, rank correlation and AUROC within the model."""

    records: int
    spearman: float
    auroc: float


class AccumRow(msgspec.Struct, frozen=True):
    """Tables 4 and 8: mean attributes in rounds 1 and 8, slope and R2 of 16 points, removal rate in percent."""

    first: float
    last: float
    slope: float
    r2: float
    removal: float


class OursRow(msgspec.Struct, frozen=True):
    """What the paper leaves open: audit claims per judged claim, probe claims per persona, probe error in percent."""

    self_to_judge: float
    probe_claims: int
    probe_error: float


class ModelRow(msgspec.Struct, frozen=True, rename={"self_rate": "self"}):
    """Everything published about one model; `task` in the order of `Paper.tasks`, `group` of `Paper.groups`."""

    family: str
    judge: JudgeRow
    self_rate: float
    audits: AuditRow
    task: tuple[float, ...]
    group: tuple[float, ...]
    accum: AccumRow
    ours: OursRow


class TaskRow(msgspec.Struct, frozen=True):
    """Tables 5 and 3: claims, and the four shares in percent."""

    claims: int
    shares: tuple[float, float, float, float]


class GroupRow(msgspec.Struct, frozen=True):
    """Appendix E: pooled shares in percent."""

    stereotype: float
    fabricated: float


class Paper(msgspec.Struct, frozen=True):
    """The published tables."""

    tasks: tuple[str, ...]
    groups: tuple[str, ...]
    task: dict[str, TaskRow]
    group: dict[str, GroupRow]
    model: dict[str, ModelRow]


class Labels(msgspec.Struct, frozen=True, array_like=True):
    """How many claims carry each label."""

    grounded: int = 0
    reasonable: int = 0
    stereotype: int = 0
    fabricated: int = 0

    @property
    def claims(self) -> int:
        """All claims."""
        return sum(msgspec.structs.astuple(self))

    @property
    def over(self) -> int:
        """Over-inferred claims: stereotype and fabricated."""
        return self.stereotype + self.fabricated

    @property
    def rate(self) -> float:
        """Over-inferred claims in percent of all."""
        return 100 * self.over / self.claims


class SelfAudit(msgspec.Struct, frozen=True):
    """A model's self-audits.

    Attributes:
        records: audits that can be read.
        claims: claims the model counts in them.
        over: those it calls stereotype or fabricated.
        follows: how far its record rates follow the judge's, from 0 (not at all) to 1 (wholly).
    """

    records: int
    claims: int
    over: int
    follows: float


class Probe(msgspec.Struct, frozen=True):
    """A model's probe answers: the judge's labels, and how many claims are INCORRECT."""

    labels: Labels
    incorrect: int


class Trajectory(msgspec.Struct, frozen=True):
    """One persona's memory: attributes after rounds 1 to 8, and how many of round t's are gone in round t+1."""

    counts: tuple[int, ...]
    removed: tuple[int, ...]


class Counts(msgspec.Struct, frozen=True):
    """The whole population; `claims` by model, task and group."""

    claims: dict[str, dict[str, dict[str, Labels]]]
    audits: dict[str, SelfAudit]
    probes: dict[str, Probe]
    accum: dict[str, tuple[Trajectory, Trajectory]]

    def labels(self, *, model: str = "", task: str = "", group: str = "") -> Labels:
        """Return the labels of one model, task and group, each left out meaning all of them."""
        return total(
            cell
            for name, tasks in self.claims.items()
            for task_name, groups in tasks.items()
            for group_name, cell in groups.items()
            if model in ("", name) and task in ("", task_name) and group in ("", group_name)
        )


def total(cells: Iterable[Labels]) -> Labels:
    """Return the sum of `cells`, label by label."""
    result = (0, 0, 0, 0)
    for cell in cells:
        result = tuple(starmap(add, zip(result, msgspec.structs.astuple(cell), strict=True)))
    return Labels(*result)


def load_paper() -> Paper:
    """Return the published tables."""
    return msgspec.toml.decode((DATA / "paper.toml").read_bytes(), type=Paper)


def load_counts() -> Counts:
    """Return the derived counts kept as data."""
    return msgspec.json.decode((DATA / "counts.json").read_bytes(), type=Counts)
