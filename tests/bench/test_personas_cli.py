"""`mirage personas`: what people see, and what is written where."""

import json
from pathlib import Path

import pytest

from bench.cli.main import main
from bench.design import build_design
from bench.personafiles import import_personas, personas_folder
from bench.run import user_catalog
from bench.sweepfile import load_sweep, parse_sweep
from engine.errors import UserError
from instruments.personas import Source, load_persona_file

MINI = Path(__file__).parents[1] / "data" / "personamem_mini.csv"
SWEEP = 'name = "s"\nmodels = ["gpt-5.5"]\njudges = ["claude-opus-4-7"]\n'


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the user's own data and settings out of the tests."""
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return tmp_path


def mirage(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Return exit code, output and errors of a command."""
    with pytest.raises(SystemExit) as end:
        main([str(each) for each in arguments])
    captured = capsys.readouterr()
    return int(end.value.code or 0), captured.out, captured.err


def test_import_writes_to_the_users_data_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """And says how many, from where, what was left out, and how to use them."""
    code, out, _ = mirage(capsys, "personas", "import", MINI)
    file = personas_folder() / "imported.toml"
    assert (code, file.is_file()) == (0, True)
    assert f"4 personas from 37 rows: {file}" in out
    assert "1 looks like a secret" in out
    assert "70 were asked for; the file allows no more" in out
    assert f'imported_personas = "{file}"' in out
    assert len(load_persona_file(file)) == 4


def test_import_twice_gives_the_same_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The seed decides, not the day."""
    for name in ("a.toml", "b.toml"):
        mirage(capsys, "personas", "import", MINI, "--out", tmp_path / name, "--seed", "3", "--number", "2")
    mirage(capsys, "personas", "import", MINI, "--out", tmp_path / "c.toml", "--seed", "4", "--number", "2")
    first, again, other = (tmp_path.joinpath(name).read_bytes() for name in ("a.toml", "b.toml", "c.toml"))
    assert first == again != other
    assert len(load_persona_file(tmp_path / "a.toml")) == 2


def test_imported_personas_pass_validation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the program writes, the program accepts."""
    mirage(capsys, "personas", "import", MINI, "--out", tmp_path / "own.toml")
    assert mirage(capsys, "personas", "validate", tmp_path / "own.toml")[:2] == (0, "4 personas, no problem\n")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(None, "cannot be read", id="missing"),
        pytest.param(b"\xff\xfe\x00", "not UTF-8", id="no text"),
        pytest.param(b"a,b\n1,2\n", "has no persona_id", id="another table"),
        pytest.param(b"", "no persona can be made", id="empty"),
        pytest.param(b'a\n"' + b"x" * 200_000 + b'"\n', "has no persona_id", id="long field"),
    ],
)
def test_a_wrong_csv_is_one_line(
    data: bytes | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, and no file is written."""
    source, out = tmp_path / "some.csv", tmp_path / "out.toml"
    if data is not None:
        source.write_bytes(data)
    code, _, err = mirage(capsys, "personas", "import", source, "--out", out)
    assert (code, err.count("\n"), out.exists()) == (2, 1, False)
    assert says in err


def test_a_failed_import_leaves_the_old_file(tmp_path: Path) -> None:
    """A folder that cannot be written to is the user's mistake; nothing half-written stays."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="choose another --out"):
        import_personas(MINI, tmp_path / "file" / "out.toml", number=2, seed=0)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_sweep_uses_imported_personas_in_place_of_the_shipped(tmp_path: Path) -> None:
    """`imported_personas` in the sweep file; everything else stays."""
    import_personas(MINI, tmp_path / "own.toml", number=4, seed=0)
    path = tmp_path / "sweep.toml"
    path.write_text(f'{SWEEP}imported_personas = "{tmp_path / "own.toml"}"\n', encoding="utf-8")
    loaded = load_sweep(path)
    personas = build_design(loaded, user_catalog(loaded)).personas.values()
    imported = [persona for persona in personas if persona.source is Source.IMPORTED]
    assert len(imported) == 4
    assert len(personas) == 84
    assert all(persona.provenance for persona in imported)


def test_a_sweep_uses_generated_personas_in_place_of_the_shipped(tmp_path: Path) -> None:
    """`generated_personas` likewise."""
    import_personas(MINI, tmp_path / "own.toml", number=4, seed=0)
    text = (tmp_path / "own.toml").read_text("utf-8").replace('"imported"', '"generated"')
    (tmp_path / "own.toml").write_text(text, encoding="utf-8")
    loaded = parse_sweep(f'{SWEEP}generated_personas = "{tmp_path / "own.toml"}"\n', tmp_path / "s.toml")
    assert len(build_design(loaded, user_catalog(loaded)).personas) == 82


def test_ids_that_shipped_personas_have_are_refused(tmp_path: Path) -> None:
    """One persona never hides another."""
    import_personas(MINI, tmp_path / "own.toml", number=1, seed=0)
    text = (tmp_path / "own.toml").read_text("utf-8").replace('id = "pm2_', 'id = "seed_001" #')
    (tmp_path / "own.toml").write_text(text, encoding="utf-8")
    loaded = parse_sweep(f'{SWEEP}imported_personas = "{tmp_path / "own.toml"}"\n', tmp_path / "s.toml")
    with pytest.raises(UserError, match="two personas have the id seed_001"):
        build_design(loaded, user_catalog(loaded))


def test_the_shipped_personas_and_conversations_validate(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a file, all of it is checked."""
    assert mirage(capsys, "personas", "validate")[:2] == (0, "150 personas, no problem\n")


def test_problems_are_listed_and_end_with_a_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each, with the mend."""
    import_personas(MINI, tmp_path / "own.toml", number=2, seed=0)
    text = (tmp_path / "own.toml").read_text("utf-8").replace("age = 44", "age = 17").replace("age = 59", "age = 8")
    (tmp_path / "own.toml").write_text(text, encoding="utf-8")
    code, out, _ = mirage(capsys, "personas", "validate", tmp_path / "own.toml")
    assert code == 2
    assert "17 is outside 18..80; choose an adult age" in out
    assert out.endswith("2 personas, 2 problems\n")


def test_show_marks_what_the_facts_give_away(capsys: pytest.CaptureFixture[str]) -> None:
    """Facts, profile, conversation and its turn."""
    code, out, _ = mirage(capsys, "personas", "show", "seed_001")
    assert code == 0
    assert "* pet: a cat named Pixel" in out
    assert "  city: Seattle" in out
    assert "round 7 contradicts: the user is an outdoors person" in out


def test_show_names_the_way_to_find_an_id(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt id is the user's mistake."""
    code, _, err = mirage(capsys, "personas", "show", "seed_999")
    assert code == 2
    assert "there is no persona `seed_999`" in err
    assert "mirage personas list" in err


def test_show_never_drives_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Personas that a model or a data set wrote are foreign text."""
    import_personas(MINI, tmp_path / "own.toml", number=1, seed=0)
    text = (tmp_path / "own.toml").read_text("utf-8").replace("I'm a", "\\u001b[31mI'm a")
    (tmp_path / "own.toml").write_text(text, encoding="utf-8")
    (persona,) = load_persona_file(tmp_path / "own.toml")
    out = mirage(capsys, "personas", "show", persona.id, "--file", tmp_path / "own.toml")[1]
    assert "\x1b" not in out
    assert "PersonaMem-v2 persona" in out


def test_list_names_every_persona(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a table and as JSON."""
    assert "seed_001" in mirage(capsys, "personas", "list")[1]
    listed = json.loads(mirage(capsys, "personas", "list", "--json")[1])
    assert len(listed) == 150
    assert {"id", "group", "source", "facts", "attributes"} <= listed[0].keys()
