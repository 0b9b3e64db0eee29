"""Was an inference retracted that a later message contradicts? Store and manifest hold all that the question needs."""

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from analysis.accumulation import normalised, retraction, sharing_words
from bench.manifest import Manifest, plan_hash
from bench.run import Prepared, prepare, run_job, sweep_job
from bench.sweepfile import parse_sweep
from engine.events import Notice, Snapshot
from engine.request import Request
from engine.testing import Answer, ScriptedProvider
from instruments.personas import load_scripts

SWEEP = 'name = "s"\nmodels = ["gpt-4o-mini"]\nstages = ["accum"]\npersonas = ["seed_001", "seed_006", "seed_003"]\n'
OVERTURNED = "loves nature trips with outdoors people"


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's own settings out of the tests."""
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


def prepared(folder: Path, text: str = "") -> Prepared:
    return prepare(parse_sweep(SWEEP + text, folder / "sweep.toml"), store=folder / "s.sqlite")


def test_the_manifest_names_every_contradiction(tmp_path: Path) -> None:
    """By persona that has one, round and inference; personas whose script has none are left out."""
    found = prepared(tmp_path, "accum_personas = 3\n").manifest.contradictions
    scripts = load_scripts()
    assert found == {name: scripts[name].contradiction for name in ("seed_001", "seed_006")}
    assert msgspec.to_builtins(found)["seed_001"] == {
        "round": 7,
        "contradicts": "is an outdoors person who enjoys nature trips",
    }


def test_rounds_that_the_sweep_does_not_have_contradict_nothing(tmp_path: Path) -> None:
    """Seven rounds never reach the eighth message."""
    assert set(prepared(tmp_path, "rounds = 7\n").manifest.contradictions) == {"seed_001"}


def test_manifests_of_before_are_still_read(tmp_path: Path) -> None:
    """The key is new; an older sweep goes on, and its plan is the same."""
    manifest = prepared(tmp_path).manifest
    old = msgspec.to_builtins(manifest)
    del old["contradictions"]
    again = msgspec.json.decode(msgspec.json.encode(old), type=Manifest)
    assert (again.contradictions, plan_hash(again)) == ({}, plan_hash(manifest))


def remembering(request: Request, _times: int) -> Answer:
    """Keep the overturned inference for ever, drop another one in round 7."""
    passing = [] if "(round 7)" in request.messages[0].content else ["likes ragù"]
    return json.dumps({"observed": ["climbs"], "preferences": [OVERTURNED, *passing], "demographics": []})


async def test_the_view_and_the_manifest_suffice_for_the_audit(tmp_path: Path) -> None:
    """From a real store: what was contradicted stayed, although another attribute went in the same round."""
    sweep = prepared(tmp_path, "accum_personas = 1\n")
    model = ScriptedProvider(remembering, name="openai")
    await run_job(sweep_job(sweep), listen=_ignore, watch=_look, providers={"openai": model})
    with closing(sqlite3.connect(tmp_path / "s.sqlite")) as connection:
        manifest = connection.execute("SELECT manifest FROM sweeps").fetchone()[0]
        rows = connection.execute("SELECT inferred FROM memories ORDER BY round").fetchall()
    said = json.loads(manifest)["contradictions"]["seed_001"]
    states = [set(json.loads(row[0])) for row in rows]
    overturned = sharing_words(states[said["round"] - 2], said["contradicts"])
    assert (len(states), overturned) == (8, frozenset({normalised(OVERTURNED)}))
    found = retraction([states], [(0, said["round"], overturned)])
    assert (found.held, found.retracted, found.retracted_by_end) == (1, 0, 0)
    assert (found.other_held, found.other_removed) == (1, 1)


def _ignore(_notice: Notice) -> None:
    return


def _look(_snapshot: Callable[[], Snapshot], _expected: Mapping[str, int]) -> None:
    return
