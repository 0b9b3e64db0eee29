"""The process on its socket: replies, faults, limits and the bill, with a plain HTTP client."""

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import httpx
import pytest

from bench.simulator.bill import Charge, content_hash, read_bill
from bench.simulator.config import load_config
from bench.simulator.launch import Running, running, start
from engine.errors import UserError
from engine.money import Price, cost_nano, nano_from_usd
from engine.request import Usage
from instruments.personas import load_personas
from instruments.prompts import in_sentence, load_prompts
from instruments.tasks import load_tasks

Break = Callable[..., None]
KEY = {"authorization": "Bearer good"}


def body(text: str, model: str = "gpt-4o-mini", **more: object) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": text}]} | more


def ask(simulator: Running, text: str, model: str = "gpt-4o-mini", **more: object) -> httpx.Response:
    sent = body(text, model, **more)
    return httpx.post(simulator.url("openai") + "/chat/completions", json=sent, headers=KEY, timeout=30)


def charges(simulator: Running, text: str, model: str = "gpt-4o-mini") -> list[dict[str, object]]:
    wanted = content_hash(model, body(text, model))
    found: list[dict[str, object]] = httpx.get(f"{simulator.address}/_sim/bill", params={"hash": wanted}).json()
    return found


def test_every_reply_says_that_it_is_simulated(simulator: Running) -> None:
    """Answers, errors, unknown paths and the simulator's own pages."""
    paths = ["/_sim", "/nowhere", "/openai/v1/models"]
    replies = [httpx.get(simulator.address + path) for path in paths] + [ask(simulator, "marked"), ask(simulator, "")]
    assert {reply.headers["x-simulated"] for reply in replies} == {"miragebench"}


def test_an_answer_is_charged_once_at_the_price_in_the_settings(simulator: Running) -> None:
    """The bill's figure is that of the usage in the reply, in nano-dollars."""
    usage = ask(simulator, "charged once").json()["usage"]
    (charge,) = charges(simulator, "charged once")
    spent = Usage(input_tokens=usage["prompt_tokens"], output_tokens=usage["completion_tokens"])
    expected = cost_nano(Price(input=nano_from_usd("0.15"), output=nano_from_usd("0.60")), spent)
    assert (charge["nano"], charge["outcome"]) == (expected, "delivered")


def test_equal_questions_get_equal_answers_and_are_both_charged(simulator: Running) -> None:
    """The bill sees what a client that repeats itself pays."""
    first, second = (ask(simulator, "twice").json()["choices"] for _ in range(2))
    assert first == second
    assert len(charges(simulator, "twice")) == 2


def test_the_allowance_cuts_the_answer(simulator: Running) -> None:
    """Finish `length`, and not a token more than allowed."""
    reply = ask(simulator, "short", max_completion_tokens=5).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 5


def test_reasoning_counts_against_the_allowance(simulator: Running) -> None:
    """A small allowance is used up before a word is said."""
    reply = ask(simulator, "think", "gpt-5.5", max_completion_tokens=10).json()
    assert reply["choices"][0]["message"]["content"] == ""
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 10


def test_a_repeated_system_prompt_is_read_from_the_cache(simulator: Running) -> None:
    """The second call pays the cached price for whole units of it."""
    turns = [{"role": "system", "content": "cached " * 1000}, {"role": "user", "content": "x"}]
    counts = [
        ask(simulator, "", messages=turns).json()["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)
    ]
    assert counts == [0, 1024]


@pytest.mark.parametrize("key", ["", "Basic good", "Bearer wrong"])
def test_a_wrong_key_is_not_let_in_and_not_charged(key: str, simulator: Running) -> None:
    """401, as at the provider."""
    sent = body("no key")
    reply = httpx.post(simulator.url("openai") + "/chat/completions", json=sent, headers={"authorization": key})
    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
    assert charges(simulator, "no key") == []


@pytest.mark.parametrize("sent", [b"", b"{", b"[]", b"\xff\xfe"])
def test_a_body_that_is_no_json_object_is_refused(sent: bytes, simulator: Running) -> None:
    """400 with the provider's error object, whatever the bytes."""
    reply = httpx.post(simulator.url("openai") + "/chat/completions", content=sent, headers=KEY)
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")


def test_a_long_prompt_is_read_whole(simulator: Running) -> None:
    """Two megabytes are half a million tokens."""
    reply = ask(simulator, "long " * 400_000)
    assert reply.json()["usage"]["prompt_tokens"] == 500_007


def test_a_retired_model_does_not_exist(simulator: Running) -> None:
    """404 with the provider's code."""
    reply = ask(simulator, "x", "retired-model")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


def test_an_exhausted_limit_names_the_seconds_and_charges_nothing(simulator: Running) -> None:
    """The second call of the minute waits; the headers show an empty bucket."""
    ask(simulator, "tight first", "tight-1")
    reply = ask(simulator, "tight second", "tight-1")
    assert reply.status_code == 429
    assert 55 < int(reply.headers["retry-after"]) <= 60
    assert reply.headers["x-ratelimit-remaining-requests"] == "0"
    assert charges(simulator, "tight second", "tight-1") == []


@pytest.mark.parametrize(
    ("fault", "status"),
    [("server_error", 500), ("bad_gateway", 502), ("unavailable", 503), ("overloaded", 503), ("quota", 429)],
)
def test_scripted_errors_have_their_status_and_are_not_charged(
    fault: str, status: int, simulator: Running, break_next: Break
) -> None:
    """The next call goes through again."""
    break_next(fault, f"error {fault}")
    assert ask(simulator, f"error {fault}").status_code == status
    assert charges(simulator, f"error {fault}") == []
    assert ask(simulator, f"error {fault}").status_code == 200


def test_a_connection_cut_before_the_work_is_not_charged(simulator: Running, break_next: Break) -> None:
    """The client cannot tell it from the other kind."""
    break_next("drop_before", "cut before")
    with pytest.raises(httpx.TransportError):
        ask(simulator, "cut before")
    assert charges(simulator, "cut before") == []


@pytest.mark.parametrize("fault", ["drop_after", "truncated_body"])
def test_a_connection_cut_after_the_work_is_charged(fault: str, simulator: Running, break_next: Break) -> None:
    """The client gets nothing and pays."""
    break_next(fault, f"cut {fault}")
    with pytest.raises(httpx.TransportError):
        ask(simulator, f"cut {fault}")
    (charge,) = charges(simulator, f"cut {fault}")
    assert (charge["outcome"], charge["fault"]) == ("dropped", fault)


@pytest.mark.parametrize("fault", ["malformed_json", "html"])
def test_a_spoiled_body_arrives_as_a_200_and_is_charged(fault: str, simulator: Running, break_next: Break) -> None:
    """Labelled as JSON, and is none."""
    break_next(fault, f"spoiled {fault}")
    reply = ask(simulator, f"spoiled {fault}")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
    with pytest.raises(json.JSONDecodeError):
        reply.json()
    assert len(charges(simulator, f"spoiled {fault}")) == 1


def test_a_slow_body_arrives_whole(simulator: Running, break_next: Break) -> None:
    """In pieces, over the time that the rule says."""
    break_next("slow_body", "slow", seconds=0.2)
    reply = ask(simulator, "slow")
    assert reply.json()["choices"][0]["finish_reason"] == "stop"
    assert reply.elapsed.total_seconds() > 0.15


def test_a_stalled_body_runs_into_the_client_s_timeout(simulator: Running, break_next: Break) -> None:
    """Half a body and then nothing."""
    break_next("stall", "stalled", seconds=5)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(simulator.url("openai") + "/chat/completions", json=body("stalled"), headers=KEY, timeout=0.3)


def test_only_the_named_attempt_goes_wrong(simulator: Running, break_next: Break) -> None:
    """The second time that the same content is asked."""
    break_next("server_error", "second time", attempt=2)
    assert [ask(simulator, "second time").status_code for _ in range(3)] == [200, 500, 200]


def test_a_rule_that_means_nothing_is_refused(simulator: Running) -> None:
    """With what is wrong about it."""
    reply = httpx.post(f"{simulator.address}/_sim/faults", json={"fault": "explode"})
    assert reply.status_code == 400
    assert "explode" in reply.json()["error"]


def test_the_summary_of_the_running_bill_adds_up(simulator: Running) -> None:
    """Models and stages are two views of one total."""
    ask(simulator, "for the summary")
    summary = httpx.get(f"{simulator.address}/_sim/bill/summary").json()
    for view in ("models", "stages"):
        assert sum(total["nano"] for total in summary[view].values()) == summary["total"]["nano"]
    assert summary["distinct"] + summary["repeated"]["calls"] == summary["total"]["calls"]


def test_the_right_answer_can_be_asked_for(simulator: Running) -> None:
    """All claims of the population."""
    known = httpx.get(f"{simulator.address}/_sim/known").json()
    cells = [cell for tasks in known["claims"].values() for groups in tasks.values() for cell in groups.values()]
    assert sum(map(sum, cells)) == 143_616


def test_killing_the_simulator_keeps_every_charge_that_was_answered(tmp_path: Path) -> None:
    """Kill -9 in the middle; a new process goes on with the same bill."""
    simulator = start(tmp_path)
    for number in range(5):
        ask(simulator, f"before the kill {number}")
    simulator.kill()
    assert [line.n for line in read_bill(simulator.bill)] == [1, 2, 3, 4, 5]
    with running(tmp_path) as again:
        ask(again, "after the kill")
        assert httpx.get(f"{again.address}/_sim").json()["calls"] == 6


def test_a_client_that_left_is_charged_and_the_bill_says_so(
    tmp_path: Path, settings_file: Callable[[str], Path]
) -> None:
    """It asked, went away, and the work was done all the same."""
    slow = settings_file('[latency."*"]\nmedian_ms = 400')
    with running(tmp_path / "state", config=slow) as simulator:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(simulator.url("openai") + "/chat/completions", json=body("gone"), headers=KEY, timeout=0.1)
        ask(simulator, "somebody else")
        lines = list(read_bill(simulator.bill))
    assert [line.model for line in lines if isinstance(line, Charge)] == ["gpt-4o-mini"] * 2
    assert [line.n for line in lines if not isinstance(line, Charge)] == [1]


@pytest.mark.parametrize("text", ["prices = 3", '[prices."*"]\ninput = "cheap"\noutput = "1"', "unknown = 1", "= 1"])
def test_settings_that_mean_nothing_name_their_file(text: str, settings_file: Callable[[str], Path]) -> None:
    """One line for people: what, where, how to mend."""
    with pytest.raises(UserError, match=r"settings cannot be used: .*settings\.toml.*; correct it"):
        load_config(settings_file(text))


def test_a_simulator_that_cannot_start_says_why_in_one_line(
    tmp_path: Path, settings_file: Callable[[str], Path]
) -> None:
    """No traceback reaches the caller."""
    with pytest.raises(UserError, match=r"did not start .*; simulator: the simulator's settings cannot be used"):
        start(tmp_path / "state", config=settings_file("unknown = 1"))


def test_the_price_with_the_longest_matching_name_counts(simulator: Running) -> None:
    """A snapshot of gpt-4o-mini costs what gpt-4o-mini costs, another model what everything else costs."""
    ask(simulator, "priced", "gpt-4o-mini-2024-07-18")
    ask(simulator, "priced", "gpt-4.1")
    cheap, dear = (charges(simulator, "priced", model)[0]["nano"] for model in ("gpt-4o-mini-2024-07-18", "gpt-4.1"))
    assert isinstance(cheap, int)
    assert isinstance(dear, int)
    assert 6 < dear / cheap < 7


def test_the_example_settings_can_be_used() -> None:
    """Every table that the example shows means something."""
    config = load_config(Path(str(files("bench.simulator") / "example.toml")))
    assert (len(config.limits), len(config.faults.rules), len(config.faults.random)) == (3, 1, 3)


def task_answers(simulator: Running, times: int) -> list[str]:
    """Return what a task is answered to the same words, time after time."""
    persona, task = load_personas()[0], load_tasks()["apartment"]
    system = load_prompts().fill("task_system", revealed_facts=in_sentence(persona.facts))
    turns = [{"role": "system", "content": system}, {"role": "user", "content": task.prompt}]
    replies = [ask(simulator, "", messages=turns).json() for _ in range(times)]
    return [reply["choices"][0]["message"]["content"] for reply in replies]


def test_with_draws_a_task_asked_again_is_answered_anew_also_after_a_restart(
    tmp_path: Path, simulator: Running
) -> None:
    """The first draw is the answer that there is without them; the bill remembers the number of the next."""
    settings = tmp_path / "settings.toml"
    settings.write_text("draws = true\n")
    with running(tmp_path / "state", config=settings) as found:
        first, second = task_answers(found, 2)
        again = [ask(found, "not a task").json()["choices"][0]["message"]["content"] for _ in range(2)]
    with running(tmp_path / "state", config=settings) as found:
        (third,) = task_answers(found, 1)
    assert task_answers(simulator, 2) == [first, first]
    assert len({first, second, third}) == 3
    assert again[0] == again[1]
