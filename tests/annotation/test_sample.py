"""A draw is stratified, diverse, repeatable, and its order and ids say nothing about the judge's labels."""

from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import UserError
from instruments.annotation.sample import (
    LETTERS,
    Candidate,
    SamplePlan,
    Spread,
    Stratum,
    draw,
    item_ids,
    shortfalls,
)

NO_BOUNDS = Spread(models=0, tasks=0, personas=0)


def claim(number: int, label: str, *, model: int = 0, task: int = 0, persona: int = 0) -> Candidate:
    """One judged claim; `number` is its place in the answer."""
    return Candidate(
        model=f"m{model}",
        persona=f"p{persona}",
        task=f"t{task}",
        sample=0,
        claim=number,
        label=label,
        judge_cell_id=number,
    )


def corpus(*, models: int = 10, tasks: int = 6, personas: int = 30) -> list[Candidate]:
    """One claim of each label for every model, task and persona."""
    return [
        claim(place, label, model=model, task=task, persona=persona)
        for model in range(models)
        for task in range(tasks)
        for persona in range(personas)
        for place, label in enumerate(LETTERS)
    ]


CORPUS = corpus()


def by_label(claims: Sequence[Candidate]) -> Counter[str]:
    """Count claims by label."""
    return Counter(each.label for each in claims)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        pytest.param(400, {"G": 100, "R": 100, "S": 100, "F": 100}, id="the paper's"),
        pytest.param(20, {"G": 5, "R": 5, "S": 5, "F": 5}, id="small"),
        pytest.param(3, {"G": 1, "R": 1, "S": 1}, id="not one for each"),
        pytest.param(402, {"G": 101, "R": 101, "S": 100, "F": 100}, id="with a rest"),
    ],
)
def test_every_label_gives_a_quarter_of_the_sample(size: int, expected: dict[str, int]) -> None:
    """What does not divide by four goes to the first labels."""
    assert by_label(draw(CORPUS, SamplePlan(size=size)).claims) == expected


def test_the_order_of_rows_does_not_change_the_draw() -> None:
    """A draw depends on the seed and the claims only."""
    shuffled = sorted(CORPUS, key=lambda each: (each.task, each.label, each.persona, each.model))
    assert draw(shuffled, SamplePlan(size=40)) == draw(CORPUS, SamplePlan(size=40))


def test_another_seed_draws_other_claims() -> None:
    """The seed matters."""
    first, second = (set(draw(CORPUS, SamplePlan(size=40, seed=seed)).claims) for seed in (42, 43))
    assert len(first & second) < 20


def test_the_order_of_a_sample_is_the_same_whatever_the_labels_are() -> None:
    """Exchanging the labels' names moves no claim: positions cannot tell them."""
    turned = dict(zip(LETTERS, "FSRG", strict=True))
    renamed = [msgspec.structs.replace(each, label=turned[each.label]) for each in CORPUS]
    ours, theirs = draw(CORPUS, SamplePlan(size=80)), draw(renamed, SamplePlan(size=80))
    assert [each.judge_cell_id for each in ours.claims] == [each.judge_cell_id for each in theirs.claims]
    assert [turned[each.label] for each in ours.claims] == [each.label for each in theirs.claims]


def test_a_rare_label_stands_neither_early_nor_late() -> None:
    """Claims of a label with few claims have worse chances, which must not show in the order."""
    rare = [each for each in CORPUS if each.label != "S" or int(each.persona[1:]) < 2]
    ranks = [
        place
        for seed in range(30)
        for place, each in enumerate(draw(rare, SamplePlan(size=80, seed=seed)).claims)
        if each.label == "S"
    ]
    # 600 ranks of 0..79 have a mean of 39.5 with standard error 0.94 if the order is fair.
    assert abs(sum(ranks) / len(ranks) - 39.5) < 4


def test_every_claim_of_a_label_has_the_same_chance() -> None:
    """Over many seeds no claim is preferred."""
    pool = [claim(number, "F") for number in range(20)]
    plans = [SamplePlan(size=20, seed=seed, least=NO_BOUNDS) for seed in range(400)]
    times = Counter(each.claim for plan in plans for each in draw(pool, plan).claims)
    # Each is drawn in a quarter of 400 draws: 100 times, with a standard deviation of 8.7.
    assert set(times) == set(range(20))
    assert all(60 < count < 140 for count in times.values())


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_the_papers_diversity_is_reached_wherever_the_data_can_reach_it(data: st.DataObject) -> None:
    """However lopsided the claims are, 100 of them hold 8 models, 5 tasks and 20 personas if there are so many."""
    common = [claim(number, "G") for number in range(150)]
    models, tasks, personas = (data.draw(st.integers(0, most)) for most in (12, 6, 30))
    rare = [
        *(claim(1000, "G", model=number + 1) for number in range(models)),
        *(claim(1001, "G", task=number + 1) for number in range(tasks)),
        *(claim(1002, "G", persona=number + 1) for number in range(personas)),
    ]
    stratum = draw(common + rare, SamplePlan(size=400)).strata[0]
    assert stratum.available == Spread(models=models + 1, tasks=tasks + 1, personas=personas + 1)
    assert stratum.reached.models >= min(8, models + 1)
    assert stratum.reached.tasks >= min(5, tasks + 1)
    assert stratum.reached.personas >= min(20, personas + 1)
    assert stratum.drawn == 100


def test_claims_are_exchanged_only_where_diversity_asks_for_it() -> None:
    """A draw that is diverse already stays as chance made it."""
    strata = draw(CORPUS, SamplePlan(size=400)).strata
    free = draw(CORPUS, SamplePlan(size=400, least=NO_BOUNDS))
    assert [stratum.exchanged for stratum in strata] == [0, 0, 0, 0]
    assert draw(CORPUS, SamplePlan(size=400)).claims == free.claims


def test_a_sweep_that_is_too_small_says_how_near_it_got() -> None:
    """One line for a label: claims, models, tasks and personas that it lacks, and why."""
    small = [each for each in corpus(models=3, tasks=6, personas=30) if each.label == "G"][:90]
    lines = shortfalls(draw(small, SamplePlan(size=400)).strata)
    assert lines[0] == (
        "GROUNDED: 90 claims instead of 100 (the sweep has no more), 1 models instead of 8 (the sweep has no more),"
        " 3 tasks instead of 5 (the sweep has no more)"
    )
    assert lines[3].startswith("FABRICATED: 0 claims instead of 100")


def test_a_sample_as_asked_for_has_nothing_to_say() -> None:
    """No line where nothing is short."""
    assert shortfalls(draw(CORPUS, SamplePlan(size=400)).strata) == []


def test_the_population_counts_every_claim_of_a_label() -> None:
    """These are the weights with which rates are corrected later."""
    strata: tuple[Stratum, ...] = draw([*CORPUS, claim(9, "F", persona=99)], SamplePlan(size=4)).strata
    assert {stratum.label: stratum.population for stratum in strata} == {"G": 1800, "R": 1800, "S": 1800, "F": 1801}


@pytest.mark.parametrize(
    ("claims", "size"), [pytest.param([], 4, id="no claims"), pytest.param(CORPUS, 0, id="no size")]
)
def test_an_empty_sample_is_refused(claims: list[Candidate], size: int) -> None:
    """Nothing to label is the user's to mend."""
    with pytest.raises(UserError):
        draw(claims, SamplePlan(size=size))


def test_ids_are_opaque_and_belong_to_one_sample() -> None:
    """Twelve consonants; equal texts get different ids, another sample has none of them."""
    ids = item_ids("one", ["same text"] * 300)
    assert len(set(ids)) == 300
    assert all(len(each) == 12 and not set(each) & set("aeiouy0123456789") for each in ids)
    assert not set(ids) & set(item_ids("two", ["same text"] * 300))
    assert ids == item_ids("one", ["same text"] * 300)
