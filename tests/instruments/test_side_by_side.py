"""Several judges and several samples side by side, and the neutral memory prompt, from plan to last round."""

import json
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from engine.cell import Cell
from engine.request import Completion, Finish, Request, Usage
from instruments.accum import MemoryBody
from instruments.instrument import Ask, Coords, Design, Stage
from instruments.reader import SweepReader, coords_json, count_asks, plan

REPLIES = {
    Stage.PROBE: '[{"claim": "c", "type": "inferred", "reasoning": "r"}]',
    Stage.PROBE_JUDGE: "[]",
    Stage.TASK: "You live in a loft.",
    Stage.AUDIT: "[]",
    Stage.JUDGE: "[]",
}


def compose(ask: Ask) -> Cell:
    request = Request(
        provider="none", model=ask.alias, messages=ask.messages, decoding=ask.decoding, sample=ask.coords.sample
    )
    return Cell(stage=ask.stage, alias=ask.alias, coords=coords_json(ask.coords), request=request)


def place(cell: Cell) -> Coords:
    return msgspec.json.decode(cell.coords, type=Coords)


def memory(cell: Cell) -> str:
    """Return a memory that keeps what it was shown, but for the first attribute, and adds one."""
    coords = place(cell)
    known = [
        f"round {number} of sample {coords.sample}" for number in range(max(1, coords.round - 1), coords.round + 1)
    ]
    return json.dumps({"observed": [], "preferences": known, "demographics": []})


def unfold(design: Design) -> list[tuple[Cell, bytes]]:
    """Return every cell of a sweep with the body of its reading."""
    reader, queue, done = SweepReader(design, compose), [compose(ask) for ask in plan(design)], []
    for cell in queue:
        text = memory(cell) if cell.stage == Stage.ACCUM else REPLIES[Stage(cell.stage)]
        read = reader.read(cell.stage, cell.coords, Completion(text=text, finish=Finish.STOP, usage=Usage()))
        done.append((cell, read.reading.body))
        queue.extend(read.follow_ups)
    return done


@pytest.fixture
def three(vary: Callable[..., Design]) -> Design:
    """Two judges, three samples, the neutral memory prompt."""
    return vary(samples=3, memory_prompt="neutral")


def test_every_answer_of_every_sample_meets_every_judge_once(three: Design) -> None:
    """No judge sees another sample's answer, none is left out."""
    cells = [cell for cell, _ in unfold(three)]
    judged = Counter(
        (each.model, each.persona, each.task, each.sample, each.judge)
        for each in (place(cell) for cell in cells if cell.stage == Stage.JUDGE)
    )
    answered = [place(cell) for cell in cells if cell.stage == Stage.TASK]
    assert set(judged.values()) == {1}
    assert set(judged) == {
        (each.model, each.persona, each.task, each.sample, judge) for each in answered for judge in three.judges
    }
    assert len(judged) == 2 * 2 * 6 * 3 * 2


def test_probes_meet_every_judge_too(three: Design) -> None:
    """Two subjects, two personas, three samples, two judges."""
    places = [place(cell) for cell, _ in unfold(three) if cell.stage == Stage.PROBE_JUDGE]
    assert Counter(each.judge for each in places) == {"strict": 12, "mild": 12}


def test_samples_are_calls_of_their_own(three: Design) -> None:
    """Equal prompts, other sample numbers: three answers are paid for, none is used twice."""
    tasks = [cell for cell, _ in unfold(three) if cell.stage == Stage.TASK]
    assert len({cell.request for cell in tasks}) == len(tasks) == 2 * 2 * 6 * 3
    assert len({(cell.request.model, cell.request.messages) for cell in tasks}) == len(tasks) // 3


def test_equal_answers_to_one_judge_are_calls_of_their_own(three: Design) -> None:
    """Where two samples say the same, the judge is asked about both: agreement over samples needs both."""
    judged = [cell for cell, _ in unfold(three) if cell.stage == Stage.JUDGE and place(cell).judge == "strict"]
    by_sample = {place(cell).sample: cell.request for cell in judged if place(cell).task == "apartment"}
    assert len({request.messages for request in by_sample.values()}) == 1
    assert len(set(by_sample.values())) == 3


def test_everything_is_counted_beforehand(three: Design) -> None:
    """Questions by stage and alias."""
    cells = [cell for cell, _ in unfold(three)]
    assert dict(Counter((Stage(cell.stage), cell.alias) for cell in cells)) == count_asks(three)


def test_the_neutral_prompt_is_used_in_every_round(three: Design) -> None:
    """And named in the coordinates, so that both variants stand side by side in one table."""
    rounds = [cell for cell, _ in unfold(three) if cell.stage == Stage.ACCUM]
    assert {place(cell).prompt for cell in rounds} == {three.prompts.tag("accum_neutral")}
    assert all(
        "Revise or remove earlier entries where appropriate." in cell.request.messages[0].content for cell in rounds
    )
    assert Counter(place(cell).round for cell in rounds) == {1: 6, 2: 6, 3: 6}


def test_every_sample_is_a_chain_with_its_own_memory(three: Design) -> None:
    """A round sees what its own sample returned, pruned as the model pruned it."""
    for cell, body in unfold(three):
        coords = place(cell)
        if cell.stage != Stage.ACCUM or coords.round == 1:
            continue
        shown = cell.request.messages[0].content
        assert f"round {coords.round - 1} of sample {coords.sample}" in shown
        assert all(f"of sample {other}" not in shown for other in range(3) if other != coords.sample)
        kept = msgspec.json.decode(body, type=MemoryBody).inferred
        assert kept == tuple(f"round {number} of sample {coords.sample}" for number in (coords.round - 1, coords.round))


def test_both_memory_prompts_are_other_calls(vary: Callable[..., Design]) -> None:
    """Nothing of one variant is taken for the other."""
    retain, neutral = (
        {compose(ask).request for ask in plan(vary(stages=frozenset({Stage.ACCUM}), memory_prompt=name))}
        for name in ("retain", "neutral")
    )
    assert retain.isdisjoint(neutral)
    assert len(retain) == len(neutral) == 4
