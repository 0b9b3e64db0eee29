"""The benchmarks: what they count, how they judge, and that each of them runs, in a size of no use to anybody."""

import asyncio
import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from bench.cli import main
from bench.reconcile import Reconciled, reconcile
from bench.simulator.bill import Bill
from bench.simulator.tail import Tail
from bench.throughput import batch, engine, kills, kills_batches, limits, scale
from bench.throughput.lab import KEY, card_at, providers_at, question
from bench.throughput.limits import Case, Kind
from bench.throughput.loopback import base_url, serving
from bench.throughput.process import Window
from engine.request import Usage

USAGE = Usage(input_tokens=10, output_tokens=5)


class Books:
    """A store and a bill that a test fills by hand."""

    def __init__(self, folder: Path) -> None:
        self.store, self.bill = folder / "store.sqlite", Bill(folder)
        migration = (Path(engine.__file__).parents[2] / "engine/sql/migrations/0001_initial.sql").read_text("utf-8")
        self._connection = sqlite3.connect(self.store)
        with self._connection as connection:
            connection.executescript(migration)
            connection.execute("INSERT INTO sweep VALUES (1, 's', 1, '{}', '', 1, 0)")
            connection.execute("INSERT INTO run (id, sweep_id, manifest, pid, started_ms) VALUES (1, 1, '{}', 1, 0)")
        self._requests = 0

    def charge(self, reply: int, nano: int, *, content: int = 1, fault: str = "", batch: str = "") -> None:
        """Write one line on the bill."""
        self.bill.charge(
            at=1.0, provider="openai", model="m", content=f"{content:032x}", stage="task", usage=USAGE, nano=nano,
            reply=f"{reply:024x}", fault=fault, batch=batch,
        )  # fmt: skip

    def answered(self, reply: int, nano: int) -> None:
        """Put one answer into the store."""
        self._requests += 1
        with self._connection as connection:
            connection.execute(
                "INSERT INTO request (id, key, sweep_id, lane, provider, model, alias, stage, priority, size, messages,"
                " state, attempts) VALUES (?, ?, 1, 'l', 'p', 'm', 'a', 'task', 0, 1, 1, 'settled', 1)",
                (self._requests, self._requests.to_bytes(16)),
            )
            connection.execute(
                "INSERT INTO completion VALUES (?, 1, '', '', 'stop', '', '', ?, 10, 0, 0, 5, 0, ?, 1, 1, x'')",
                (self._requests, f"req_{reply:024x}", nano),
            )
            self._attempt("completed", nano, None)

    def assumed(self, nano: int, error: str = "the connection broke") -> None:
        """Put one attempt into the store that may have been billed."""
        with self._connection:
            self._attempt("assumed", nano, error)

    def interrupted(self) -> None:
        """Put one attempt of a free model into the store that a kill cut off."""
        with self._connection:
            self._attempt("error", 0, "interrupted")

    def close(self) -> None:
        """Close both."""
        self._connection.close()
        self.bill.close()

    def reconciled(self) -> Reconciled:
        """Compare."""
        return reconcile(self.store, self.bill.path)

    def _attempt(self, outcome: str, nano: int, error: str | None) -> None:
        number = self._connection.execute("SELECT count(*) FROM attempt").fetchone()[0] + 1
        self._connection.execute(
            "INSERT INTO attempt (request_id, number, run_id, sweep_id, provider, alias, stage, reserved_nano,"
            " reserved_tokens, sent_ms) VALUES (?, ?, 1, 1, 'p', 'a', 'task', ?, 0, 0)",
            (self._requests, number, nano),
        )
        self._connection.execute(
            "UPDATE attempt SET outcome = ?, cost_nano = ?, settled_ms = 1, error = ? WHERE number = ?",
            (outcome, nano, error, number),
        )


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    found = Books(tmp_path)
    yield found
    found.close()


def test_equal_books_are_exact(books: Books) -> None:
    """One charge, one answer, the same amount."""
    books.charge(1, 70)
    books.answered(1, 70)
    found = books.reconciled()
    assert found.exact
    assert (found.matched, found.twice, found.spoiled, found.absent) == (1, 0, 0, 0)


def test_a_nano_dollar_is_missed(books: Books) -> None:
    """Equal means equal."""
    books.charge(1, 70)
    books.answered(1, 69)
    found = books.reconciled()
    assert not found.exact
    assert found.wrong == (f"req_{1:024x}",)


def test_an_answer_without_a_charge_is_wrong(books: Books) -> None:
    """An answer that nobody billed was invented."""
    books.answered(2, 0)
    assert not books.reconciled().exact


def test_a_repeated_call_is_billed_twice_and_must_be_assumed(books: Books) -> None:
    """The ledger knows that it may have been billed, and counts at least what it cost."""
    books.charge(1, 70)
    books.charge(2, 70)
    books.answered(2, 70)
    assert (books.reconciled().twice, books.reconciled().exact) == (1, False)
    books.assumed(500, "interrupted while on the wire")
    found = books.reconciled()
    assert (found.exact, found.cut_off, found.cut_off_nano) == (True, 1, 500)


def test_a_free_model_is_cut_off_too(books: Books) -> None:
    """Nothing is assumed to be billed, but the call was on the wire."""
    books.charge(1, 0)
    books.charge(2, 0)
    books.answered(2, 0)
    books.interrupted()
    found = books.reconciled()
    assert (found.twice, found.cut_off, found.assumed, found.exact) == (1, 1, 0, True)


def test_a_spoiled_answer_is_no_double_bill(books: Books) -> None:
    """It had to be asked again."""
    books.charge(1, 70, fault="drop_after")
    books.charge(2, 70)
    books.answered(2, 70)
    books.assumed(100)
    found = books.reconciled()
    assert (found.spoiled, found.twice, found.cut_off, found.exact) == (1, 0, 0, True)


def test_a_batch_has_no_spoiled_answers(books: Books) -> None:
    """Its rows can be read again and again, so what is charged and not there was charged twice."""
    books.charge(1, 100, batch="b")
    books.charge(2, 100, fault="drop_after", batch="b")
    books.answered(1, 100)
    found = books.reconciled()
    assert (found.spoiled, found.twice, found.batched, found.batched_twice) == (0, 1, 2, 1)
    assert not found.exact


def test_a_paid_answer_that_is_nowhere_is_absent(books: Books) -> None:
    """Its content has no answer at all."""
    books.charge(1, 70, content=9)
    found = books.reconciled()
    assert (found.absent, found.absent_contents) == (1, frozenset({f"{9:032x}"}))


GOOD = kills.Report(
    calls=10, kills=2, completed=9, failed=1, lost=0, billed_twice=3, billed_for_nothing=1, on_the_wire_at_kills=4,
    engine_estimate_of_double_bills=4, billed_twice_nano=30, engine_estimate_nano=40, billed_nano=100, ledger_nano=150,
    exact=True, errors={}, life_s=1.0, seconds=1.0, load_before=0.0, load_after=0.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        pytest.param({}, True, id="as promised"),
        pytest.param({"lost": 1}, False, id="a call is lost"),
        pytest.param({"completed": 8}, False, id="the sum is wrong"),
        pytest.param({"billed_twice": 5}, False, id="more repeated than was on the wire"),
        pytest.param({"engine_estimate_of_double_bills": 2}, False, id="the estimate is too low"),
        pytest.param({"engine_estimate_nano": 29}, False, id="the estimated money is too low"),
        pytest.param({"exact": False}, False, id="bill and ledger differ"),
    ],
)
def test_a_report_of_kills_holds_only_if_every_promise_does(changes: Mapping[str, object], holds: bool) -> None:
    """Each promise can break it alone."""
    assert msgspec.structs.replace(GOOD, **changes).holds is holds


BATCHED = kills_batches.BatchReport(
    calls=10, kills=2, aimed=1, steps=1, of_steps=50, completed=9, failed=1, unknown=1, lost=0, billed_twice=0,
    billed_twice_nano=0, batches=3, dropped=0, expired=0, billed_nano=100, ledger_nano=150, assumed_nano=50,
    charged_without_answer=1, exact=True, providers={}, reasons={}, life_s=1.0, seconds=1.0, load_before=0.0,
    load_after=0.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        pytest.param({}, True, id="as promised"),
        pytest.param({"lost": 1}, False, id="a call is lost"),
        pytest.param({"completed": 8}, False, id="the sum is wrong"),
        pytest.param({"billed_twice": 1}, False, id="a call is billed twice"),
        pytest.param({"charged_without_answer": 2}, False, id="a charge that no failure explains"),
        pytest.param({"exact": False}, False, id="bill and ledger differ"),
    ],
)
def test_a_report_of_kills_by_batch_holds_only_if_every_promise_does(
    changes: Mapping[str, object], holds: bool
) -> None:
    """Each promise can break it alone."""
    assert msgspec.structs.replace(BATCHED, **changes).holds is holds


def test_batches_are_built_sent_and_settled_in_a_process_of_their_own(tmp_path: Path) -> None:
    """Every part is measured, for a small batch and a larger one."""
    report = batch.run_batch(requests=400, small=100, provider="openai", folder=tmp_path)
    assert (report.small.requests, report.large.requests, report.large.batches) == (100, 400, 1)
    for phase in (report.large.build, report.large.send, report.large.settle):
        assert phase is not None
        assert phase.cpu_s > 0
        assert phase.per_cpu_s > 0
    assert report.large.peak_mb >= report.large.before_mb > 0
    assert report.large.busy_ms > 0


def test_a_window_measures_between_two_counts() -> None:
    """What comes before and after does not count."""
    window = Window(2, 5)
    for _ in range(6):
        window.tick()
    assert window.count == 6
    assert window.cpu_s_per_1000() >= 0
    assert window.per_s() > 0


def test_a_tail_counts_whole_lines_once(tmp_path: Path) -> None:
    """A line that is being written does not count yet."""
    file = tmp_path / "bill.jsonl"
    tail = Tail(file)
    assert tail.look() == 0
    file.write_bytes(b"one\ntwo\nthr")
    assert tail.look() == 2
    with file.open("ab") as more:
        more.write(b"ee\n")
    assert tail.look() == 3


async def test_the_loopback_server_satisfies_the_real_adapter() -> None:
    """Many calls on kept connections, with and without latency."""
    with serving() as port:
        card = card_at(base_url(port, 5))
        provider = providers_at(card)["openai"]
        replies = await asyncio.gather(*(provider.complete(question(card, n).request) for n in range(40)))
        await provider.close()
    assert {reply.completion.usage.output_tokens for reply in replies} == {125}
    assert all(reply.hints is not None and reply.hints.requests_limit == 3_000_000 for reply in replies)


def test_questions_differ_and_weigh_the_same() -> None:
    """Else equal calls would be shared."""
    card = card_at("http://127.0.0.1:1/v1")
    cells = [question(card, number) for number in (1, 2, 99_999)]
    assert len({cell.request for cell in cells}) == 3
    assert {sum(len(message.content) for message in cell.request.messages) for cell in cells} == {420}


@pytest.mark.parametrize("client", ["engine", "httpx", "aiohttp"])
def test_the_engine_benchmark_measures_every_client(client: engine.Client, tmp_path: Path) -> None:
    """A row each, with the floor as one."""
    report = engine.run_cases(
        calls=100, repeats=1, latencies=[0], concurrencies=[8], clients=["httpx", client], folder=tmp_path
    )
    rows = {case.client: case for case in report.cases}
    assert rows["httpx"].ratio_to_floor == 1
    assert rows[client].cpu_s_per_1000 > 0
    assert list(tmp_path.iterdir()) == []


def test_the_use_of_a_rate_limit_is_measured_at_the_bill(tmp_path: Path) -> None:
    """A limit that is given is used and kept; the store and the bill stay where they were told to."""
    case = Case(kind=Kind.REQUESTS, limit=1200, seconds=4, settle=1.5)
    found = limits.run_case(case, tmp_path / "case")
    assert 0 < found.share < 1.05
    assert found.throttled == 0
    assert found.calls >= 40


def test_two_processes_keep_to_one_limit_by_shares(tmp_path: Path) -> None:
    """Each with a store of its own and half of the limit; together they use it, and nobody is told to slow down."""
    case = Case(kind=Kind.REQUESTS, limit=1200, seconds=5, settle=2, processes=2)
    found = limits.run_case(case, tmp_path / "case")
    assert 0.5 < found.share < 1.05
    assert found.throttled == 0
    assert len(list((tmp_path / "case").glob(limits.STORES))) == 2


@pytest.mark.parametrize("case", limits.cases(), ids=limits.describe)
def test_every_case_of_limits_has_more_work_than_fits(case: Case) -> None:
    """Else it would measure the end of the work."""
    per_second = {Kind.CONCURRENCY: case.limit * 1000 / limits.LATENCY_MS, Kind.REQUESTS: case.limit / 60}
    tokens = {Kind.TOKENS: 138, Kind.INPUT_TOKENS: 116, Kind.OUTPUT_TOKENS: 22}
    rate = per_second.get(case.kind) or case.limit / 60 / tokens[case.kind]
    assert limits._enough(case) > rate * case.seconds


def test_scale_plans_resumes_and_counts(tmp_path: Path) -> None:
    """All three steps, each in a process of its own."""
    report = scale.run_scale(requests=2000, send=300, folder=tmp_path)
    assert report.integrity == "ok"
    assert report.status.requests == 2000
    assert report.send.requests >= 300
    assert report.plan.peak_mb < scale.MOST_MB


def test_figures_are_written_and_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table on the screen, everything in the file."""
    file = tmp_path / "figures" / "scale.json"
    with pytest.raises(SystemExit):
        main(["bench", "scale", "--requests", "1000", "--send", "100", "--json", str(file)])
    found = json.loads(file.read_text())
    assert (found["benchmark"], found["simulated"]) == ("scale", True)
    assert found["result"]["requests"] == 1000
    assert "load" in capsys.readouterr().out


def test_the_key_of_the_benchmarks_reaches_no_store(tmp_path: Path) -> None:
    """It is no secret, but the rule has no exceptions."""
    scale.run_scale(requests=1000, send=100, folder=tmp_path)
    report = limits.run_case(Case(kind=Kind.CONCURRENCY, limit=4, seconds=1.5, settle=0.5), tmp_path / "case")
    assert report.calls > 0
    assert KEY.encode() not in b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
