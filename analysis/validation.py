"""The judge against people: agreement, confusion, structure of disagreements, and what it means for the OI rate.

Statistics come from `agreement` and `correction`; here labels become tables. The human label is the reference.

References
----------
.. [1] "The Personalization Mirage", Appendix H: Table 11, H.2 (F1), H.3 (confusion), H.4 (structure).
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

import numpy as np

from analysis import agreement
from analysis.annotations import MAJORITY, Validation, ValidationError, read_validation
from analysis.correction import corrected_oi, judge_error_intervals
from analysis.frames import Column, Kind, Report, Row, Table
from analysis.notes import SIMULATED
from analysis.rates import LABELS, OVER_INFERRED, Totals
from analysis.ratios import divided
from analysis.records import Ints

__all__ = ["ValidationError", "make_validation_report", "make_validation_tables", "read_validation"]

COUNT: Final = len(LABELS)
EQUALLY: Final = "people: every annotator counts alike, an item is shared out between their labels"
SEED: Final = 0
OF_THE_SAMPLE: Final = (
    "recall, F1 and kappa are those of the sample, which holds rare labels as often as frequent ones; judge_corrected"
    " weighs them as the sweep does"
)
_WEIGHTED: Final = "weighted_kappa"
_ERRORS: Final = {
    "sensitivity": "sensitivity: human's OI that the judge calls OI",
    "specificity": "specificity: human's other claims that the judge passes",
    "accuracy": "accuracy of the judge, OI or not",
    "four_class_accuracy": "accuracy of the judge, four labels",
}
_AGREEMENT: Final = (
    Column("items", Kind.COUNT, "items"),
    Column("accuracy", Kind.SHARE, "share"),
    Column("kappa", Kind.NUMBER),
    Column(_WEIGHTED, Kind.NUMBER, label="kappa, linear weights"),
    Column("binary_accuracy", Kind.SHARE, "share", "accuracy, OI or not"),
    Column("binary_kappa", Kind.NUMBER, label="kappa, OI or not"),
)


def make_validation_report(data: Validation, annotator: str = "") -> Report:
    """Make every table of a sample.

    Parameters
    ----------
    data : Validation
    annotator : str
        Compare the judge with this annotator; empty for all of them, item by item (`Validation.reference`).

    Raises
    ------
    ValidationError
        No such annotator.
    """
    return Report(
        sweep=data.sample.sweep,
        simulated=data.sample.simulated,
        warnings=tuple(_warnings(data)),
        tables=make_validation_tables(data, annotator),
    )


def make_validation_tables(data: Validation, annotator: str = "") -> tuple[Table, ...]:
    """Make the tables of a sample, Table 11 first; see `make_validation_report`."""
    name, human = data.reference(annotator)
    table = data.table(annotator)
    notes = (f"judge: {data.sample.judge}; human: {name}", *_coverage(data, name, human))
    several = not annotator and len(data.annotators) > 1
    everybody = (
        f"judge: {data.sample.judge}; {EQUALLY}",
        f"{len(data.items)} of {data.sample.size} items of sample {data.sample.name}",
    )
    return (
        judge_agreement(data, notes),
        class_agreement(data, table, notes),
        confusion_table(data, table, notes),
        disagreement_structure(data, table, notes),
        corrected_rate(data, annotator, everybody if several else notes),
        *([annotator_agreement(data)] if len(data.annotators) > 1 else []),
        disagreements(data, name, human, notes),
    )


def judge_agreement(data: Validation, notes: tuple[str, ...]) -> Table:
    """Make Table 11: the judge against each annotator, and against the majority where there are several."""
    whose = [*data.annotators, *([MAJORITY] if len(data.annotators) > 1 else [])]
    labels = [*data.human, *([data.reference()[1]] if len(data.annotators) > 1 else [])]
    tables = [agreement.confusion(human, data.judged, COUNT) for human in labels]
    rows = [(name, *_agreement(table), _macro_f1(table)) for name, table in zip(whose, tables, strict=True)]
    return _table(
        data,
        "judge_agreement",
        "Agreement of the judge with people",
        (Column("human", Kind.TEXT), *_AGREEMENT, Column("macro_f1", Kind.NUMBER, label="macro F1")),
        rows,
        (*notes[1:], OF_THE_SAMPLE, "OI or not: stereotype and fabricated against grounded and reasonable"),
        "intervals: 95%, Wilson for accuracy, large-sample normal for kappa",
    )


def class_agreement(data: Validation, table: Totals, notes: tuple[str, ...]) -> Table:
    """Make precision, recall and F1 of the judge per label (H.2)."""
    right, human, judge = np.diagonal(table).tolist(), table.sum(axis=1).tolist(), table.sum(axis=0).tolist()
    *f1, macro = agreement.f1_estimates(table, np.random.default_rng(SEED), strata="columns")
    rows: list[Row] = [
        (
            LABELS[place],
            human[place],
            judge[place],
            agreement.proportion(right[place], judge[place], method="precision"),
            agreement.proportion(right[place], human[place], method="recall"),
            f1[place],
        )
        for place in range(COUNT)
    ]
    return _table(
        data,
        "judge_by_label",
        "The judge's precision, recall and F1 per label",
        (
            Column("label", Kind.TEXT),
            Column("human", Kind.COUNT, "items"),
            Column("judge", Kind.COUNT, "items"),
            *(Column(name, Kind.NUMBER) for name in ("precision", "recall", "f1")),
        ),
        [*rows, ("macro", None, None, None, None, macro)],
        (*notes, OF_THE_SAMPLE),
        "intervals: 95%, Wilson for precision and recall, bootstrap of items within the judge's labels for F1",
    )


def confusion_table(data: Validation, table: Totals, notes: tuple[str, ...]) -> Table:
    """Make the confusion matrix: human labels down, judge labels across (H.3)."""
    rows: list[Row] = [(label, *map(int, line), int(line.sum())) for label, line in zip(LABELS, table, strict=True)]
    total: Row = ("total", *map(int, table.sum(axis=0)), int(table.sum()))
    columns = (
        Column("human", Kind.TEXT, label="human, judge across"),
        *(Column(label, Kind.COUNT, "items") for label in (*LABELS, "total")),
    )
    title = "Human labels (rows) and judge labels (columns)"
    return _table(data, "judge_confusion", title, columns, [*rows, total], notes)


def disagreement_structure(data: Validation, table: Totals, notes: tuple[str, ...]) -> Table:
    """Make the structure of disagreements: how far apart, at which boundary, in which direction (H.4)."""
    wrong, items = int(table.sum() - np.trace(table)), int(table.sum())
    rows = [(what, count, _share(count, wrong), _share(count, items)) for what, count in _structure(table)]
    contested = agreement.most_contested(table)
    named = [f"most contested boundary: {_between(*contested.labels)}, {contested.items} items"] if contested else []
    return _table(
        data,
        "judge_disagreement_structure",
        "How judge and human disagree",
        (
            Column("disagreement", Kind.TEXT),
            Column("items", Kind.COUNT, "items"),
            Column("of_disagreements", Kind.SHARE, "share"),
            Column("of_items", Kind.SHARE, "share"),
        ),
        rows,
        (*notes, *named, "steps on the scale grounded, reasonable, stereotype, fabricated"),
    )


def corrected_rate(data: Validation, annotator: str, notes: tuple[str, ...]) -> Table:
    """Make the OI rate of the whole sweep as people would label it, and the judge's errors over the sweep."""
    population, table = data.sample.population, data.shared_table(annotator)
    items, labelled = table.sum(axis=0).tolist(), round(float(table.sum()))
    judged = float(divided(population[OVER_INFERRED].sum(), population.sum()))
    errors = judge_error_intervals(population, table, np.random.default_rng(SEED))
    over = table[OVER_INFERRED].sum(axis=0).tolist()
    rows: list[Row] = [
        ("OI rate, as the judge labels", int(population.sum()), judged),
        ("OI rate, judge-corrected", labelled, corrected_oi(population, table)[()]),
        *(
            (
                f"human says OI where the judge says {label}",
                round(items[place]),
                agreement.proportion(over[place], items[place], method="share of items"),
            )
            for place, label in enumerate(LABELS)
        ),
        *((name, errors[field].n, errors[field]) for field, name in _ERRORS.items()),
    ]
    shares = ", ".join(f"{int(count):,} {label}" for count, label in zip(population, LABELS, strict=True))
    return _table(
        data,
        "judge_corrected",
        "The OI rate of the sweep, corrected for the judge's errors",
        (Column("quantity", Kind.TEXT), Column("n", Kind.COUNT), Column("value", Kind.SHARE, "share")),
        rows,
        (*notes, f"weighted by the judge's labels in the sweep when the sample was drawn: {shares}"),
        "corrected OI rate: interval 95%, normal, stratified by the judge's label; it assumes that the judge errs alike"
        " on all models",
        "other intervals: 95%, Wilson for shares of items, bootstrap of items within the judge's labels for the rest",
    )


def annotator_agreement(data: Validation) -> Table:
    """Make the agreement of annotators with each other: every pair, and Krippendorff's alpha of all."""
    rows: list[Row] = []
    for first, second in combinations(range(len(data.annotators)), 2):
        table = agreement.confusion(data.human[first], data.human[second], COUNT)
        pair = f"{data.annotators[first]}, {data.annotators[second]}"
        rows.append((pair, *_agreement(table), *_alphas(data.human[[first, second]])))
    shared = int(((data.human >= 0).sum(axis=0) > 1).sum())
    rows.append(("all", shared, *[None] * (len(_AGREEMENT) - 1), *_alphas(data.human)))
    return _table(
        data,
        "annotator_agreement",
        "Agreement of annotators with each other",
        (
            Column("between", Kind.TEXT),
            *_AGREEMENT,
            Column("alpha", Kind.NUMBER, label="Krippendorff's alpha"),
            Column("ordinal_alpha", Kind.NUMBER, label="alpha, ordinal"),
        ),
        rows,
        (f"items that two annotators or more have labelled: {shared} of {data.sample.size}",),
    )


def disagreements(data: Validation, name: str, human: Ints, notes: tuple[str, ...]) -> Table:
    """Make the list of claims that judge and human label differently, the farthest apart first."""
    wrong = np.flatnonzero((human >= 0) & (human != data.judged))
    apart = np.abs(human - data.judged)
    rows: list[Row] = [
        (
            item.item,
            LABELS[human[place]],
            LABELS[data.judged[place]],
            int(apart[place]),
            item.claim,
            _comments(data, name, item.item),
            item.model,
            item.persona,
            item.task,
        )
        for place in sorted(wrong.tolist(), key=lambda place: -apart[place])
        for item in [data.items[place]]
    ]
    texts = ("claim", "comment", "model", "persona", "task")
    return _table(
        data,
        "judge_disagreements",
        "Claims that judge and human label differently",
        (
            *(Column(name, Kind.TEXT) for name in ("item", "human", "judge")),
            Column("steps", Kind.COUNT),
            *(Column(name, Kind.TEXT) for name in texts),
        ),
        rows,
        notes,
    )


def _agreement(table: Totals) -> Row:
    binary = agreement.collapsed(table)
    return (
        int(table.sum()),
        agreement.accuracy(table),
        agreement.kappa(table),
        agreement.kappa(table, "linear"),
        agreement.accuracy(binary),
        agreement.kappa(binary),
    )


def _macro_f1(table: Totals) -> float:
    return agreement.class_scores(table).macro_f1


def _alphas(ratings: Ints) -> Row:
    return tuple(agreement.krippendorff_alpha(ratings, COUNT, metric) for metric in ("nominal", "ordinal"))


def _structure(table: Totals) -> Iterator[tuple[str, int]]:
    histogram = agreement.distances(table).histogram
    yield "all", sum(histogram[1:])
    for steps, count in enumerate(histogram[1:], 1):
        yield f"{steps} step{'s' if steps > 1 else ''} apart{' (adjacent)' if steps == 1 else ''}", count
    for first, second in combinations(range(COUNT), 2):
        yield _between(first, second), int(table[first, second] + table[second, first])
    yield "judge sees more support than the human", int(np.tril(table, -1).sum())
    yield "judge sees less support than the human", int(np.triu(table, 1).sum())
    binary = agreement.collapsed(table)
    yield "only the human says OI", int(binary[1, 0])
    yield "only the judge says OI", int(binary[0, 1])


def _between(first: int, second: int) -> str:
    return f"{LABELS[first]} and {LABELS[second]}"


def _share(count: int, whole: int) -> float:
    return float(divided(np.array(count), np.array(whole)))


def _comments(data: Validation, name: str, item: str) -> str:
    people = data.annotators if name == MAJORITY else (name,)
    said = [(person, data.comments[person, item]) for person in people if (person, item) in data.comments]
    return "; ".join(f"{person}: {text}" if len(people) > 1 else text for person, text in said)


def _coverage(data: Validation, name: str, human: Ints) -> Iterator[str]:
    labelled = int((human >= 0).sum())
    yield f"{labelled} of {data.sample.size} items of sample {data.sample.name}"
    ties = len(data.items) - labelled
    if name == MAJORITY and ties:
        yield f"{ties} more items are tied between annotators and left out, which flatters the judge: see its rows"


def _warnings(data: Validation) -> Iterator[str]:
    if data.sample.simulated:
        yield "SIMULATED: answers come from a simulator; no figure says anything about a real model"
    yield from data.sample.notes
    for annotator, labels in zip(data.annotators, data.human, strict=True):
        if (labelled := int((labels >= 0).sum())) < data.sample.size:
            yield f"{annotator} has labelled {labelled} of {data.sample.size} items; whoever goes on must not read this"


def _table(
    data: Validation,
    name: str,
    title: str,
    columns: tuple[Column, ...],
    rows: Sequence[Row],
    notes: tuple[str, ...],
    *more: str,
) -> Table:
    simulated = data.sample.simulated
    return Table(
        name=name,
        title=f"{SIMULATED if simulated else ''}{title}",
        columns=columns,
        rows=tuple(rows),
        notes=(*notes, *more),
        simulated=simulated,
    )
