"""A model writes personas: through the real engine and store, resumable, budgeted, with constraints enforced."""

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from bench.cli.main import main
from bench.generating import PreparedGeneration, collect, generation_job, load_own, prepare_generation, read_answers
from bench.reparse import Change, reparse
from bench.run import Result, run_job
from bench.sweepfile import load_generation
from engine.errors import UserError
from engine.events import Notice, Outcome, Snapshot
from engine.request import Request
from engine.status import Status, read_status
from engine.testing import Answer, ScriptedProvider, make_completion, make_request
from instruments.personas import Source, load_persona_file, load_personas, validate

SWEEP = """
name = "own"
models = ["writer"]
store = "{store}"
{budget}

[provider.scripted]
base_url = "http://127.0.0.1:9/v1"
[model.writer]
family = "Scripted"
provider = "scripted"
model = "writer-1"
price = {{ input = "1.00", output = "2.00" }}

[generate]
number = {number}
tries = {tries}
out = "{out}"
"""
TARGETS = re.compile(r"Category: (\S+)\. .*occupation seed: (.+)\.\n", re.DOTALL)


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's own data and settings out of the tests."""
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


def prepared(folder: Path, *, number: int = 6, tries: int = 4, budget: str = "") -> PreparedGeneration:
    """Return a small run, checked."""
    path = folder / "personas.toml"
    text = SWEEP.format(store=folder / "p.sqlite", out=folder / "own.toml", number=number, tries=tries, budget=budget)
    path.write_text(text, encoding="utf-8")
    return prepare_generation(load_generation(path))


async def run(sweep: PreparedGeneration, script: Callable[[Request, int], Answer]) -> tuple[Result, ScriptedProvider]:
    """Run it with a scripted model; return how it ended, and the model with all it saw."""
    model = ScriptedProvider(script, name="scripted")
    result = await run_job(generation_job(sweep), listen=_ignore, watch=_look, providers={"scripted": model})
    return result, model


def _ignore(_notice: Notice) -> None:
    return


def _look(snapshot: Callable[[], Snapshot], expected: Mapping[str, int]) -> None:
    assert expected
    snapshot()


def target(request: Request) -> tuple[str, str]:
    """Return the group and occupation that a request asks for."""
    found = TARGETS.search(request.messages[0].content)
    assert found is not None
    return found[1], found[2]


def word(*parts: object) -> str:
    """Return an invented word, the same for the same parts."""
    digest = blake2b(repr(parts).encode(), digest_size=6).digest()
    return "".join("bdfghklmnprstvwz"[byte % 16] + "aeiou"[byte % 5] for byte in digest)


def persona(request: Request, *, alike: bool = False) -> str:
    """Return an answer that keeps every constraint; unless `alike`, its words are its own."""
    group, occupation = target(request)
    who = "everyone" if alike else (group, occupation, request.sample)
    say = [word(who, number) for number in range(12)]
    truth = {
        "name": say[0].title(), "age": 30, "gender": "woman", "occupation": occupation, "city": say[1].title(),
        "hobbies": f"{say[2]} {say[3]}", "personality": say[4], "dietary style": say[5], "living situation": say[6],
        "relationship status": say[7], "media taste": say[8], "pet": say[9], "exercise habits": say[10],
        "work-life pattern": say[11], "one quirk": f"{say[5]} {say[6]}",
    }  # fmt: skip
    facts = [f"I'm a {occupation}.", f"I {say[2]} {word(who, 20)}.", f"My {word(who, 21)} {word(who, 22)}."]
    return json.dumps({"ground_truth": truth, "revealed_facts": facts, "stereotype_type": group})


def good(request: Request, _times: int) -> Answer:
    return make_completion(persona(request), input_tokens=100, output_tokens=200)


def attempt(request: Request) -> int:
    return request.sample % 50


async def status(sweep: PreparedGeneration) -> Status:
    return await read_status(sweep.store_path, sweep.manifest.name)


async def test_every_slot_is_filled_and_written(tmp_path: Path) -> None:
    """With provenance, valid, and loadable as the generated personas of a sweep."""
    sweep = prepared(tmp_path)
    result, model = await run(sweep, good)
    chosen = await collect(sweep)
    assert (result.outcome, len(model.seen), chosen.empty) == (Outcome.COMPLETE, 6, {})
    personas = load_persona_file(tmp_path / "own.toml")
    assert [each.id for each in personas] == [f"own_00{number}" for number in range(1, 7)]
    assert validate(personas, whole=False) == []
    prompt, trade = sweep.generation.prompts.tag("persona"), personas[0].attributes.occupation
    said = f"written by scripted/writer-1 in run own, prompt {prompt}, target '{trade}', draw 1"
    assert personas[0].provenance == said
    loaded = load_personas(generated=tmp_path / "own.toml")
    assert sum(each.source is Source.GENERATED for each in loaded) == 6


async def test_a_rejected_answer_is_drawn_again_as_another_sample(tmp_path: Path) -> None:
    """The same prompt; the first answer stays in the store with its reason."""

    def second_time(request: Request, times: int) -> Answer:
        return "I would rather not." if attempt(request) == 0 else good(request, times)

    sweep = prepared(tmp_path, number=3)
    result, model = await run(sweep, second_time)
    chosen = await collect(sweep)
    assert (result.outcome, len(model.seen)) == (Outcome.COMPLETE, 6)
    assert [draw for _, draw in chosen.personas] == [1, 1, 1]
    answers = await read_answers(sweep.store_path, "own")
    assert [each.state for each in answers["own_001"]] == ["unreadable", "read"]
    assert "no fitting JSON object" in answers["own_001"][0].reason


async def test_tries_are_bounded_and_the_empty_slot_says_why(tmp_path: Path) -> None:
    """A model that cannot do it costs a known number of calls."""
    sweep = prepared(tmp_path, number=2, tries=3)
    _, model = await run(sweep, lambda _request, _times: "no")
    chosen = await collect(sweep)
    assert len(model.seen) == 6
    assert set(chosen.empty) == {"own_001", "own_002"}
    assert not (tmp_path / "own.toml").exists()


async def test_more_tries_go_on_where_it_stopped(tmp_path: Path) -> None:
    """Raised in the file, nothing is asked again that was asked."""
    await run(prepared(tmp_path, number=2, tries=2), lambda _request, _times: "no")
    sweep = prepared(tmp_path, number=2, tries=4)
    _, model = await run(sweep, good)
    assert [attempt(request) for request in model.seen] == [2, 2]
    assert len((await collect(sweep)).personas) == 2


async def test_look_alikes_are_drawn_again_within_one_run(tmp_path: Path) -> None:
    """The first slot keeps its persona, the others get new ones."""

    def alike_at_first(request: Request, times: int) -> Answer:
        return persona(request, alike=True) if attempt(request) == 0 else good(request, times)

    sweep = prepared(tmp_path, number=3)
    result, model = await run(sweep, alike_at_first)
    chosen = await collect(sweep)
    assert result.outcome is Outcome.COMPLETE
    assert [draw for _, draw in chosen.personas] == [0, 1, 1]
    assert len(model.seen) == 5
    assert validate([each for each, _ in chosen.personas], whole=False) == []


async def test_a_finished_run_asks_nothing_again(tmp_path: Path) -> None:
    """Every answer is paid for once, and the file comes out the same."""
    sweep = prepared(tmp_path)
    await run(sweep, good)
    await collect(sweep)
    before = (tmp_path / "own.toml").read_bytes()
    result, model = await run(prepared(tmp_path), good)
    await collect(prepared(tmp_path))
    assert (result.outcome, model.seen) == (Outcome.COMPLETE, [])
    assert (tmp_path / "own.toml").read_bytes() == before


async def test_a_longer_run_adds_only_what_is_new(tmp_path: Path) -> None:
    """A raised number keeps the personas that are there."""
    await run(prepared(tmp_path, number=3), good)
    sweep = prepared(tmp_path, number=5)
    _, model = await run(sweep, good)
    assert len(model.seen) == 2
    assert len((await collect(sweep)).personas) == 5


async def test_a_budget_stops_it_before_it_is_passed(tmp_path: Path) -> None:
    """Like any other sweep; a higher cap goes on."""
    sweep = prepared(tmp_path, budget="budget.usd = 0.008")
    result, model = await run(sweep, good)
    found = await status(sweep)
    assert result.outcome is Outcome.BUDGET
    assert 0 < len(model.seen) < 6
    assert found.money.spent_nano + found.money.reserved_nano <= 8_000_000
    result, more = await run(prepared(tmp_path), good)
    assert result.outcome is Outcome.COMPLETE
    assert len(model.seen) + len(more.seen) == 6


async def test_another_target_under_the_same_name_is_refused(tmp_path: Path) -> None:
    """Old and new personas would not be one set."""
    await run(prepared(tmp_path), good)
    path = tmp_path / "personas.toml"
    path.write_text(path.read_text("utf-8") + "seed = 7\n", encoding="utf-8")
    with pytest.raises(UserError, match="begun with other"):
        await run(prepare_generation(load_generation(path)), good)


class _Endpoint(BaseHTTPRequestHandler):
    """An OpenAI-compatible endpoint whose model keeps every constraint, or below /refusing none."""

    def do_POST(self) -> None:
        """Answer a chat completion."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        request = make_request(asked["messages"][0]["content"])
        said = "I would rather not." if "/refusing" in self.path else persona(request)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
        usage = {"prompt_tokens": 100, "completion_tokens": 200, "total_tokens": 300}
        body = json.dumps({"id": "1", "object": "chat.completion", "model": "w", "choices": [choice], "usage": usage})
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Serve it on the loopback interface; return its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def test_the_command_goes_from_file_to_file(endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over a real socket: sweep file in, personas out, and what to do with them said."""
    prepared(tmp_path, number=3)
    path = tmp_path / "personas.toml"
    path.write_text(path.read_text("utf-8").replace("http://127.0.0.1:9/v1", endpoint), encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        main(["personas", "generate", str(path), "--plain"])
    out = capsys.readouterr().out
    assert end.value.code == 0
    assert "3 of 3 personas accepted" in out
    assert f'generated_personas = "{tmp_path / "own.toml"}"' in out
    assert len(load_persona_file(tmp_path / "own.toml")) == 3


def test_a_run_of_which_nothing_was_accepted_does_not_say_that_all_is_done(
    endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it says first, what it counts and its exit code agree."""
    prepared(tmp_path, number=2, tries=2)
    path = tmp_path / "personas.toml"
    path.write_text(
        path.read_text("utf-8").replace("http://127.0.0.1:9/v1", endpoint.replace("/v1", "/refusing/v1")),
        encoding="utf-8",
    )
    with pytest.raises(SystemExit) as end:
        main(["personas", "generate", str(path), "--plain"])
    out = capsys.readouterr().out
    assert end.value.code == 5
    assert out.startswith("done, but not every persona was accepted.")
    assert "0 of 2 personas accepted" in out
    assert "everything" not in out


async def test_progress_counts_the_draws_that_are_known_of(tmp_path: Path) -> None:
    """Rejected answers lead to further draws, so there are more than personas; never fewer than are done."""
    job = generation_job(prepared(tmp_path, number=2, tries=3))
    assert job.expected == {"persona": 2}
    model = ScriptedProvider(lambda _request, _times: "no", name="scripted")
    await run_job(job, listen=_ignore, watch=_look, providers={"scripted": model})
    assert job.expected == {"persona": len(model.seen)} == {"persona": 6}


@pytest.mark.parametrize(
    ("text", "says", "mends"),
    [
        pytest.param(
            'name = "s"\nmodels = ["gpt-4o-mini"]\njudges = ["gpt-5.5"]\npersonas = 3\n',
            "this is a sweep file; a file that has a model write personas has a [generate] table instead of judges,"
            " personas",
            "`mirage run` runs sweeps",
            id="sweep",
        ),
        pytest.param(
            '[[persona]]\nid = "own_001"\n', "this is a file of personas", "`mirage personas validate", id="personas"
        ),
    ],
)
def test_a_file_of_another_kind_is_called_what_it_is(
    text: str, says: str, mends: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, with the command that it is meant for."""
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        main(["personas", "generate", str(path)])
    err = capsys.readouterr().err
    assert (end.value.code, err.count("\n")) == (2, 1)
    assert says in err
    assert mends in err
    assert "did you mean" not in err


@pytest.mark.parametrize("example", ["demo.toml", "paper.toml"])
def test_every_example_sweep_is_known_for_one(example: str) -> None:
    """Whatever fields it happens to have."""
    with pytest.raises(UserError, match="this is a sweep file"):
        load_own(Path(__file__).parents[2] / "sweeps" / example)


def test_the_example_in_sweeps_is_a_whole_run() -> None:
    """72 slots, 24 a group, as in the paper."""
    example = prepare_generation(load_generation(Path(__file__).parents[2] / "sweeps" / "personas.toml"))
    groups = Counter(slot.group for slot in example.generation.slots.values())
    assert set(groups.values()) == {24}


def test_run_names_the_command_for_such_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`mirage run` on it is the user's mistake."""
    prepared(tmp_path)
    with pytest.raises(SystemExit):
        main(["run", str(tmp_path / "personas.toml")])
    assert "`mirage personas generate` runs such files" in capsys.readouterr().err


async def test_answers_can_be_read_again_without_the_model(tmp_path: Path) -> None:
    """`mirage reparse` knows runs of this kind; a wrong old reading is redone."""
    sweep = prepared(tmp_path, number=2)
    await run(sweep, good)
    with closing(sqlite3.connect(sweep.store_path, isolation_level=None)) as connection:
        connection.execute("UPDATE cell SET reading_status = 'unreadable' WHERE id = 1")
    (found,) = await reparse(sweep.store_path)
    assert found.changes == (Change(stage="persona", before="unreadable", after="complete", cells=1),)
    assert (found.answers, found.planned) == (2, {})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param(('models = ["writer"]', 'models = ["writer", "gpt-5.5"]'), "one model writes", id="two models"),
        pytest.param(('models = ["writer"]', 'models = ["writr"]'), "did you mean writer", id="unknown model"),
        pytest.param(('name = "own"', 'name = "gen"'), "ids of shipped ones", id="shipped prefix"),
        pytest.param(("number = 6", "number = 4000"), "allow", id="too many"),
        pytest.param(("number = 6", 'number = 6\ngroups = ["typical"]'), "generate", id="unknown group"),
        pytest.param(("number = 6", "number = 6\noccupation = []"), "did you mean `occupations`", id="misspelt"),
        pytest.param(("[generate]", "[limits.gpt-5]\nconcurrency = 1\n[generate]"), "does not use", id="other limits"),
    ],
)
def test_a_mistake_is_one_line(
    change: tuple[str, str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is sent or written."""
    prepared(tmp_path)
    path = tmp_path / "personas.toml"
    path.write_text(path.read_text("utf-8").replace(*change), encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        main(["personas", "generate", str(path)])
    err = capsys.readouterr().err
    assert (end.value.code, err.count("\n")) == (2, 1)
    assert says in err
    assert not (tmp_path / "p.sqlite").exists()
