"""`mirage reparse`: stored answers are read again, nothing is asked, nothing paid for is lost."""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bench.cli.main import main
from bench.personafiles import import_personas
from bench.reparse import Change, Reparsed, reader_of, reparse
from bench.run import Result, prepare, run_job, sweep_job
from bench.sweepfile import load_sweep
from engine.cell import Read, Reader
from engine.errors import StoreError, UserError
from engine.events import Notice, Outcome, Snapshot
from engine.request import Completion, Request
from engine.store import Store, Sweep
from engine.testing import Answer, ScriptedProvider

MINI = Path(__file__).parents[1] / "data" / "personamem_mini.csv"
JUDGED = '[{"claim": "likes tea", "category": "GROUNDED", "accuracy": "CORRECT"}]'
AUDITED = '[{"claim": "likes tea", "category": "GROUNDED", "reasoning": "said so"}]'
MEMORY = '{"observed": [], "preferences": ["tea"], "personality_traits": [], "demographics": [], "predictions": []}'
BASE = 'name = "s"\nmodels = ["gpt-4o-mini"]\npersonas = ["seed_001"]\ntasks = ["stress_source"]\nrounds = 3\n'
WHOLE = BASE + 'judges = ["claude-opus-4-7"]\naccum_personas = 1\nstages = ["task", "audit", "judge", "accum"]\n'


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's own data, settings and keys out of the tests."""
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def answer(request: Request, _times: int) -> Answer:
    """Answer whatever stage it is."""
    asked = request.messages[-1].content
    if asked.startswith("## Evidence"):
        return JUDGED
    if asked.startswith("You were just asked to"):
        return AUDITED
    return MEMORY if asked.startswith("Current memory") else "Deadlines stress you."


async def run(folder: Path, text: str) -> tuple[Result, list[Request]]:
    """Run a sweep with scripted models; return how it ended and what was sent."""
    path = folder / "sweep.toml"
    path.write_text(text, encoding="utf-8")
    prepared = prepare(load_sweep(path), store=folder / "s.sqlite")
    models = {name: ScriptedProvider(answer, name=name) for name in ("openai", "anthropic")}
    result = await run_job(sweep_job(prepared), listen=_ignore, watch=_look, providers=models)
    return result, [request for model in models.values() for request in model.seen]


def _ignore(_notice: Notice) -> None:
    return


def _look(_snapshot: Callable[[], Snapshot], _expected: Mapping[str, int]) -> None:
    return


def sql(folder: Path, statement: str) -> list[Any]:
    """Run a statement on the store, as an older version would have left it."""
    with closing(sqlite3.connect(folder / "s.sqlite", isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


def dump(folder: Path) -> list[Any]:
    """Return everything that reading decides."""
    cells = "SELECT stage, coords, reading_status, reading_reason, reading_version, body, parent_id"
    return sql(folder, f"{cells} FROM cell LEFT JOIN reading ON cell_id = id ORDER BY id")


def requests(folder: Path) -> int:
    return int(sql(folder, "SELECT count(*) FROM request")[0][0])


async def one(folder: Path, **options: Any) -> Reparsed:
    (found,) = await reparse(folder / "s.sqlite", **options)
    return found


async def test_readings_that_are_the_same_are_not_touched(tmp_path: Path) -> None:
    """A task, its audit and judgement, three rounds; all kept as they are."""
    result, sent = await run(tmp_path, WHOLE)
    before = dump(tmp_path)
    found = await one(tmp_path)
    assert (result.outcome, len(sent)) == (Outcome.COMPLETE, 6)
    assert (found.answers, found.changes, found.planned) == (6, (), {})
    assert found.kept == {"audit": 1, "judge": 1, "accum": 2}
    assert (found.reworded, found.unasked, found.outside, found.defects) == (0, 0, 0, 0)
    assert dump(tmp_path) == before


async def test_readings_of_an_older_reader_are_redone_and_counted(tmp_path: Path) -> None:
    """By stage, from what to what; a second time finds nothing to do."""
    await run(tmp_path, WHOLE)
    good = dump(tmp_path)
    sql(tmp_path, "UPDATE cell SET reading_status = 'unreadable', reading_reason = 'old' WHERE stage = 'judge'")
    sql(tmp_path, "UPDATE cell SET reading_status = NULL, reading_version = NULL WHERE stage = 'audit'")
    sql(tmp_path, "UPDATE reading SET body = '{}' WHERE cell_id = (SELECT id FROM cell WHERE stage = 'task')")
    sql(tmp_path, "UPDATE cell SET reading_version = 0 WHERE stage = 'accum' AND coords ->> 'round' = 3")
    found = await one(tmp_path)
    assert found.changes == (
        Change(stage="accum", before="complete", after="complete", cells=1),
        Change(stage="audit", before="unread", after="complete", cells=1),
        Change(stage="judge", before="unreadable", after="complete", cells=1),
        Change(stage="task", before="complete", after="complete", cells=1),
    )
    assert dump(tmp_path) == good
    assert (await one(tmp_path)).changes == ()


async def test_a_judge_added_later_is_planned_for_old_answers(tmp_path: Path) -> None:
    """New follow-ups are planned, once, and the next run sends just these."""
    await run(tmp_path, BASE + 'stages = ["task"]\n')
    wider = BASE + 'judges = ["claude-opus-4-7"]\nstages = ["task", "judge"]\n'
    assert (await run(tmp_path, wider))[1] == []
    first, again = await one(tmp_path), await one(tmp_path)
    assert (first.planned, first.kept) == ({"judge": 1}, {})
    assert (again.planned, again.kept) == ({}, {"judge": 1})
    result, sent = await run(tmp_path, wider)
    assert (result.outcome, len(sent)) == (Outcome.COMPLETE, 1)
    assert sent[0].messages[-1].content.startswith("## Evidence")


async def test_follow_ups_that_would_be_worded_otherwise_are_kept(tmp_path: Path) -> None:
    """They are paid for; no second request is planned beside them, and the report says so."""
    await run(tmp_path, WHOLE)
    sql(tmp_path, "UPDATE completion SET text = 'Something else.' WHERE text LIKE 'Deadlines%'")
    count = requests(tmp_path)
    found = await one(tmp_path)
    assert (found.reworded, found.planned) == (2, {})
    assert found.changes == (Change(stage="task", before="complete", after="complete", cells=1),)
    assert requests(tmp_path) == count


async def test_follow_ups_that_would_not_be_asked_are_kept(tmp_path: Path) -> None:
    """An answer that is now unreadable keeps its judgement."""
    await run(tmp_path, WHOLE)
    sql(tmp_path, "UPDATE completion SET text = '' WHERE text LIKE 'Deadlines%'")
    cells = len(dump(tmp_path))
    found = await one(tmp_path)
    assert found.unasked == 2
    assert found.changes == (Change(stage="task", before="complete", after="unreadable", cells=1),)
    assert len(dump(tmp_path)) == cells


async def test_answers_outside_of_the_design_are_left(tmp_path: Path) -> None:
    """A sweep may have dropped a persona since; its answers keep their readings."""
    wide = BASE.replace('["seed_001"]', '["seed_001", "seed_002"]') + 'stages = ["task"]\n'
    await run(tmp_path, wide)
    await run(tmp_path, BASE + 'stages = ["task"]\n')
    sql(tmp_path, "UPDATE cell SET reading_version = 0")
    found = await one(tmp_path)
    assert (found.answers, found.outside) == (2, 1)
    assert [change.cells for change in found.changes] == [1]


class _Broken:
    """A reader with a defect in one stage."""

    def __init__(self, inner: Reader) -> None:
        self._inner = inner

    def read(self, stage: str, coords: bytes, completion: Completion) -> Read:
        if stage == "judge":
            raise ZeroDivisionError("in the reader")
        return self._inner.read(stage, coords, completion)


async def test_a_defect_in_a_reader_leaves_the_old_reading(tmp_path: Path) -> None:
    """Counted, with its own words."""

    def broken(sweep: Sweep, path: Path) -> Reader:
        return _Broken(reader_of(sweep, path))

    await run(tmp_path, WHOLE)
    before = dump(tmp_path)
    found = await one(tmp_path, find_reader=broken)
    assert found.defects == 1
    assert "ZeroDivisionError: in the reader" in found.defect
    assert dump(tmp_path) == before


async def test_changed_personas_are_refused_before_anything_is_changed(tmp_path: Path) -> None:
    """Old answers are never read with other facts or another profile."""
    own = tmp_path / "own.toml"
    import_personas(MINI, own, number=2, seed=0)
    text = BASE.replace('["seed_001"]', '["pm2_0007"]') + f'stages = ["task"]\nimported_personas = "{own}"\n'
    await run(tmp_path, text)
    sql(tmp_path, "UPDATE cell SET reading_version = 0")
    before = dump(tmp_path)
    own.write_text(own.read_text("utf-8").replace("age = 44", "age = 45"), encoding="utf-8")
    with pytest.raises(UserError, match=r"begun with other personas \(pm2_0007\)") as caught:
        await reparse(tmp_path / "s.sqlite")
    assert "\n" not in str(caught.value)
    assert dump(tmp_path) == before


async def test_a_store_at_work_is_left_alone(tmp_path: Path) -> None:
    """One writer at a time."""
    await run(tmp_path, WHOLE)
    async with await Store.open(tmp_path / "s.sqlite"):
        with pytest.raises(StoreError, match="another run is working on this store"):
            await reparse(tmp_path / "s.sqlite")


async def test_every_sweep_of_a_store_is_read_again(tmp_path: Path) -> None:
    """Or the one that is named."""
    await run(tmp_path, WHOLE)
    await run(tmp_path, WHOLE.replace('name = "s"', 'name = "t"'))
    path = tmp_path / "s.sqlite"
    assert [found.sweep for found in await reparse(path)] == ["s", "t"]
    assert [found.sweep for found in await reparse(path, "t")] == ["t"]
    with pytest.raises(StoreError, match="it has: s, t"):
        await reparse(path, "u")


async def test_answers_that_two_sweeps_share_are_read_for_both(tmp_path: Path) -> None:
    """A cell that joined another sweep's request has its own reading."""
    await run(tmp_path, WHOLE)
    assert (await run(tmp_path, WHOLE.replace('name = "s"', 'name = "t"')))[1] == []
    sql(tmp_path, "UPDATE cell SET reading_version = 0 WHERE stage = 'judge'")
    found = await reparse(tmp_path / "s.sqlite")
    assert [each.changes[0].cells for each in found] == [1, 1]


async def test_chains_are_read_to_their_end_in_one_pass(tmp_path: Path) -> None:
    """A follow-up that is planned on the way and already answered is read too."""
    await run(tmp_path, WHOLE)
    sql(
        tmp_path,
        "DELETE FROM reading WHERE cell_id IN (SELECT id FROM cell WHERE stage = 'accum' AND coords ->> 'round' > 1)",
    )
    sql(tmp_path, "DELETE FROM cell WHERE stage = 'accum' AND coords ->> 'round' > 1")
    found = await one(tmp_path)
    assert found.planned == {"accum": 2}
    assert Change(stage="accum", before="unread", after="complete", cells=2) in found.changes
    assert (await run(tmp_path, WHOLE))[1] == []


def test_a_missing_store_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong path is the user's mistake."""
    with pytest.raises(SystemExit) as end:
        main(["reparse", str(tmp_path / "none.sqlite")])
    assert end.value.code == 2
    assert "there is no such store" in capsys.readouterr().err
    assert not list(tmp_path.glob("none*"))


async def _made(folder: Path) -> None:
    await run(folder, WHOLE)
    sql(folder, "UPDATE cell SET reading_version = 0 WHERE stage = 'judge'")


def test_the_command_says_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In words, and as JSON."""
    asyncio.run(_made(tmp_path))
    for arguments in ([], ["--json"]):
        with pytest.raises(SystemExit) as end:
            main(["reparse", str(tmp_path / "s.sqlite"), *arguments])
        assert end.value.code == 0
    words, _, rest = capsys.readouterr().out.partition("[")
    assert "sweep s: 6 answers read again, 1 came out otherwise" in words
    assert "judge: 1 complete -> complete (other content)" in words
    assert "follow-ups kept as they were planned: 4" in words
    assert json.loads("[" + rest)[0]["changes"] == []
