"""Samples of sweeps whose personas are not the shipped ones: imported, generated, or both."""

from contextlib import closing
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from bench.cli import main
from bench.personafiles import write_personas
from instruments.annotation.store import open_annotations
from instruments.annotation.testing import JUDGE
from instruments.personas import Persona, load_personas

Slot = Literal["imported", "generated"]


def own(number: int) -> Persona:
    """Return a persona of nobody's but this test's: a shipped one under another id, with facts of its own."""
    facts = (f"I mend nets number {number}.", "I live by the sea.", "I have two cats.")
    return msgspec.structs.replace(load_personas()[number], id=f"own_{number:03}", facts=facts)


def use(store: Path, files: dict[Slot, Path], personas: list[Persona]) -> None:
    """Let the store's sweep have used `personas` in the place of its first ones, from files that its own file names."""
    with closing(open_annotations(store)) as connection:
        for persona, shipped in zip(personas, load_personas(), strict=False):
            connection.execute(
                "UPDATE cell SET coords = json_set(coords, '$.persona', ?) WHERE coords ->> '$.persona' = ?",
                (persona.id, shipped.id),
            )
        text = "\n".join(f'{slot}_personas = "{file}"' for slot, file in files.items())
        manifest = {"judges": [JUDGE], "sweep_file": f'name = "s"\n{text}\n[budget]\nusd = 1'}
        connection.execute("UPDATE sweep SET manifest = ?", (msgspec.json.encode(manifest).decode(),))


def sample(capsys: pytest.CaptureFixture[str], store: Path, *more: object) -> tuple[object, str]:
    """Draw all claims; return the exit code and what was said in errors."""
    with pytest.raises(SystemExit) as ended:
        main(["annotate", "sample", str(store), "--size", "864", "--name", "all", *map(str, more)])
    return ended.value.code, capsys.readouterr().err


def shown_facts(store: Path) -> set[str]:
    """Return the first facts that annotators of the sample see."""
    query = "SELECT DISTINCT i.facts ->> '$[0]' FROM annotation_item i JOIN annotation_sample s ON s.id = i.sample_id"
    with closing(open_annotations(store)) as connection:
        return {fact for (fact,) in connection.execute(f"{query} WHERE s.name = 'all'")}


@pytest.mark.parametrize("slots", [["imported"], ["generated"], ["imported", "generated"]], ids="+".join)
def test_the_files_that_the_sweep_names_are_read(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], slots: list[Slot]
) -> None:
    """Nobody has to say again where its personas are."""
    personas = [own(number) for number in range(len(slots))]
    files = {slot: tmp_path / f"{slot}.toml" for slot in slots}
    for file, persona in zip(files.values(), personas, strict=True):
        write_personas(file, [persona], [])
    use(store, files, personas)
    assert sample(capsys, store) == (0, "")
    assert {persona.facts[0] for persona in personas} <= shown_facts(store)


def test_files_that_have_moved_are_given(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without them it is one line that says how; with them the sample is drawn."""
    personas = [own(0), own(1)]
    lost: dict[Slot, Path] = {"imported": tmp_path / "lost.toml", "generated": tmp_path / "too.toml"}
    use(store, lost, personas)
    code, err = sample(capsys, store)
    assert (code, err.count("\n")) == (2, 1)
    assert f"{tmp_path / 'lost.toml'}); give it with --persona-file" in err
    moved = [tmp_path / f"moved{number}.toml" for number in range(2)]
    for file, persona in zip(moved, personas, strict=True):
        write_personas(file, [persona], [])
    assert sample(capsys, store, "--persona-file", moved[0], "--persona-file", moved[1]) == (0, "")
    assert {persona.facts[0] for persona in personas} <= shown_facts(store)


def test_a_persona_that_no_file_has_is_named(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of other personas does not help."""
    write_personas(tmp_path / "other.toml", [own(5)], [])
    use(store, {}, [own(0)])
    code, err = sample(capsys, store, "--persona-file", tmp_path / "other.toml")
    assert code == 2
    assert "persona 'own_000' of the sweep is unknown" in err
