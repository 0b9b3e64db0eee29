"""The life of simulated batches in any wire format: jobs, their own time, what runs and is charged, what is left.

A job's state is a function of its age. Its requests run, and are charged, when it reaches its end (a timer sees to it,
so that a client that never looks again is charged as well), each once: those that the age at the end covers. The others
are expired or cancelled. Knows no paths and no words of a provider.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Final

from bench.simulator.batchjobs import ENDED, Clerk, Fate, File, Job, Line, Outcome, Stage
from bench.simulator.batchquirks import Oddities
from bench.simulator.batchrules import BatchSettings
from bench.simulator.desk import Desk
from bench.simulator.faults import CHARGED, Attempt, Fault, Faults
from bench.simulator.tokens import count_prompt
from bench.simulator.wire import Call, Rejected, Tag, Trouble

SLICE: Final = 200  # requests, 15 to 35 ms
NOT_FOR_ROWS: Final = frozenset({Fault.DROP_BEFORE, Fault.BAD_GATEWAY, Fault.AUTH})


class Batches:
    """All jobs and files of all accounts.

    Args:
        clock: real seconds since the epoch.
        seed: of what goes wrong by chance.

    Attributes:
        odd: what goes wrong with the next ones.
    """

    def __init__(
        self, settings: BatchSettings, desk: Desk, faults: Faults, clock: Callable[[], float], *, seed: int = 0
    ) -> None:
        self._settings, self._desk, self._faults, self._clock = settings, desk, faults, clock
        self._start, self._moved, self._numbers = clock(), 0.0, 0
        self._tries: Counter[str] = Counter()
        self.odd = Oddities(settings.chances, seed)
        self._clerks: dict[str, Clerk] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.jobs: dict[str, Job] = {}
        self.files: dict[str, File] = {}

    def serve(self, provider: str, clerk: Clerk) -> None:
        """Let `clerk` read and word the lines of a provider."""
        self._clerks[provider] = clerk

    @property
    def real(self) -> float:
        """Real seconds since the epoch."""
        return self._clock()

    def now(self) -> float:
        """Return the batches' own time."""
        return (self._clock() - self._start) * self._settings.speed + self._moved

    def advance(self, seconds: float) -> None:
        """Let so many of the batches' seconds pass at once."""
        self._moved += seconds
        self.settle()

    def settle(self) -> None:
        """End every job whose time has come."""
        for job in self.jobs.values():
            self.stage(job)

    def new_id(self) -> str:
        """Return 32 hexadecimal digits that nothing else has."""
        self._numbers += 1
        return blake2b(f"{self._start}/{self._numbers}".encode(), digest_size=16).hexdigest()

    def add_file(self, file: File) -> File:
        """Keep a file."""
        self.files[file.id] = file
        return file

    def file(self, file_id: str, owner: bytes) -> File | None:
        """Return an account's file, None also while it is hidden."""
        file = self.files.get(file_id)
        if file is None or file.owner != owner:
            return None
        if file.hidden > 0:
            file.hidden -= 1
            return None
        return file

    def add_job(self, job: Job) -> Job:
        """Start a job and see to its end."""
        job.window = self._settings.window or job.window
        job.hidden, job.unlisted = job.quirks.fresh_404, job.quirks.list_lag
        self.jobs[job.id] = job
        if self._settings.speed > 0:
            delay = self._end(job) / self._settings.speed + 0.001
            asyncio.get_running_loop().call_later(delay, self.stage, job)
        return job

    def job(self, job_id: str, provider: str, owner: bytes) -> Job | None:
        """Return an account's job, None also while it is hidden."""
        job = self.jobs.get(job_id)
        if job is None or (job.provider, job.owner) != (provider, owner):
            return None
        if job.hidden > 0:
            job.hidden -= 1
            return None
        return job

    def listed(self, provider: str, owner: bytes) -> list[Job]:
        """Return an account's jobs that are on its list, newest first."""
        mine = [job for job in reversed(self.jobs.values()) if (job.provider, job.owner) == (provider, owner)]
        shown = [job for job in mine if not job.unlisted]
        for job in mine:
            job.unlisted = max(0, job.unlisted - 1)
        return shown

    def room(self, provider: str, model: str, lines: list[Line]) -> bool:
        """Whether the queue takes these lines beside all live batches of the model."""
        limits = self._settings.enqueued_tokens
        limit = limits.get(f"{provider}/{model}", limits.get(provider, limits.get("*")))
        if limit is None:
            return True
        live = [job for job in self.jobs.values() if (job.provider, job.model) == (provider, model)]
        waiting = sum(_tokens(job.lines) for job in live if self.stage(job) not in ENDED)
        return waiting + _tokens(lines) <= limit

    def cancel(self, job: Job) -> bool:
        """Order a job to stop; False when it has ended, or when its last requests are running."""
        if self.stage(job) in ENDED or job.running:
            return False
        if job.ordered is None:
            job.ordered = self.age(job)
        return True

    def age(self, job: Job) -> float:
        """Return a job's age in the batches' seconds."""
        return self.now() - job.born

    def stage(self, job: Job) -> Stage:
        """Return where a job stands now; its requests run when its time has come, and it ends when they have run.

        While time flows they run in slices, so that the server answers meanwhile; while it stands still, at once.
        """
        stage = self._stage(job, self.age(job))
        if stage not in ENDED or job.outcomes is not None:
            return stage
        if self._settings.speed <= 0:
            _settle(job, [outcome for part in self._slices(job, stage) for outcome in part])
            return stage
        if not job.running:
            job.running = True
            task = asyncio.get_running_loop().create_task(self._work_off(job, stage))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return Stage.FINALIZING if job.ordered is None else Stage.CANCELLING

    def finished(self, job: Job) -> int:
        """Return how many requests have finished by now, of a job that still runs."""
        return self._finished(job, self.age(job))

    def ended_at(self, job: Job) -> float:
        """Return the real moment at which the job ended or will end."""
        return self.moment(job, self._end(job))

    def moment(self, job: Job, age: float) -> float:
        """Return the real moment at which a job has an age, as if time had always passed as it does now."""
        return job.created + age / (self._settings.speed or 1.0)

    def _stage(self, job: Job, age: float) -> Stage:
        settings = self._settings
        if job.ordered is not None:
            return Stage.CANCELLED if age >= job.ordered + settings.cancelling else Stage.CANCELLING
        if age < settings.validating:
            return Stage.VALIDATING
        if job.complaint is not None:
            return Stage.FAILED
        if age < min(self._worked(job), job.window):
            return Stage.RUNNING
        stuck = job.quirks.stuck and (settings.stuck_for_ever or age < job.window)
        if stuck or age < self._end(job):
            return Stage.FINALIZING
        return Stage.EXPIRED if self._worked(job) > job.window else Stage.COMPLETED

    def _pace(self, job: Job) -> float:
        """Return the time between two requests that finish."""
        if job.quirks.expire:
            return 2 * job.window / max(1, len(job.lines))
        return self._settings.request * job.quirks.slow

    def _worked(self, job: Job) -> float:
        return self._settings.validating + len(job.lines) * self._pace(job)

    def _end(self, job: Job) -> float:
        if job.ordered is not None:
            return job.ordered + self._settings.cancelling
        if job.complaint is not None:
            return self._settings.validating
        worked = self._worked(job)
        return job.window if worked > job.window else worked + self._settings.finalizing

    def _finished(self, job: Job, age: float) -> int:
        ran = min(age, job.ordered if job.ordered is not None else age) - self._settings.validating
        pace = self._pace(job)
        return max(0, min(len(job.lines), int(ran / pace) if pace else len(job.lines)))

    async def _work_off(self, job: Job, stage: Stage) -> None:
        outcomes: list[Outcome] = []
        for part in self._slices(job, stage):
            outcomes += part
            await asyncio.sleep(0)
        _settle(job, outcomes)

    def _slices(self, job: Job, stage: Stage) -> Iterator[list[Outcome]]:
        """Run the requests that the job's age at its end covers, and leave the others."""
        if stage is Stage.FAILED:
            return
        done = len(job.lines) if stage is Stage.COMPLETED else self._finished(job, self._end(job))
        left = Fate.EXPIRED if stage is Stage.EXPIRED else Fate.CANCELLED
        for start in range(0, done, SLICE):
            yield [self._work(job, line) for line in job.lines[start : min(start + SLICE, done)]]
        yield [Outcome(line.custom_id, left) for line in job.lines[done:]]

    def _work(self, job: Job, line: Line) -> Outcome:
        """Answer and charge one line, or refuse it."""
        clerk, tag = self._clerks[job.provider], Tag(self.new_id(), int(self._clock()))
        try:
            call = clerk.read(job, line)
        except Rejected as rejected:
            return Outcome(line.custom_id, Fate.REFUSED, clerk.reject(rejected, tag))
        fault = self._misfortune(call)
        if self._desk.gone(call.model):
            fault = Fault.GONE
        if fault is not None and fault not in CHARGED:
            return Outcome(line.custom_id, Fate.REFUSED, clerk.trouble(Trouble(fault=fault, model=call.model), tag))
        answer = self._desk.answer(call, fault)
        self._desk.charge(call, answer, fault=fault or "", batch=job.id, reply=tag.id)
        return Outcome(line.custom_id, Fate.ANSWERED, clerk.write(call, answer, tag), tag.id)

    def _misfortune(self, call: Call) -> Fault | None:
        if not self._faults.active:
            return None
        self._tries[call.hash] += 1
        stage, number = self._desk.stage(call), self._tries[call.hash]
        rule = self._faults.decide(
            Attempt(call.provider, call.model, stage, call.user, call.hash, number, batched=True)
        )
        return None if rule is None or rule.fault in NOT_FOR_ROWS else rule.fault


def _settle(job: Job, outcomes: list[Outcome]) -> None:
    """Keep what came of a job, and of its lines no more than their ids: prompts are long."""
    job.outcomes = _disturbed(job, outcomes)
    job.lines = [Line(line.custom_id, {}) for line in job.lines]


def _tokens(lines: list[Line]) -> int:
    return sum(count_prompt([str(line.body)]) for line in lines)


def _disturbed(job: Job, outcomes: list[Outcome]) -> list[Outcome]:
    """Return the outcomes in the order, with the repetitions and the gaps, that the quirks want."""
    quirks = job.quirks
    answered = [each for each in outcomes if each.fate is Fate.ANSWERED]
    lost = {each.custom_id for each in answered[: quirks.lose_rows]}
    outcomes = [each for each in outcomes if each.custom_id not in lost]
    outcomes += [each for each in outcomes if each.fate is Fate.ANSWERED][: quirks.repeat_rows]
    if quirks.shuffle:
        random.Random(job.id).shuffle(outcomes)  # noqa: S311 - an order, not a secret
    return outcomes
