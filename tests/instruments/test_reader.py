"""The whole benchmark as one plan and one reader."""

import json
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cell import Cell
from engine.errors import UserError
from engine.request import Completion, Finish, Request, Usage
from instruments.instrument import Ask, Coords, Design, Stage
from instruments.reader import INSTRUMENTS, SweepReader, coords_json, count_asks, feeds, plan

GOOD = {
    Stage.PROBE: '[{"claim": "c", "type": "inferred", "reasoning": "r"}]',
    Stage.PROBE_JUDGE: '[{"claim": "c", "category": "GROUNDED", "accuracy": "CORRECT"}]',
    Stage.TASK: "You live in a loft.",
    Stage.AUDIT: '[{"claim": "c", "category": "GROUNDED", "reasoning": "r"}]',
    Stage.JUDGE: "[]",
    Stage.ACCUM: '{"observed": [], "preferences": ["tea"]}',
}


def compose(ask: Ask) -> Cell:
    """Turn a question into a cell of a provider that does not matter here."""
    request = Request(
        provider="none", model=ask.alias, messages=ask.messages, decoding=ask.decoding, sample=ask.coords.sample
    )
    return Cell(stage=ask.stage, alias=ask.alias, coords=coords_json(ask.coords), request=request)


def unfold(design: Design, replies: dict[Stage, str]) -> list[Cell]:
    """Return every cell of a sweep in which each stage always gives the same reply."""
    reader, queue = SweepReader(design, compose), [compose(ask) for ask in plan(design)]
    for cell in queue:
        text = replies[Stage(cell.stage)]
        completion = Completion(text=text, finish=Finish.STOP, usage=Usage())
        queue.extend(reader.read(cell.stage, cell.coords, completion).follow_ups)
    return queue


STAGE_SETS = [
    frozenset(Stage),
    frozenset({Stage.TASK, Stage.JUDGE}),
    frozenset({Stage.PROBE, Stage.PROBE_JUDGE}),
    frozenset({Stage.ACCUM}),
    frozenset({Stage.JUDGE, Stage.AUDIT, Stage.PROBE_JUDGE}),
    frozenset[Stage](),
]


@pytest.mark.parametrize("stages", STAGE_SETS, ids=lambda stages: "+".join(sorted(stages)) or "none")
def test_count_is_what_a_sweep_unfolds_to(stages: frozenset[Stage], vary: Callable[..., Design]) -> None:
    """Questions by stage and alias, foreseen without asking one."""
    design = vary(stages=stages)
    cells = unfold(design, GOOD)
    assert dict(Counter((Stage(cell.stage), cell.alias) for cell in cells)) == count_asks(design)


def test_whole_design_has_the_expected_size(design: Design) -> None:
    """2 personas, 6 tasks, 2 subjects, 2 judges, 2 samples, 1 script of 3 rounds, counted by hand."""
    assert count_asks(design) == {
        (Stage.PROBE, "small"): 4,
        (Stage.PROBE, "large"): 4,
        (Stage.PROBE_JUDGE, "strict"): 8,
        (Stage.PROBE_JUDGE, "mild"): 8,
        (Stage.TASK, "small"): 24,
        (Stage.TASK, "large"): 24,
        (Stage.AUDIT, "small"): 24,
        (Stage.AUDIT, "large"): 24,
        (Stage.JUDGE, "strict"): 48,
        (Stage.JUDGE, "mild"): 48,
        (Stage.ACCUM, "small"): 6,
        (Stage.ACCUM, "large"): 6,
    }


def test_unreadable_answers_ask_nothing_further(design: Design) -> None:
    """Only the plan's own questions remain."""
    assert len(unfold(design, dict.fromkeys(Stage, ""))) == len(list(plan(design)))


def test_cells_are_unique_within_their_stage(design: Design) -> None:
    """Coordinates tell every cell from every other, as the store demands."""
    cells = unfold(design, GOOD)
    assert len({(cell.stage, cell.coords) for cell in cells}) == len(cells)


def test_coordinates_survive_the_store(design: Design) -> None:
    """What is written is read back the same, and equal coordinates are equal bytes."""
    for ask in plan(design):
        again = msgspec.json.decode(coords_json(ask.coords), type=Coords)
        assert again == ask.coords
        assert coords_json(again) == coords_json(ask.coords)


def test_equal_beginnings_follow_each_other_in_every_queue(design: Design) -> None:
    """In a subject's own order, each system prompt and each persona stands in one block."""
    for subject in design.subjects:
        asks = [ask for ask in plan(design) if ask.alias == subject]
        systems = [ask.messages[0].content for ask in asks if ask.stage is Stage.TASK]
        personas = [ask.coords.persona for ask in asks]
        for sequence in (systems, personas):
            blocks = [value for number, value in enumerate(sequence) if not number or sequence[number - 1] != value]
            assert len(blocks) == len(set(sequence))


def test_subjects_advance_together(design: Design) -> None:
    """The first persona is planned for every subject before the second for any."""
    personas = [ask.coords.persona for ask in plan(design)]
    assert personas == sorted(personas)
    assert {ask.alias for ask in plan(design) if ask.coords.persona == "ann"} == set(design.subjects)


@given(st.sampled_from(Stage), st.text() | st.text('[]{}":, claimctegoryGROUNDED\\'), st.sampled_from(Finish))
def test_reading_never_raises_and_can_be_stored(stage: Stage, text: str, finish: Finish) -> None:
    """Any text in any stage is a reading with a JSON object as its body."""
    reading = INSTRUMENTS[stage].read(Completion(text=text, finish=finish, usage=Usage()))
    assert isinstance(json.loads(reading.body), dict)
    assert bool(reading.reason) == (reading.status != "complete")


@pytest.mark.parametrize(
    ("stage", "coords", "what"),
    [
        ("survey", Coords(model="small", persona="ann", group="neutral"), "no instrument reads stage 'survey'"),
        ("task", Coords(model="small", persona="eve", group="neutral", task="apartment"), "persona 'eve'"),
        ("task", Coords(model="small", persona="ann", group="neutral", task="sing"), "task 'sing'"),
        ("accum", Coords(model="small", persona="bob", group="neutral", round=1), "the script of 'bob'"),
    ],
    ids=["stage", "persona", "task", "script"],
)
def test_cell_of_another_design_is_a_user_error(
    stage: str, coords: Coords, what: str, design: Design, answer: Callable[..., Completion]
) -> None:
    """Reading a store with the wrong sweep file says what does not fit."""
    with pytest.raises(UserError, match=what):
        SweepReader(design, compose).read(stage, coords_json(coords), answer("x"))


def test_bodies_have_what_the_sql_views_read(answer: Callable[..., Completion]) -> None:
    """The JSON fields by which views.sql reads results exist in each stage's body."""
    wanted = {
        Stage.PROBE: {"inferences"},
        Stage.PROBE_JUDGE: {"labels", "accuracy", "claims"},
        Stage.TASK: {"characters"},
        Stage.AUDIT: {"labels", "claims"},
        Stage.JUDGE: {"labels", "accuracy", "claims"},
        Stage.ACCUM: {"inferred", "observed_count"},
    }
    for stage, fields in wanted.items():
        assert fields <= json.loads(INSTRUMENTS[stage].read(answer(GOOD[stage])).body).keys()


@pytest.mark.parametrize("stages", STAGE_SETS, ids=lambda stages: "+".join(sorted(stages)) or "none")
def test_what_feeds_a_stage_is_what_its_questions_follow_from(
    stages: frozenset[Stage], vary: Callable[..., Design]
) -> None:
    """Every follow-up comes from a stage that is named as feeding it, and no stage feeds one that is left out."""
    design = vary(stages=stages)
    found, reader = feeds(design), SweepReader(design, compose)
    followed = set()
    for cell in unfold(design, GOOD):
        completion = Completion(text=GOOD[Stage(cell.stage)], finish=Finish.STOP, usage=Usage())
        followed |= {(each.stage, cell.stage) for each in reader.read(cell.stage, cell.coords, completion).follow_ups}
    named = {(stage, parent) for stage, parents in found.items() for parent in parents}
    assert followed <= named
    assert {stage for stage, _ in named} <= stages
    assert set(found) == set(Stage)


def test_feeds_of_the_whole_benchmark(design: Design, vary: Callable[..., Design]) -> None:
    """Roots have none; a round leads to the next one, unless there is only one."""
    assert feeds(design) == {
        "probe": frozenset(),
        "probe_judge": {"probe"},
        "task": frozenset(),
        "audit": {"task"},
        "judge": {"task"},
        "accum": {"accum"},
    }
    assert feeds(vary(rounds=1))["accum"] == frozenset()
