"""The population adds up to the published tables, and its records add up to the known answer."""

from collections.abc import Callable

import numpy as np
import pytest

from bench.simulator.calibration import derive, record_spearman
from bench.simulator.paths import regression, removal_rate
from bench.simulator.population import Accuracy, Label, Population, drawn_slot, known_answer
from bench.simulator.tables import GROUP_SIZE, Counts, Labels, Paper, load_paper, total

CLAIMS = 143_616


@pytest.fixture(scope="module")
def paper() -> Paper:
    return load_paper()


@pytest.fixture(scope="module")
def counts() -> Counts:
    return known_answer()


MODELS = tuple(load_paper().model)


def test_all_claims_sum_to_the_published_number(counts: Counts) -> None:
    """143,616 judged claims."""
    assert counts.labels().claims == CLAIMS


@pytest.mark.parametrize("model", MODELS)
def test_model_shares_round_to_table_1(model: str, counts: Counts, paper: Paper) -> None:
    """Claims exactly; grounded, stereotype, fabricated and over-inference to the printed digit."""
    labels, row = counts.labels(model=model), paper.model[model].judge
    assert labels.claims == row.claims
    shares = [labels.grounded, labels.stereotype, labels.fabricated, labels.over]
    printed = [row.grounded, row.stereotype, row.fabricated, row.over_inference]
    assert [round(100 * n / row.claims, 1) for n in shares] == printed


def test_task_claims_are_those_of_table_5(counts: Counts, paper: Paper) -> None:
    """Exactly, for all six tasks."""
    assert {task: counts.labels(task=task).claims for task in paper.tasks} == {
        task: row.claims for task, row in paper.task.items()
    }


@pytest.mark.parametrize("model", MODELS)
def test_group_rates_are_within_a_printed_digit_of_table_7(model: str, counts: Counts, paper: Paper) -> None:
    """Every model, every group."""
    for group, published in zip(paper.groups, paper.model[model].group, strict=True):
        assert counts.labels(model=model, group=group).rate == pytest.approx(published, abs=0.05)


def test_pooled_group_shares_are_those_of_appendix_e(counts: Counts, paper: Paper) -> None:
    """Stereotype and fabricated shares by group, to the printed digit."""
    for group, row in paper.group.items():
        labels = counts.labels(group=group)
        shares = (100 * labels.stereotype / labels.claims, 100 * labels.fabricated / labels.claims)
        assert shares == pytest.approx((row.stereotype, row.fabricated), abs=0.05)


def test_distance_to_table_10_is_the_contradiction_between_the_tables(
    counts: Counts, paper: Paper, record_property: Callable[[str, object], None]
) -> None:
    """Every cell lies the same 0.7 points below Table 10: what Tables 1 and 5 leave no room for."""
    gaps = [
        counts.labels(model=model, task=task).rate - published
        for model, row in paper.model.items()
        for task, published in zip(paper.tasks, row.task, strict=True)
    ]
    record_property("table_10_largest_gap_pp", max(map(abs, gaps)))
    assert -0.8 < min(gaps) < max(gaps) < -0.6


def test_task_rates_are_near_table_3(counts: Counts, paper: Paper) -> None:
    """Over-inference by task within 0.9 points, although Table 3 and Table 10 disagree by up to 1.4."""
    for task, row in paper.task.items():
        assert counts.labels(task=task).rate == pytest.approx(row.shares[2] + row.shares[3], abs=0.9)


@pytest.mark.parametrize("model", MODELS)
def test_self_audit_rates_round_to_table_2(model: str, counts: Counts, paper: Paper) -> None:
    """The self-reported rate to the printed digit, over Table 6's number of records."""
    audit, row = counts.audits[model], paper.model[model]
    assert round(100 * audit.over / audit.claims, 1) == row.self_rate
    assert audit.records == row.audits.records


@pytest.mark.parametrize("model", MODELS)
def test_probe_errors_lie_in_the_published_range(model: str, counts: Counts) -> None:
    """0.7 to 4.6 percent of the probe claims are incorrect."""
    probe = counts.probes[model]
    assert 0.7 <= round(100 * probe.incorrect / probe.labels.claims, 1) <= 4.6


@pytest.mark.parametrize("model", MODELS)
def test_memories_grow_as_in_tables_4_and_8(model: str, counts: Counts, paper: Paper) -> None:
    """Means of rounds 1 and 8 exactly; slope, fit and removal rate to the printed digits."""
    paths, row = counts.accum[model], paper.model[model].accum
    assert sum(path.counts[0] for path in paths) == 2 * row.first
    assert sum(path.counts[-1] for path in paths) == 2 * row.last
    slope, r2 = regression([path.counts for path in paths])
    assert (round(slope, 2), round(r2, 2)) == (row.slope, row.r2)
    assert round(100 * removal_rate(paths), 1) == row.removal


def test_counts_file_is_what_the_derivation_gives(counts: Counts, paper: Paper) -> None:
    """Nobody edited the data by hand."""
    assert derive(paper, {model: audit.follows for model, audit in counts.audits.items()}) == counts


@pytest.mark.parametrize("seed", [0, 7])
def test_records_add_up_to_the_known_answer_for_every_seed(seed: int, counts: Counts) -> None:
    """The seed moves claims between personas and never changes a sum."""
    population = Population(counts, seed)
    for model, records in zip(population.models, population.records, strict=True):
        for place, task in enumerate(population.tasks):
            for number, group in enumerate(population.groups):
                slots = range(number * 50, number * 50 + 50)
                found = total(records[slot * len(population.tasks) + place] for slot in slots)
                assert found == counts.claims[model][task][group]


def test_claims_in_order_have_the_labels_of_their_record(population: Population) -> None:
    """What a judge finds in an answer is what the record says."""
    for model, slot, task in ((0, 0, 0), (5, 77, 3), (11, 149, 5)):
        labels = [population.claim(number).label for number in population.task_claims(model, slot, task)]
        record = population.records[model][slot * len(population.tasks) + task]
        assert Labels(*(labels.count(label) for label in Label)) == record


def test_readable_audits_add_up_to_the_known_answer(population: Population, counts: Counts) -> None:
    """Records, claims and over-inferred claims of every model's self-audit."""
    for model, audits in zip(population.models, population.audits, strict=True):
        readable = [audit for audit in audits if audit is not None]
        found = (len(readable), sum(a.claims for a in readable), sum(a.over for a in readable))
        known = counts.audits[model]
        assert found == (known.records, known.claims, known.over)


@pytest.mark.parametrize("model", MODELS)
def test_self_audits_rank_records_about_as_well_as_in_table_6(model: str, population: Population, paper: Paper) -> None:
    """Rank correlation within 0.01; AUROC, which follows from it, within 0.04."""
    place = population.models.index(model)
    pairs = list(zip(population.audits[place], population.records[place], strict=True))
    judged = np.array([record.rate for _, record in pairs])
    audited = np.array([np.nan if audit is None else audit.rate for audit, _ in pairs])
    high, low = (
        audited[mask & ~np.isnan(audited)] for mask in (judged > np.median(judged), judged <= np.median(judged))
    )
    wins = (high[:, None] > low).mean() + (high[:, None] == low).mean() / 2
    published = paper.model[model].audits
    assert record_spearman(population, model) == pytest.approx(published.spearman, abs=0.01)
    assert wins == pytest.approx(published.auroc, abs=0.04)


def test_probe_claims_add_up_to_the_known_answer(population: Population, counts: Counts) -> None:
    """Labels and incorrect claims over all 150 probe answers of every model."""
    for place, model in enumerate(population.models):
        claims = [population.claim(n) for slot in range(150) for n in population.probe_claims(place, slot)]
        labels = [claim.label for claim in claims]
        assert Labels(*(labels.count(label) for label in Label)) == counts.probes[model].labels
        assert sum(claim.accuracy is Accuracy.INCORRECT for claim in claims) == counts.probes[model].incorrect


def test_another_seed_places_claims_elsewhere(population: Population, counts: Counts) -> None:
    """Two seeds give two populations with equal sums."""
    assert Population(counts, 1).records != population.records


def test_every_claim_belongs_to_the_record_that_says_it(population: Population) -> None:
    """Numbers and records map both ways."""
    for key in ((0, 0, 0), (3, 10, 2), (11, 149, 5)):
        assert {population.record_of(number) for number in population.task_claims(*key)} == {key}
    assert population.record_of(population.probe_claims(0, 0).start) is None


@pytest.mark.parametrize("draw", [0, 1, 2, 49])
def test_every_draw_of_all_personas_has_the_published_sums(draw: int, population: Population, counts: Counts) -> None:
    """By model and group, so that a sweep of several samples has the right answer as often."""
    for place, model in enumerate(population.models):
        for number, group in enumerate(population.groups):
            slots = range(number * GROUP_SIZE, (number + 1) * GROUP_SIZE)
            claims = sum(len(population.task_claims(place, s, t, draw)) for s in slots for t in range(6))
            assert claims == counts.labels(model=model, group=group).claims


def test_draws_of_a_persona_differ_and_the_first_is_its_own() -> None:
    """Fifty of them, all within its group."""
    for slot in (0, 49, 50, 149):
        drawn = [drawn_slot(slot, draw) for draw in range(GROUP_SIZE)]
        assert drawn[0] == slot
        assert len(set(drawn)) == GROUP_SIZE
        assert {each // GROUP_SIZE for each in drawn} == {slot // GROUP_SIZE}
