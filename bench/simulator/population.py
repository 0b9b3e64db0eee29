"""Who says what: every simulated claim with its label, spread over personas so that the sums are the known ones.

The counts by model, task and group are data (`counts.json`, derived in `calibration`); the seed only decides which
persona's answer holds how many of them and in which order. Deterministic, no clock, no I/O beyond the package's data.

A persona is a slot here: group number times fifty plus its place in the group; `cast` maps persona ids to slots.
"""

from bisect import bisect_right
from collections.abc import Sequence
from enum import IntEnum
from itertools import accumulate, chain
from math import exp, log
from random import Random
from statistics import NormalDist
from typing import Final

import msgspec

from bench.simulator.rounding import spread
from bench.simulator.tables import GROUP_SIZE, PERSONAS, Counts, Labels, load_counts

LENGTH_SPREAD: Final = 0.22
PERSONA_EFFECT: Final = 0.25
RECORD_EFFECT: Final = 0.40
LABEL_SPREAD: Final = 0.30
AUDIT_LENGTH_SPREAD: Final = 0.15
AUDIT_EFFECT: Final = 0.80
MOST_CLAIMS: Final = 200
# How far the answers of one draw stand from those of the one before; without a factor in common with a group's size.
DRAW_STEP: Final = 7
# Of the over-inferred and of the other claims of a self-audit, how many it calls STEREOTYPE and GROUNDED; our choice.
AUDIT_STEREOTYPE: Final = 0.3
AUDIT_GROUNDED: Final = 0.45


class Label(IntEnum):
    """The four-way taxonomy, in the paper's order."""

    GROUNDED = 0
    INFERRED_REASONABLE = 1
    INFERRED_STEREOTYPE = 2
    FABRICATED = 3


class Accuracy(IntEnum):
    """The judge's check against the ground-truth profile."""

    CORRECT = 0
    PARTIALLY_CORRECT = 1
    UNVERIFIABLE = 2
    INCORRECT = 3


# Chances of CORRECT, PARTIALLY_CORRECT, UNVERIFIABLE (the rest is INCORRECT) by label; the paper gives none for Task.
ACCURACY_BY_LABEL: Final = ((0.98, 1.0, 1.0), (0.55, 0.70, 0.95), (0.30, 0.45, 0.75), (0.08, 0.15, 0.80))


class Claim(msgspec.Struct, frozen=True):
    """What a judge says of one claim."""

    label: Label
    accuracy: Accuracy


# Every claim is one of these sixteen.
CLAIMS: Final = tuple(tuple(Claim(label, accuracy) for accuracy in Accuracy) for label in Label)


class Population:
    """All claims of all simulated answers, numbered: first the task records, then the probe answers."""

    def __init__(self, counts: Counts, seed: int = 0) -> None:
        self.counts = counts
        self.seed = seed
        self.models = tuple(counts.claims)
        self.tasks = tuple(next(iter(counts.claims.values())))
        self.groups = tuple(next(iter(next(iter(counts.claims.values())).values())))
        effects = _gauss(Random(f"{seed}/personas"), PERSONAS)  # noqa: S311 - reproducible, nothing secret
        self.records = [self._records(model, effects) for model in self.models]
        self.audits = [self._audits(place, model) for place, model in enumerate(self.models)]
        labels = [self._ordered(place, model) for place, model in enumerate(self.models)]
        probes = [self._probes(model) for model in self.models]
        task_sizes = (record.claims for records in self.records for record in records)
        probe_sizes = (size for sizes, _ in probes for size in sizes)
        self._starts = [0, *accumulate(chain(task_sizes, probe_sizes))]
        self._labels = b"".join([label for label, _ in labels] + [claims[0] for _, claims in probes])
        self._accuracy = b"".join([accuracy for _, accuracy in labels] + [claims[1] for _, claims in probes])

    def __len__(self) -> int:
        """Return the number of claims, probe claims included."""
        return len(self._labels)

    def claim(self, number: int) -> Claim:
        """Return the truth about one claim.

        Raises:
            IndexError: there is no such claim.
        """
        return CLAIMS[self._labels[number]][self._accuracy[number]]

    def task_claims(self, model: int, slot: int, task: int, draw: int = 0) -> range:
        """Return the numbers of the claims in one task answer, the `draw`-th to its prompt."""
        return self._range(self._record(model, drawn_slot(slot, draw), task))

    def probe_claims(self, model: int, slot: int) -> range:
        """Return the numbers of the claims in one probe answer."""
        return self._range(len(self.models) * PERSONAS * len(self.tasks) + model * PERSONAS + slot)

    def record_of(self, number: int) -> tuple[int, int, int] | None:
        """Return (model, slot, task) of a task claim, None for a claim of a probe answer."""
        record = bisect_right(self._starts, number) - 1
        if record >= len(self.models) * PERSONAS * len(self.tasks):
            return None
        rest, task = divmod(record, len(self.tasks))
        model, slot = divmod(rest, PERSONAS)
        return model, slot, task

    def audit(self, model: int, slot: int, task: int) -> Labels | None:
        """Return the model's own labels of its answer, None where its audit cannot be read."""
        return self.audits[model][slot * len(self.tasks) + task]

    def _range(self, record: int) -> range:
        return range(self._starts[record], self._starts[record + 1])

    def _record(self, model: int, slot: int, task: int) -> int:
        return (model * PERSONAS + slot) * len(self.tasks) + task

    def _records(self, model: str, effects: Sequence[float]) -> list[Labels]:
        """Return the labels of one model's records, by slot and task."""
        rng = Random(f"{self.seed}/records/{model}")  # noqa: S311 - reproducible, nothing secret
        by_task = []
        for task in self.tasks:
            cells = (self.counts.claims[model][task][group] for group in self.groups)
            slices = (effects[g * GROUP_SIZE : (g + 1) * GROUP_SIZE] for g in range(len(self.groups)))
            by_task.append(
                [r for cell, effect in zip(cells, slices, strict=True) for r in _cell_records(cell, effect, rng)]
            )
        return [by_task[task][slot] for slot in range(PERSONAS) for task in range(len(self.tasks))]

    def _ordered(self, place: int, model: str) -> tuple[bytes, bytes]:
        """Return label and accuracy of every claim of one model's records, in the order in which they are said."""
        rng = Random(f"{self.seed}/order/{model}")  # noqa: S311 - reproducible, nothing secret
        labels = bytearray()
        for record in self.records[place]:
            said = [label for label, count in enumerate(msgspec.structs.astuple(record)) for _ in range(count)]
            rng.shuffle(said)
            labels += bytes(said)
        return bytes(labels), bytes(_accuracy(label, rng.random()) for label in labels)

    def _audits(self, place: int, model: str) -> list[Labels | None]:
        audit = self.counts.audits[model]
        return _audits(
            self.records[place], audit.records, audit.claims, audit.over, audit.follows, f"{self.seed}/{model}"
        )

    def _probes(self, model: str) -> tuple[list[int], tuple[bytes, bytes]]:
        """Return sizes of one model's probe answers, and label and accuracy of their claims."""
        rng = Random(f"{self.seed}/probes/{model}")  # noqa: S311 - reproducible, nothing secret
        probe = self.counts.probes[model]
        weights = [exp(LENGTH_SPREAD * e) for e in _gauss(rng, PERSONAS)]
        sizes = spread(probe.labels.claims, weights, [MOST_CLAIMS] * PERSONAS)
        labels = [label for label, count in enumerate(msgspec.structs.astuple(probe.labels)) for _ in range(count)]
        rng.shuffle(labels)
        wrong = sorted(range(len(labels)), key=lambda place: (-labels[place], rng.random()))[: probe.incorrect]
        accuracy = bytearray(
            Accuracy.CORRECT if label < Label.INFERRED_STEREOTYPE else Accuracy.UNVERIFIABLE for label in labels
        )
        for number in wrong:
            accuracy[number] = Accuracy.INCORRECT
        return sizes, (bytes(labels), bytes(accuracy))


def known_answer() -> Counts:
    """Return the right answer that a whole sweep over the simulator must come to, to the last claim."""
    return load_counts()


def drawn_slot(slot: int, draw: int) -> int:
    """Return whose answer of the same group is said as the `draw`-th one to a persona; the first is its own.

    So every draw over all personas of a group has the group's sums. After fifty draws they begin anew.
    """
    group, place = divmod(slot, GROUP_SIZE)
    return group * GROUP_SIZE + (place + DRAW_STEP * draw) % GROUP_SIZE


def _cell_records(cell: Labels, effects: Sequence[float], rng: Random) -> list[Labels]:
    """Spread one cell's claims over its personas; answers differ in length and in how much they over-infer."""
    size = len(effects)
    caps = [MOST_CLAIMS] * size
    lengths = spread(cell.claims, [exp(LENGTH_SPREAD * e) for e in _gauss(rng, size)], caps)
    centre = log(cell.over / (cell.claims - cell.over))
    noise = _gauss(rng, size)
    rates = [_logistic(centre + PERSONA_EFFECT * p + RECORD_EFFECT * e) for p, e in zip(effects, noise, strict=True)]
    over = spread(cell.over, [n * rate for n, rate in zip(lengths, rates, strict=True)], lengths)
    rest = [n - o for n, o in zip(lengths, over, strict=True)]
    stereotype = spread(cell.stereotype, _jittered(over, rng), over)
    grounded = spread(cell.grounded, _jittered(rest, rng), rest)
    parts = zip(grounded, rest, stereotype, over, strict=True)
    return [Labels(g, r - g, s, o - s) for g, r, s, o in parts]


def _audits(
    records: Sequence[Labels], valid: int, claims: int, over: int, follows: float, seed: str
) -> list[Labels | None]:
    """Return one model's self-audits: `valid` of them readable, with the given sums."""
    rng = Random(f"audits/{seed}")  # noqa: S311 - reproducible, nothing secret
    noise, lengths_noise = _gauss(rng, len(records)), _gauss(rng, len(records))
    readable = sorted(rng.sample(range(len(records)), valid))
    judged = _scores([records[place].rate for place in readable])
    sizes = [records[place].claims * exp(AUDIT_LENGTH_SPREAD * lengths_noise[place]) for place in readable]
    lengths = spread(claims, sizes, [MOST_CLAIMS] * valid)
    centre, apart = log(over / (claims - over)), (1 - follows * follows) ** 0.5
    scores = [follows * score + apart * noise[place] for score, place in zip(judged, readable, strict=True)]
    weights = [n * _logistic(centre + AUDIT_EFFECT * score) for n, score in zip(lengths, scores, strict=True)]
    found: list[Labels | None] = [None] * len(records)
    for place, n, o in zip(readable, lengths, spread(over, weights, lengths), strict=True):
        grounded, stereotype = int((n - o) * AUDIT_GROUNDED), int(o * AUDIT_STEREOTYPE)
        found[place] = Labels(grounded, n - o - grounded, stereotype, o - stereotype)
    return found


def _scores(values: Sequence[float]) -> list[float]:
    """Return normal scores of the ranks of `values`."""
    order = sorted(range(len(values)), key=lambda place: (values[place], place))
    scores = [0.0] * len(values)
    for rank, place in enumerate(order):
        scores[place] = NormalDist().inv_cdf((rank + 0.5) / len(values))
    return scores


def _jittered(sizes: Sequence[int], rng: Random) -> list[float]:
    return [size * exp(LABEL_SPREAD * e) for size, e in zip(sizes, _gauss(rng, len(sizes)), strict=True)]


def _gauss(rng: Random, size: int) -> list[float]:
    return [rng.gauss(0.0, 1.0) for _ in range(size)]


def _logistic(value: float) -> float:
    return 1.0 / (1.0 + exp(-value))


def _accuracy(label: int, draw: float) -> int:
    return sum(draw >= bound for bound in ACCURACY_BY_LABEL[label])
