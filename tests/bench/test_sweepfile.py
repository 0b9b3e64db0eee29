"""The sweep file: what it accepts, and how it answers mistakes."""

import os
from pathlib import Path
from typing import get_args

import pytest

from bench.filewords import EXAMPLES
from bench.run import prepare, routes
from bench.sweepfile import (
    BatchTable,
    BudgetTable,
    CapTable,
    GenerateFile,
    GenerateTable,
    LimitTable,
    ModesTable,
    RetryTable,
    StageOrAll,
    StageTable,
    SweepFile,
    batch_policy,
    caps,
    load_file,
    load_generation,
    load_sweep,
    parse_sweep,
)
from engine.batch.policy import BatchPolicy
from engine.errors import UserError
from engine.ledger import Cap, Scope
from instruments.instrument import Stage

README = Path(__file__).parents[2] / "README.md"
MINIMAL = 'name = "s"\nmodels = ["gpt-5.5"]\njudges = ["claude-opus-4-7"]\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "sweep.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_minimal_sweep_has_the_papers_defaults(tmp_path: Path) -> None:
    """Every stage, every persona, one sample, eight rounds with two personas."""
    sweep = load_sweep(written(tmp_path, MINIMAL)).sweep
    assert (sweep.personas, sweep.tasks, sweep.samples, sweep.rounds) == ("all", "all", 1, 8)
    assert len(sweep.stages) == 6
    assert len(prepare(load_sweep(written(tmp_path, MINIMAL))).design.scripts) == 2


def test_the_store_is_named_after_the_sweep(tmp_path: Path) -> None:
    """Unless the file says otherwise."""
    assert load_sweep(written(tmp_path, MINIMAL)).store_path == Path("runs/s.sqlite")
    assert load_sweep(written(tmp_path, MINIMAL + 'store = "x.db"\n')).store_path == Path("x.db")


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        pytest.param(MINIMAL + "modls = 1\n", "did you mean `model", 4, id="misspelled field"),
        pytest.param(
            MINIMAL + 'samples = "three"\n', "samples: must be a whole number, not a text", 4, id="wrong type"
        ),
        pytest.param(MINIMAL + "samples = 0\n", "samples", 4, id="out of range"),
        pytest.param('name = "a b"\nmodels = ["x"]\n', "name", 1, id="name with a space"),
        pytest.param(MINIMAL + "\n[budget]\nusd = []\n", "budget.usd", 6, id="in a table"),
        pytest.param(
            MINIMAL + '\n[budget.model."gpt-5.5"]\ndollars = 3\n', "knows no `dollars`", 6, id="in a sub-table"
        ),
        pytest.param(MINIMAL + 'stages = ["probes"]\n', "stages", 4, id="unknown stage"),
        pytest.param(
            MINIMAL + 'mode = "batches"\n', "mode: `batches` is not one of auto, batch, stream", 4, id="unknown mode"
        ),
        pytest.param(
            MINIMAL + '[modes.stage]\njudges = "batch"\n',
            "modes.stage: `judges` is not one of probe",
            4,
            id="mode of no stage",
        ),
        pytest.param(MINIMAL + '[modes]\njudge = "batch"\n', "write [modes.stage]", 5, id="mode without its table"),
        pytest.param(MINIMAL + '[modes.model]\n"gpt-5.5" = 3\n', "modes.model: must be", 5, id="mode of a number"),
        pytest.param(
            MINIMAL + "[batch]\ndeadline = 3\n", "did you mean `deadline_hours`", 5, id="no such field of batches"
        ),
        pytest.param(MINIMAL + "[batch]\ndeadline_hours = 0\n", "batch.deadline_hours", 5, id="no time at all"),
        pytest.param(MINIMAL + "[batch]\ndeadline_hours = inf\n", "batch.deadline_hours", 5, id="time without end"),
        pytest.param(MINIMAL + "[batch]\npoll_seconds = nan\n", "batch.poll_seconds", 5, id="not a time"),
        pytest.param('models = ["x"]\n', "`name` is missing", None, id="no name"),
    ],
)
def test_a_mistake_is_one_line_with_its_place_and_mend(tmp_path: Path, text: str, what: str, line: int | None) -> None:
    """What is wrong, in which file and line, and what to do."""
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load_sweep(path)
    message = str(caught.value)
    assert what in message
    assert "\n" not in message
    assert f"{path}:{line}" in message if line else str(path) in message
    assert caught.value.mend


def test_broken_toml_names_the_line(tmp_path: Path) -> None:
    """TOML's own words carry the place."""
    with pytest.raises(UserError, match="line 2"):
        load_sweep(written(tmp_path, 'name = "s"\nmodels = = 1\n'))


def test_a_missing_file_is_the_users_mistake(tmp_path: Path) -> None:
    """No traceback."""
    with pytest.raises(UserError, match="cannot be read"):
        load_sweep(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"SQLite format 3\0\xff\xfe", "this is a store", id="a store"),
        pytest.param(b"name = \xff", "UTF-8", id="not text"),
        pytest.param(b"a = " + b"[" * 100_000, "nested too deeply", id="nested without end"),
    ],
)
def test_a_file_that_is_no_sweep_is_the_users_mistake(tmp_path: Path, data: bytes, words: str) -> None:
    """One line that says what it is."""
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(UserError, match=words):
        load_sweep(path)


def test_judge_stages_need_a_judge(tmp_path: Path) -> None:
    """A sweep whose answers nobody would judge is refused."""
    with pytest.raises(UserError, match="no judge"):
        load_sweep(written(tmp_path, 'name = "s"\nmodels = ["x"]\n'))
    load_sweep(written(tmp_path, 'name = "s"\nmodels = ["x"]\nstages = ["task", "audit"]\n'))


def test_caps_are_exact_nano_dollars_in_every_scope(tmp_path: Path) -> None:
    """Numbers and strings alike; scopes without a cap do not appear."""
    text = (
        MINIMAL
        + '[budget]\nusd = 0.1\n[budget.model."gpt-5.5"]\nusd = "2.5"\ntokens = 7\n[budget.stage.judge]\ntokens = 9\n'
    )
    assert caps(load_sweep(written(tmp_path, text))) == {
        Scope("sweep", "s"): Cap(nano=100_000_000),
        Scope("model", "gpt-5.5"): Cap(nano=2_500_000_000, tokens=7),
        Scope("stage", "judge"): Cap(tokens=9),
    }


def test_a_negative_budget_is_refused(tmp_path: Path) -> None:
    """With the scope it stands in."""
    with pytest.raises(UserError, match="budget of sweep s"):
        caps(load_sweep(written(tmp_path, MINIMAL + "[budget]\nusd = -1\n")))


def test_what_a_file_does_not_say_of_batches_is_the_engines(tmp_path: Path) -> None:
    """No default stands in two places."""
    assert batch_policy(load_sweep(written(tmp_path, MINIMAL))) == BatchPolicy()


def test_a_files_words_on_batches_become_seconds(tmp_path: Path) -> None:
    """Every field of the policy can be said."""
    text = (
        MINIMAL
        + "[batch]\ndeadline_hours = 30\nleftovers = 'batch'\nflush_after_minutes = 1.5\nmost_requests = 500\n"
        + "poll_seconds = 2\nlongest_poll_seconds = 60\ngrace_seconds = 90\nresults_patience_minutes = 10\n"
    )
    assert batch_policy(load_sweep(written(tmp_path, text))) == BatchPolicy(
        flush_after=90.0,
        most_requests=500,
        deadline=108_000.0,
        leftovers="batch",
        first_poll=2.0,
        longest_poll=60.0,
        grace=90.0,
        results_patience=600.0,
    )


def test_polls_cannot_begin_slower_than_they_end(tmp_path: Path) -> None:
    """Also against the bound that the file does not give."""
    with pytest.raises(UserError, match="polled after 1000 s at first and 300 s at most"):
        batch_policy(load_sweep(written(tmp_path, MINIMAL + "[batch]\npoll_seconds = 1000\n")))


def test_a_generation_may_be_batched_too(tmp_path: Path) -> None:
    """It has one model and one stage, so one word is enough and finer ones are refused."""
    text = 'name = "g"\nmodels = ["gpt-5.5"]\nmode = "batch"\n[batch]\nmost_requests = 9\n'
    loaded = load_generation(written(tmp_path, text))
    assert (loaded.sweep.mode, batch_policy(loaded).most_requests) == ("batch", 9)
    with pytest.raises(UserError, match="knows no `modes`"):
        load_generation(written(tmp_path, text + '[modes.stage]\njudge = "batch"\n'))


def test_stages_of_a_model_are_named_as_everywhere() -> None:
    """Or all of them."""
    assert get_args(StageOrAll) == ("all", *Stage)


def test_the_readme_explains_every_word_on_batches(tmp_path: Path) -> None:
    """Its example is a sweep, and its table has every field."""
    text = README.read_text(encoding="utf-8").partition("### Call by call, or in batches")[2].partition("\n### ")[0]
    example = text.partition("```toml\n")[2].partition("```")[0]
    sweep = load_sweep(written(tmp_path, MINIMAL + example)).sweep
    assert sweep.modes.model == {"gpt-5.5": "stream", "claude-opus-4-6": {"all": "batch", "accum": "stream"}}
    assert [field for field in BatchTable.__struct_fields__ if f"`{field}`" not in text] == []


def test_a_pipe_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    """Nobody may ever write into it."""
    pipe = tmp_path / "sweep.toml"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="no file that can be read again"):
        load_sweep(pipe)


@pytest.mark.parametrize(
    ("tables", "shares"),
    [
        ("", (1.0, 1.0)),
        ("share = 0.5\n", (0.5, 0.5)),
        ('share = 0.5\n[limits."gpt-5.5"]\nshare = 0.25\n', (0.25, 0.5)),
    ],
    ids=["all of it", "of everything", "of one model"],
)
def test_a_share_of_the_limits_is_for_runs_beside_each_other(
    tmp_path: Path, tables: str, shares: tuple[float, float]
) -> None:
    """One number for all models, another one for those that need it."""
    found = routes(prepare(load_sweep(written(tmp_path, MINIMAL + tables))))
    assert tuple(found[alias].limits.share for alias in ("gpt-5.5", "claude-opus-4-7")) == shares


def test_a_share_is_a_part(tmp_path: Path) -> None:
    """More than all there is not."""
    with pytest.raises(UserError, match="share: must be at most 1"):
        load_sweep(written(tmp_path, MINIMAL + "share = 2\n"))


TWICE = [
    pytest.param('models = [\n  "gpt-5.5",\n  "gpt-5.5",\n]\n', "`gpt-5.5` stands twice in models", 4, id="models"),
    pytest.param('models = ["a"]\njudges = ["b", "b"]\n', "`b` stands twice in judges", 3, id="judges"),
    pytest.param('models = ["a"]\nstages = ["task",\n"task"]\n', "`task` stands twice in stages", 4, id="stages"),
    pytest.param('models = ["a"]\npersonas = ["p", "q", "p"]\n', "`p` stands twice in personas", 3, id="personas"),
    pytest.param(
        'models = ["a"]\ntasks = ["apartment", "apartment"]\n', "`apartment` stands twice in tasks", 3, id="tasks"
    ),
    pytest.param(
        'models = ["a"]\naccum_personas = ["p", "p"]\n', "`p` stands twice in accum_personas", 3, id="conversations"
    ),
    pytest.param('models = ["a"]\nstages = []\n', "stages is an empty list", 3, id="no stage"),
    pytest.param('models = ["a"]\npersonas = []\n', "personas is an empty list", 3, id="no persona"),
    pytest.param('models = ["a"]\ntasks = []\n', "tasks is an empty list", 3, id="no task"),
]


@pytest.mark.parametrize(("text", "what", "line"), TWICE)
def test_no_list_says_a_thing_twice_or_nothing_at_all(tmp_path: Path, text: str, what: str, line: int) -> None:
    """It would be counted twice and asked once, or the sweep would be done at once."""
    judge = "" if "judges" in text else 'judges = ["j"]\n'
    path = written(tmp_path, f'name = "s"\n{text}{judge}')
    with pytest.raises(UserError) as caught:
        load_sweep(path)
    assert (caught.value.what.startswith(what), caught.value.where) == (True, f"{path}:{line}")


@pytest.mark.parametrize(("stage", "parent"), [("judge", "task"), ("audit", "task"), ("probe_judge", "probe")])
def test_a_stage_needs_the_stage_that_it_asks_about(tmp_path: Path, stage: str, parent: str) -> None:
    """Alone it would ask nothing, and be done."""
    path = written(tmp_path, MINIMAL + f'stages = [\n  "accum",\n  "{stage}",\n]\n')
    with pytest.raises(UserError, match=f"answers of `{parent}`") as caught:
        load_sweep(path)
    assert caught.value.where == f"{path}:6"
    load_sweep(written(tmp_path, MINIMAL + f'stages = ["{stage}", "{parent}"]\n'))


def test_a_stored_file_is_read_whatever_it_repeats() -> None:
    """What was begun under older rules can still be read again and harvested."""
    assert parse_sweep(MINIMAL + 'stages = ["judge"]\n', Path("store")).sweep.stages == (Stage.JUDGE,)


def test_a_sweep_that_asks_nothing_is_refused(tmp_path: Path) -> None:
    """Here accumulation alone, with nobody to talk to."""
    loaded = load_sweep(written(tmp_path, MINIMAL + 'stages = ["accum"]\naccum_personas = 0\n'))
    with pytest.raises(UserError, match="ask nothing"):
        prepare(loaded)


@pytest.mark.parametrize(("personas", "scripts"), [("1", 1), ("10", 2), ('["pmv2_001"]', 0)])
def test_the_default_of_conversations_is_no_more_than_the_chosen_personas_have(
    tmp_path: Path, personas: str, scripts: int
) -> None:
    """A number that nobody wrote cannot be wrong."""
    loaded = load_sweep(written(tmp_path, MINIMAL + f"personas = {personas}\n"))
    assert len(prepare(loaded).design.scripts) == scripts


def test_a_number_of_conversations_that_was_written_is_held_to(tmp_path: Path) -> None:
    """With its line, and who has a conversation."""
    path = written(tmp_path, MINIMAL + "personas = 1\naccum_personas = 2\n")
    with pytest.raises(UserError, match="only 1 of the chosen personas") as caught:
        prepare(load_sweep(path))
    assert (caught.value.where, "seed_001" in caught.value.mend) == (f"{path}:5", True)


@pytest.mark.parametrize("amount", ["nan", "inf", "-1", '"a lot"', "1e-12", "true"])
def test_a_budget_that_is_no_money_is_said_in_the_files_own_words(tmp_path: Path, amount: str) -> None:
    """With its line and without words of Python."""
    path = written(tmp_path, MINIMAL + f"[budget.stage.judge]\ntokens = 9\nusd = {amount}\n")
    with pytest.raises(UserError) as caught:
        caps(load_sweep(path))
    assert caught.value.where == f"{path}:6"
    assert "Decimal" not in str(caught.value)
    assert 'usd = "25.00"' in caught.value.mend


@pytest.mark.parametrize(
    ("text", "what", "line", "mend"),
    [
        pytest.param('models = ["gpt-5.4-nanno"]', "no model `gpt-5.4-nanno`", 3, "`gpt-5.4-nano`", id="model"),
        pytest.param('models = ["Nobody"]', "no model `Nobody`", 3, "mirage models", id="model like no other"),
        pytest.param('models = ["gpt-5.5"]\ntasks = ["apartmant"]', "no task", 4, "`apartment`", id="task"),
        pytest.param('models = ["gpt-5.5"]\npersonas = [\n"seed_1"]', "no persona", 5, "`seed_001`", id="persona"),
        pytest.param('models = ["gpt-5.5"]\npersonas = 999', "only 150 personas", 4, '"all"', id="too many"),
    ],
)
def test_a_name_that_is_not_there_comes_with_its_line_and_what_was_meant(
    tmp_path: Path, text: str, what: str, line: int, mend: str
) -> None:
    """Of models, tasks and personas alike."""
    path = written(tmp_path, f'name = "s"\nstages = ["task"]\n{text}\n')
    with pytest.raises(UserError, match=what) as caught:
        prepare(load_sweep(path))
    assert (caught.value.where, mend in caught.value.mend) == (f"{path}:{line}", True)


def test_every_field_has_an_example() -> None:
    """The remedy of a wrong value is a right one."""
    tables = (
        SweepFile, GenerateFile, GenerateTable, BudgetTable, CapTable, LimitTable, StageTable, RetryTable, ModesTable,
        BatchTable,
    )  # fmt: skip
    assert {field for table in tables for field in table.__struct_fields__} == set(EXAMPLES)


def test_a_wrong_value_is_answered_with_a_right_one(tmp_path: Path) -> None:
    """Instead of a pointer to the README."""
    with pytest.raises(UserError) as caught:
        load_sweep(written(tmp_path, MINIMAL + "[batch]\npoll_seconds = 0\n"))
    assert caught.value.mend == "write e.g. poll_seconds = 5"


def test_a_folder_is_no_sweep_file(tmp_path: Path) -> None:
    """And is called what it is."""
    with pytest.raises(UserError, match="this is a folder"):
        load_sweep(tmp_path)


def test_a_file_that_has_personas_written_says_which_commands_take_it(tmp_path: Path) -> None:
    """Where a sweep is wanted; where both will do, it is read."""
    path = written(tmp_path, 'name = "g"\nmodels = ["gpt-5.5"]\n[generate]\nnumber = 3\n')
    with pytest.raises(UserError, match="has a model write personas") as caught:
        load_sweep(path)
    assert (caught.value.where, "mirage personas generate" in caught.value.mend) == (f"{path}:3", True)
    assert load_file(path).sweep.name == "g"
