"""How stages are sent on models: what the file says, what `auto` chooses, and that nothing else depends on it."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.design import build_design, composer
from bench.generating import prepare_generation
from bench.manifest import Manifest, build_manifest, check_unchanged, modes_changed, modes_of, plan_hash
from bench.modes import (
    Asked,
    By,
    Choice,
    Mode,
    Step,
    asked,
    batch_window,
    choose_modes,
    lacks,
    resolve_modes,
    sweep_steps,
)
from bench.sweepfile import LoadedSweep, parse_generation, parse_sweep
from engine.errors import UserError
from engine.request import request_key
from engine.store import Sweep
from engine.testing import make_completion
from instruments.instrument import Stage
from instruments.reader import SweepReader, plan
from providers.batch_registry import build_batch_providers, has_batches
from providers.card import ModelCard
from providers.catalog import Catalog, load_catalog

CATALOG: Catalog = load_catalog()
BATCHING, WITHOUT, HERE, SLOW, JUDGE = "gpt-5.5", "deepseek-v4-pro", "qwen3-8b", "gemini-3-flash", "claude-opus-4-7"
WORDS = ("stream", "batch", "auto")
Modes = Mapping[tuple[str, str], Mode]


def sweep(text: str = "", *, models: tuple[str, ...] = (BATCHING,), more: str = "") -> LoadedSweep:
    """Return a sweep with one judge; `text` stands before the tables, `more` after."""
    named = ", ".join(f'"{model}"' for model in models)
    head = f'name = "s"\nmodels = [{named}]\njudges = ["{JUDGE}"]\npersonas = 8\n'
    return parse_sweep(f"{head}{text}\n{more}\n", Path("sweep.toml"))


def chosen(loaded: LoadedSweep, catalog: Catalog = CATALOG) -> dict[tuple[str, str], Choice]:
    return choose_modes(loaded, sweep_steps(build_design(loaded, catalog)), catalog.cards)


@cache
def steps_of(models: tuple[str, ...]) -> list[Step]:
    """Return the steps of a sweep over these models."""
    return sweep_steps(build_design(sweep(models=models), CATALOG))


def manifest(loaded: LoadedSweep) -> Manifest:
    return build_manifest(loaded, build_design(loaded, CATALOG), CATALOG, simulated=False)


def batched(loaded: LoadedSweep) -> set[tuple[str, str]]:
    return {key for key, choice in chosen(loaded).items() if choice.mode is Mode.BATCH}


# ----- what the file says


def test_without_a_word_everything_streams() -> None:
    """And nothing needs a reason."""
    assert set(chosen(sweep()).values()) == {Choice(mode=Mode.STREAM)}


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        pytest.param("", Asked("auto", By.SWEEP), id="the sweep's word"),
        pytest.param('[modes.stage]\naudit = "batch"', Asked("batch", By.STAGE), id="a stage's"),
        pytest.param(
            f'[modes.stage]\naudit = "batch"\n[modes.model]\n"{BATCHING}" = "stream"',
            Asked("stream", By.MODEL),
            id="a model's before a stage's",
        ),
        pytest.param(
            f'[modes.stage]\naudit = "batch"\n[modes.model."{BATCHING}"]\nall = "stream"\naudit = "auto"',
            Asked("auto", By.CELL),
            id="a stage on a model before all",
        ),
        pytest.param(
            f'[modes.stage]\naudit = "batch"\n[modes.model."{BATCHING}"]\ntask = "stream"',
            Asked("batch", By.STAGE),
            id="another stage of the model says nothing",
        ),
    ],
)
def test_the_most_specific_word_wins(tables: str, expected: Asked) -> None:
    """Stage on model, model, stage, sweep."""
    assert asked(sweep('mode = "auto"', more=tables), BATCHING, "audit") == expected


_word = st.sampled_from(WORDS)
_stages = st.dictionaries(st.sampled_from([stage.value for stage in Stage]), _word)
_cells = st.dictionaries(st.sampled_from(["all", *(stage.value for stage in Stage)]), _word)
_models = st.dictionaries(st.sampled_from([BATCHING, JUDGE]), _word | _cells)


def said(mode: str, stages: Mapping[str, str], models: Mapping[str, str | Mapping[str, str]]) -> LoadedSweep:
    """Return the sweep whose tables say this."""
    lines = [f'{stage} = "{word}"' for stage, word in stages.items()]
    tables = ["[modes.stage]", *lines, "[modes.model]"]
    for alias, entry in models.items():
        cells = (
            f'"{entry}"' if isinstance(entry, str) else "{" + ", ".join(f'{k} = "{v}"' for k, v in entry.items()) + "}"
        )
        tables.append(f'"{alias}" = {cells}')
    return sweep(f'mode = "{mode}"', more="\n".join(tables))


@given(mode=_word, stages=_stages, models=_models)
def test_precedence_is_total(mode: str, stages: dict[str, str], models: dict[str, str | dict[str, str]]) -> None:
    """Whatever is said or left out, a stage on a model has one word: the first that stands, in one fixed order."""
    loaded = said(mode, stages, models)
    for alias in (BATCHING, JUDGE, "some-other"):
        entry = models.get(alias, {})
        cells = {"all": entry} if isinstance(entry, str) else entry
        for stage in Stage:
            by_rank = [cells.get(stage.value), cells.get("all"), stages.get(stage.value), mode]
            rank = next(number for number, word in enumerate(by_rank) if word is not None)
            assert asked(loaded, alias, stage.value) == Asked(by_rank[rank], tuple(By)[rank])


@given(mode=_word, stages=_stages, models=_models)
def test_every_step_gets_one_mode_and_plain_words_are_kept(
    mode: str, stages: dict[str, str], models: dict[str, str | dict[str, str]]
) -> None:
    """`stream` streams and `batch` batches, whatever else is said; only `auto` is decided here."""
    loaded = said(mode, stages, models)
    steps = steps_of((BATCHING,))
    found = resolve_modes(loaded, steps, CATALOG.cards)
    assert list(found) == [step.key for step in steps]
    for (alias, stage), how in found.items():
        word = asked(loaded, alias, stage).sending
        assert word in {"auto", how.value}


# ----- models without batches


@pytest.mark.parametrize(
    ("model", "words"), [(WITHOUT, "no batch API"), (HERE, "runs in this process")], ids=["no API", "in process"]
)
@pytest.mark.parametrize("entry", ['"{}" = "batch"', '"{}" = {{ audit = "batch" }}'], ids=["model", "stage on model"])
def test_batches_of_a_model_that_has_none_are_refused(model: str, words: str, entry: str) -> None:
    """Where the file names the model."""
    loaded = sweep(models=(model,), more="[modes.model]\n" + entry.format(model))
    with pytest.raises(UserError, match=words) as caught:
        chosen(loaded)
    assert model in str(caught.value)
    assert caught.value.mend


@pytest.mark.parametrize("how", ['mode = "batch"', "", 'mode = "auto"'], ids=["sweep", "stage", "auto"])
def test_where_no_model_is_named_those_without_batches_stream(how: str) -> None:
    """And the reason is kept for the plan."""
    every = "".join(f'{stage} = "batch"\n' for stage in Stage)
    loaded = sweep(how, models=(BATCHING, WITHOUT, HERE), more="" if how else f"[modes.stage]\n{every}")
    found = chosen(loaded)
    assert found[WITHOUT, "task"] == Choice(mode=Mode.STREAM, why="no batch API")
    assert found[HERE, "audit"] == Choice(mode=Mode.STREAM, why="runs in this process")
    assert found[BATCHING, "task"].mode is Mode.BATCH


def test_a_model_that_is_not_in_the_sweep_cannot_be_sent() -> None:
    """A misspelled alias must not go unnoticed."""
    with pytest.raises(UserError, match=r"gpt-5\.4-nano"):
        chosen(sweep(more='[modes.model]\n"gpt-5.4-nano" = "stream"'))


@pytest.mark.parametrize(
    ("dialect", "batch", "lack"),
    [
        ("compatible", True, ""),
        ("compatible", False, "no batch API"),
        ("vllm-server", True, "no batch API"),
        ("deepseek", True, "no batch API"),
    ],
    ids=["OpenAI's API", "not said to have one", "vLLM's server", "DeepSeek"],
)
def test_a_model_of_ones_own_needs_an_api_that_is_spoken_here(dialect: str, batch: bool, lack: str) -> None:
    """Its card's word alone is not enough."""
    account = {"base_url": "http://127.0.0.1:9/v1", "dialect": dialect}
    table = {"family": "X", "provider": "mine", "model": "x", "batch": batch, "price": {"input": 1, "output": 1}}
    catalog = load_catalog({"provider": {"mine": account}, "model": {"mine": table}})
    assert lacks(catalog.card("mine")) == lack


# ----- auto


def test_auto_batches_what_is_cheaper_and_in_time() -> None:
    """Two waves of a day fit into two days, eight rounds do not."""
    found = chosen(sweep('mode = "auto"'))
    assert found[BATCHING, "task"] == Choice(mode=Mode.BATCH, why="saves 50 %", waves=1, seconds=86_400.0)
    assert found[JUDGE, "judge"] == Choice(mode=Mode.BATCH, why="saves 50 %", waves=2, seconds=172_800.0)
    assert found[BATCHING, "accum"] == Choice(mode=Mode.STREAM, why="8 waves, 192 h > 48 h")


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        pytest.param("deadline_hours = 23", set(), id="shorter than a wave"),
        pytest.param("prefer = 'time'", set(), id="time is preferred"),
        pytest.param(
            "deadline_hours = 24",
            {(BATCHING, "audit"), (JUDGE, "judge"), (JUDGE, "probe_judge")},
            id="one wave: what saves most, and not what it waits for",
        ),
        pytest.param(
            "deadline_hours = 48",
            {(BATCHING, "probe"), (BATCHING, "task"), (BATCHING, "audit"), (JUDGE, "judge"), (JUDGE, "probe_judge")},
            id="two waves",
        ),
        pytest.param(
            "deadline_hours = 192",
            {
                (BATCHING, "probe"), (BATCHING, "task"), (BATCHING, "audit"), (BATCHING, "accum"),
                (JUDGE, "judge"), (JUDGE, "probe_judge"),
            },
            id="eight waves",
        ),
    ],
)  # fmt: skip
def test_auto_keeps_to_the_wait_that_is_allowed(tables: str, expected: set[tuple[str, str]]) -> None:
    """With the longest time that the provider may take for every wave."""
    assert batched(sweep('mode = "auto"', more=f"[batch]\n{tables}")) == expected


def test_a_wave_counts_only_when_what_it_follows_is_batched_too() -> None:
    """Where tasks stream, judging is the first wave."""
    found = chosen(sweep('mode = "auto"', more='[modes.stage]\ntask = "stream"\n[batch]\ndeadline_hours = 24'))
    assert (found[JUDGE, "judge"].waves, found[BATCHING, "audit"].waves) == (1, 1)
    assert found[BATCHING, "probe"].why == "probe_judge would end after 48 h > 24 h"


def test_a_slow_provider_does_not_keep_the_judge_from_its_batches() -> None:
    """Its own tasks stream instead, since the judge waits for them and saves more."""
    found = chosen(sweep('mode = "auto"', models=(BATCHING, SLOW)))
    assert batch_window(CATALOG.card(SLOW).dialect) == 172_800.0
    assert (found[JUDGE, "judge"].mode, found[BATCHING, "task"].mode) == (Mode.BATCH, Mode.BATCH)
    assert found[SLOW, "task"].why == "audit would end after 96 h > 48 h"
    assert found[SLOW, "audit"].mode is Mode.BATCH


def _with_prices(**fields: object) -> Catalog:
    card: ModelCard = msgspec.structs.replace(CATALOG.card(BATCHING), **fields)
    return Catalog({**CATALOG.cards, BATCHING: card})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param({"batch_price": None}, "price unknown", id="no batch price"),
        pytest.param({"batch_price": CATALOG.card(BATCHING).price}, "no saving", id="the same price"),
        pytest.param({"price": CATALOG.card(BATCHING).batch_price}, "no saving", id="standard price as low"),
        pytest.param({"batch": False}, "no batch API", id="not this model"),
    ],
)
def test_auto_streams_what_a_batch_would_not_make_cheaper(change: Mapping[str, object], why: str) -> None:
    """An unknown saving is none; asked for plainly, a batch is sent all the same where there is an API."""
    catalog = _with_prices(**change)
    assert chosen(sweep('mode = "auto"'), catalog)[BATCHING, "task"] == Choice(mode=Mode.STREAM, why=why)
    plainly = chosen(sweep('mode = "batch"'), catalog)[BATCHING, "task"].mode
    assert plainly is (Mode.BATCH if catalog.card(BATCHING).batch else Mode.STREAM)


@given(
    hours=st.floats(min_value=1, max_value=500),
    models=st.lists(st.sampled_from([BATCHING, SLOW, WITHOUT, "gpt-4o-mini"]), min_size=1, max_size=4, unique=True),
    mode=_word,
    stages=_stages,
)
def test_nothing_that_auto_batches_makes_anything_late(
    hours: float, models: list[str], mode: str, stages: dict[str, str]
) -> None:
    """Neither itself nor a batch that waits for it ends after the deadline."""
    said_of = "\n".join(f'{stage} = "{word}"' for stage, word in stages.items())
    tables = f"[modes.stage]\n{said_of}\n[batch]\ndeadline_hours = {hours}"
    loaded = sweep(f'mode = "{mode}"', models=tuple(models), more=tables)
    steps = steps_of(tuple(models))
    found = choose_modes(loaded, steps, CATALOG.cards)
    for step in steps:
        if asked(loaded, *step.key).sending == "auto" and found[step.key].mode is Mode.BATCH:
            waiting = [each.key for each in steps if step.key in each.follows and found[each.key].mode is Mode.BATCH]
            assert all(found[key].seconds <= hours * 3_600 for key in (step.key, *waiting))


def test_windows_are_those_of_the_adapters() -> None:
    """One truth, for every model whose batch API is spoken here."""
    cards = [card for card in CATALOG.cards.values() if not lacks(card)]
    assert cards
    built = build_batch_providers(cards, {card.key_env: "k" * 20 for card in cards})
    for card in cards:
        assert has_batches(card.dialect)
        assert batch_window(card.dialect) == built[card.provider].limits(card.model).window


def test_a_sweep_without_questions_has_no_modes() -> None:
    """Judging alone leads to nothing."""
    assert chosen(sweep('mode = "auto"\nstages = ["judge"]')) == {}


def test_steps_know_whose_answers_they_wait_for() -> None:
    """A judge waits for every subject, an audit for its own."""
    steps = {step.key: step for step in sweep_steps(build_design(sweep(models=(BATCHING, SLOW)), CATALOG))}
    assert set(steps[JUDGE, "judge"].follows) == {(BATCHING, "task"), (SLOW, "task")}
    assert steps[SLOW, "audit"].follows == ((SLOW, "task"),)
    assert steps[SLOW, "task"] == Step(alias=SLOW, stage="task", output_tokens=8 * 6 * 2000)


# ----- what is planned and kept


def composed(loaded: LoadedSweep) -> list[tuple[str, bool, bytes]]:
    """Return alias and stage, whether it is batched, and the request key of every root question."""
    design, modes = build_design(loaded, CATALOG), modes_of(manifest(loaded))
    cells = [composer(design, CATALOG, modes)(ask) for ask in plan(design)]
    return [(f"{cell.alias} {cell.stage}", cell.batch, request_key(cell.request)) for cell in cells]


def test_cells_say_how_they_are_sent_and_their_keys_do_not() -> None:
    """A mode can change between runs without a call being paid for twice."""
    streamed = composed(sweep())
    mixed = composed(sweep('mode = "batch"', more='[modes.stage]\nprobe = "stream"'))
    assert {key for *_, key in streamed} == {key for *_, key in mixed}
    assert not any(batch for _, batch, _ in streamed)
    assert {name: batch for name, batch, _ in mixed} == {
        f"{BATCHING} probe": False,
        f"{BATCHING} task": True,
        f"{BATCHING} accum": True,
    }


def test_follow_ups_are_sent_as_their_own_stage_says() -> None:
    """Not as the answer that they ask about was."""
    loaded = sweep(more='[modes.stage]\njudge = "batch"')
    design, modes = build_design(loaded, CATALOG), modes_of(manifest(loaded))
    compose = composer(design, CATALOG, modes)
    task = next(compose(ask) for ask in plan(design) if ask.stage is Stage.TASK)
    read = SweepReader(design, compose).read("task", task.coords, make_completion("You live in a loft."))
    assert {cell.stage: cell.batch for cell in read.follow_ups} == {"audit": False, "judge": True}
    assert not task.batch


def test_the_manifest_keeps_the_modes_and_they_may_change() -> None:
    """They are no part of the design: neither its plan nor its answers depend on them."""
    before, after = manifest(sweep()), manifest(sweep('mode = "auto"'))
    assert after.modes[JUDGE] == {"judge": Mode.BATCH, "probe_judge": Mode.BATCH}
    assert msgspec.to_builtins(after)["modes"][BATCHING]["accum"] == "stream"
    assert plan_hash(before) == plan_hash(after)
    check_unchanged(_known(before), after, "s.sqlite")
    check_unchanged(_known(after), before, "s.sqlite")


def _known(stored: Manifest) -> Sweep:
    text = msgspec.json.encode(stored).decode()
    return Sweep(id=1, name="s", manifest=text, plan_hash=plan_hash(stored), simulated=False, planned=True)


def _aged(stored: Manifest) -> Manifest:
    """Return the manifest as a version without modes wrote it."""
    old = msgspec.to_builtins(stored)
    del old["modes"]
    return msgspec.json.decode(msgspec.json.encode(old), type=Manifest)


CHANGES: dict[str, tuple[Callable[[], Manifest], Callable[[], Manifest], bool]] = {
    "nothing": (lambda: manifest(sweep('mode = "auto"')), lambda: manifest(sweep('mode = "auto"')), False),
    "other words, same modes": (
        lambda: manifest(sweep('mode = "batch"')),
        lambda: manifest(sweep('mode = "auto"\n[batch]\ndeadline_hours = 400')),
        False,
    ),
    "one stage": (
        lambda: manifest(sweep()), lambda: manifest(sweep(more='[modes.stage]\naudit = "batch"')), True,
    ),
    "back to streaming": (lambda: manifest(sweep('mode = "batch"')), lambda: manifest(sweep()), True),
    "a new model": (
        lambda: manifest(sweep(more=f'[modes.model]\n"{BATCHING}" = "stream"')),
        lambda: manifest(sweep(models=(BATCHING, SLOW), more=f'[modes.model]\n"{SLOW}" = "batch"')),
        False,
    ),
    "of a store without modes, still streamed": (lambda: _aged(manifest(sweep())), lambda: manifest(sweep()), False),
    "of a store without modes, now batched": (
        lambda: _aged(manifest(sweep())), lambda: manifest(sweep('mode = "batch"')), True,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "expected"), list(CHANGES.values()), ids=list(CHANGES))
def test_a_change_is_what_concerns_planned_questions(
    before: Callable[[], Manifest], after: Callable[[], Manifest], expected: bool
) -> None:
    """New models have nothing planned; older stores streamed everything."""
    assert modes_changed(before(), after()) is expected


# ----- generations of personas

GENERATION = 'name = "own"\nmodels = ["{model}"]\nmode = "{mode}"\n{more}\n[generate]\nnumber = 3\ntries = {tries}\n'


def generated(folder: Path, mode: str, *, model: str = BATCHING, tries: int = 6, more: str = "") -> Modes:
    text = GENERATION.format(model=model, mode=mode, tries=tries, more=more)
    loaded = parse_generation(text, folder / "p.toml")
    return modes_of(prepare_generation(loaded, store=folder / "p.sqlite").manifest)


@pytest.mark.parametrize(
    ("mode", "tries", "expected"),
    [("stream", 1, "stream"), ("batch", 6, "batch"), ("auto", 2, "batch"), ("auto", 6, "stream")],
    ids=["streamed", "batched", "two draws in time", "six draws too late"],
)
def test_every_further_draw_of_a_persona_is_a_wave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, tries: int, expected: str
) -> None:
    """For `auto`; a plain word is kept."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert generated(tmp_path, mode, tries=tries) == {(BATCHING, "persona"): expected}


def test_a_generation_names_its_model_so_batches_without_an_api_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be silent otherwise: there is no plan of it to read the reason in."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(UserError, match="deepseek-v4-pro cannot be sent in batches"):
        generated(tmp_path, "batch", model=WITHOUT)
