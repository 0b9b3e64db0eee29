"""What every table of a sweep is made from: rows of one judge, integer counts, and one set of resampled personas.

All intervals of a report use the same resamples, so that differences between tables are differences of data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from analysis.annotations import Validation
from analysis.estimates import Number
from analysis.rates import Totals, tally
from analysis.records import (
    ABSENT,
    PENDING,
    Answers,
    AnswersT,
    Audits,
    Dataset,
    Ints,
    Memories,
    ModelInfo,
    Probes,
    Records,
)
from analysis.resampling import RESAMPLES, Resamples, draw_resamples

# Larger designs get fewer resamples, so that the multiplicities stay within 160 MB; the notes print the number.
LARGEST_MATRIX: Final = 20_000_000
FEWEST_RESAMPLES: Final = 200


class UnknownJudgeError(Exception):
    """The sweep has no such judge; the message is one line."""


class NothingToReportError(Exception):
    """The sweep has no answer to make tables of; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a reader of the tables may choose.

    Parameters
    ----------
    judge : str
        Alias of the judge to use; empty takes the manifest's first.
    truncated : bool
        Use the claims of answers that were cut short; otherwise such answers are missing.
    resamples, seed : int
        Of the bootstrap over personas.
    """

    judge: str = ""
    truncated: bool = True
    resamples: int = RESAMPLES
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Context:
    """One sweep, prepared. Rows and counts share two axes: `personas` and `subjects`.

    Parameters
    ----------
    judge : str
        The judge whose labels are used; empty when the sweep has none.
    subjects : tuple of ModelInfo
        The models under test.
    personas, tasks, groups : tuple of str
        Personas of `memories` are left out here when no task or probe was asked of them.
    records, audits, probes
        Rows of this judge; `model` and `persona` are positions in `subjects` and `personas`.
    memories
        `model` is a position in `subjects`, `persona` one in the data's own axes.
    judged, audited, probed : ndarray of int64, shape (personas, subjects, tasks, 4)
        Claims by label; probes have one task.
    persona_group : ndarray of int, shape (personas,)
        Position in `groups`.
    resamples : Resamples
        Of the personas.
    validation : Validation or None
        People's labels of a sample of claims, where there are some.
    """

    data: Dataset
    settings: Settings
    judge: str
    subjects: tuple[ModelInfo, ...]
    personas: tuple[str, ...]
    tasks: tuple[str, ...]
    groups: tuple[str, ...]
    records: Records
    audits: Audits
    probes: Probes
    memories: Memories
    judged: Totals
    audited: Totals
    probed: Totals
    persona_group: Ints
    resamples: Resamples
    validation: Validation | None = None

    @property
    def aliases(self) -> tuple[str, ...]:
        """Aliases of the models under test."""
        return tuple(model.alias for model in self.subjects)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the models under test, as tables print them."""
        return tuple(model.label for model in self.subjects)

    def label(self, alias: str) -> str:
        """Return the name that tables print for a model, under test or not; an unknown alias stands for itself."""
        return next((model.label for model in self.data.models if model.alias == alias), alias)

    @property
    def human(self) -> Number | None:
        """Items by human label (rows) and judge label, shared out where people differ.

        None unless people labelled claims of this sweep and judge.
        """
        found = self.validation
        if found is None or (found.sample.sweep, found.sample.judge) != (self.data.sweep.name, self.judge):
            return None
        return found.shared_table()

    def judged_by(self, judge: str) -> Records:
        """Return any judge's rows of these personas, placed like `records`; none for an unknown judge."""
        axes = self.data.axes
        at = axes.judges.index(judge) if judge in axes.judges else ABSENT
        rows = self.data.records.where(self.data.records.judge == at)
        to_subject, to_persona = _places(axes.models, self.aliases), _places(axes.personas, self.personas)
        placed = _placed(rows, to_subject, to_persona)
        return placed.where((placed.model >= 0) & (placed.persona >= 0))

    def read(self, rows: AnswersT) -> AnswersT:
        """Return the rows that count as read."""
        return rows.where(rows.present(truncated=self.settings.truncated))


def prepare(data: Dataset, settings: Settings, validation: Validation | None = None) -> Context:
    """Choose a judge, count claims and draw resamples; `validation` holds people's labels where there are some.

    Raises
    ------
    UnknownJudgeError
        The sweep has no such judge.
    NothingToReportError
        The sweep has no planned answer, or none of them has come.
    """
    _check_begun(data)
    axes, judge = data.axes, _chosen_judge(data, settings.judge)
    at = axes.judges.index(judge) if judge in axes.judges else ABSENT
    labelled = (data.records.where(data.records.judge == at), data.audits, data.probes.where(data.probes.judge == at))
    models, personas = _subject_codes(data), _persona_codes(data, labelled)
    to_subject, to_persona = _slots(models, len(axes.models)), _slots(personas, len(axes.personas))
    records, audits, probes = (
        _placed(labelled[0], to_subject, to_persona),
        _placed(labelled[1], to_subject, to_persona),
        _placed(labelled[2], to_subject, to_persona),
    )
    shape = (len(personas), len(models), len(axes.tasks))
    drawn = min(settings.resamples, max(LARGEST_MATRIX // max(len(personas), 1), FEWEST_RESAMPLES))
    return Context(
        data=data,
        settings=settings,
        judge=judge,
        subjects=tuple(_info(data, axes.models[code]) for code in models),
        personas=tuple(axes.personas[code] for code in personas),
        tasks=axes.tasks,
        groups=axes.groups,
        records=records,
        audits=audits,
        probes=probes,
        memories=replace(data.memories, model=to_subject[data.memories.model]),
        judged=_counted(records, records.task, shape, settings),
        audited=_counted(audits, audits.task, shape, settings),
        probed=_counted(probes, np.zeros_like(probes.model), (*shape[:2], 1), settings),
        persona_group=_groups(labelled, to_persona, len(personas)),
        resamples=draw_resamples(len(personas), drawn, np.random.default_rng(settings.seed)),
        validation=validation,
    )


def _check_begun(data: Dataset) -> None:
    """Refuse a sweep in which nothing has happened: its tables would hold no number, and one line says as much."""
    parts = (data.records, data.audits, data.probes, data.memories, data.calls)
    planned = sum(len(part) for part in parts)
    if planned and all((part.state == PENDING).all() for part in parts):
        what = (
            f"{len(data.calls):,} calls are planned, none has been answered"
            if len(data.calls)
            else "nothing is answered"
        )
        raise NothingToReportError(f"sweep {data.sweep.name!r}: {what} so far; `mirage run` its sweep file first")


def _chosen_judge(data: Dataset, wanted: str) -> str:
    judges = data.sweep.judges
    if wanted and wanted not in judges:
        known = ", ".join(judges) or "none"
        raise UnknownJudgeError(f"sweep {data.sweep.name!r} has no judge {wanted!r}; its judges: {known}")
    return wanted or next(iter(judges), "")


def _subject_codes(data: Dataset) -> Ints:
    named = [code for code, alias in enumerate(data.axes.models) if alias in data.sweep.subjects]
    rows = (data.records, data.audits, data.probes, data.memories)
    return np.union1d(np.array(named, np.int64), np.concatenate([part.model for part in rows]))


def _persona_codes(data: Dataset, labelled: Sequence[Answers]) -> Ints:
    codes = np.unique(np.concatenate([rows.persona for rows in labelled]))
    codes = codes if len(codes) else np.arange(len(data.axes.personas))
    if not len(codes):
        raise NothingToReportError(f"sweep {data.sweep.name!r} has no planned answer; run it first")
    return codes


def _slots(codes: Ints, size: int) -> Ints:
    """Return for every old position its new one, -1 where it has none."""
    slots = np.full(size, ABSENT, np.int32)
    slots[codes] = np.arange(len(codes))
    return slots


def _places(names: Sequence[str], kept: Sequence[str]) -> Ints:
    """Return for every name its position among those kept, -1 where it is not."""
    place = {name: at for at, name in enumerate(kept)}
    return np.fromiter((place.get(name, ABSENT) for name in names), np.int32, len(names))


def _placed(rows: AnswersT, to_subject: Ints, to_persona: Ints) -> AnswersT:
    return replace(rows, model=to_subject[rows.model], persona=to_persona[rows.persona])


def _counted(rows: AnswersT, task: Ints, shape: tuple[int, int, int], settings: Settings) -> Totals:
    kept = rows.present(truncated=settings.truncated)
    return tally(rows.persona[kept], rows.model[kept], task[kept], rows.labels[kept], shape)


def _groups(labelled: Sequence[Answers], to_persona: Ints, personas: int) -> Ints:
    groups = np.full(personas, ABSENT, np.int32)
    for rows in labelled:
        groups[to_persona[rows.persona]] = rows.group
    return groups


def _info(data: Dataset, alias: str) -> ModelInfo:
    known = {model.alias: model for model in data.models}
    blank = ModelInfo(alias=alias, label=alias, family="", provider="", snapshot="", is_subject=False, is_judge=False)
    return known.get(alias, blank)
