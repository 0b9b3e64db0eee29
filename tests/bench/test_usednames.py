"""Limits, caps and tables on what a run does not use are refused, with the name that was probably meant."""

from pathlib import Path

import pytest

from bench.generating import prepare_generation
from bench.localmodel import check_words
from bench.run import prepare, prepare_file
from bench.sweepfile import load_generation, load_sweep
from engine.errors import UserError

SWEEP = 'name = "s"\nmodels = ["gpt-4o-mini"]\nstages = ["task"]\npersonas = 1\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the sweep file is to be."""
    return tmp_path / "sweep.toml"


@pytest.mark.parametrize(
    ("table", "words", "mend"),
    [
        pytest.param('[budget.model."gpt-4o-mimi"]\nusd = 1', "[budget.model] names `gpt-4o-mimi`", "`gpt-4o-mini`",
                     id="misspelt model"),
        pytest.param('[budget.model."claude-opus-4-6"]\nusd = 1', "[budget.model] names `claude-opus-4-6`", "add the",
                     id="model of other sweeps"),
        pytest.param("[budget.provider.opnai]\nusd = 1", "[budget.provider] names `opnai`", "`openai`",
                     id="misspelt account"),
        pytest.param("[budget.provider.anthropic]\ntokens = 1", "[budget.provider] names `anthropic`", "add the",
                     id="account of other sweeps"),
        pytest.param('[limits."gpt-4o-mimi"]\nconcurrency = 1', "[limits] names `gpt-4o-mimi`", "`gpt-4o-mini`",
                     id="limit"),
        pytest.param('[provider.opnai]\nbase_url = "http://x/v1"', "[provider] names `opnai`", "`openai`",
                     id="table of no account"),
        pytest.param('[model."gpt-5.5"]\nthinking = false', "[model] names `gpt-5.5`", "add the model",
                     id="change of another model"),
        pytest.param("[local]\nthreds = 2", "[local] knows no `threds`", "`threads`", id="local, though none is"),
        pytest.param("[local]\nthreads = 0", "[local]: threads must be at least 1", "default", id="local value"),
    ],
)  # fmt: skip
def test_what_names_nothing_of_the_sweep_is_refused(file: Path, table: str, words: str, mend: str) -> None:
    """A cap on nothing would hold nothing, and nobody would hear of it."""
    file.write_text(SWEEP + table + "\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        prepare_file(file)
    assert words in caught.value.what
    assert mend in caught.value.mend
    assert caught.value.where in {f"{file}:5", f"{file}:6"}


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(
            '[budget.model."gpt-4o-mini"]\nusd = 1\n[budget.provider.openai]\nusd = 1', id="caps on what is used"
        ),
        pytest.param("[budget.stage.judge]\nusd = 1\n[settings.audit]\nmax_tokens = 9", id="stages that may be added"),
        pytest.param('[provider.anthropic]\nbase_url = "http://127.0.0.1:1"', id="accounts of the catalogue"),
        pytest.param(
            '[model.mine]\nfamily = "Mine"\nprovider = "mine"\nmodel = "m"\n'
            '[provider.mine]\nbase_url = "http://127.0.0.1:1/v1"',
            id="a model to choose from",
        ),
        pytest.param("[local]\nthreads = 2", id="settings of a local model that may be added"),
    ],
)
def test_what_may_be_of_use_later_is_accepted(file: Path, table: str) -> None:
    """Stages, models and accounts are added between runs."""
    file.write_text(SWEEP + table + "\n", encoding="utf-8")
    assert prepare_file(file).manifest.name == "s"


def test_caps_are_checked_wherever_a_sweep_is_prepared(file: Path) -> None:
    """Not only by the command line."""
    file.write_text(SWEEP + "[budget.provider.opnai]\nusd = 1\n", encoding="utf-8")
    with pytest.raises(UserError, match="opnai"):
        prepare(load_sweep(file))


def test_a_generation_has_no_stages_to_cap(file: Path) -> None:
    """Its only stage is none of the benchmark's."""
    text = 'name = "g"\nmodels = ["gpt-4o-mini"]\n{}[generate]\nnumber = 3\n'
    file.write_text(text.format("[budget.stage.task]\nusd = 1\n"), encoding="utf-8")
    with pytest.raises(UserError, match="names `task`"):
        prepare_generation(load_generation(file))
    file.write_text(text.format("[budget]\nusd = 1\n"), encoding="utf-8")
    prepare_generation(load_generation(file))


def test_every_word_of_local_is_known_by_its_own_name(file: Path) -> None:
    """Those that the program says itself are not for the file."""
    file.write_text(SWEEP + "[local]\ncontext = 9\n", encoding="utf-8")
    with pytest.raises(UserError, match="for the program to say"):
        check_words(load_sweep(file))
