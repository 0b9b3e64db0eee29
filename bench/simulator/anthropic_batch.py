"""Anthropic's Message Batches: lines in the create call, no marker, counters that move only at the end.

Facts: Anthropic's API reference, SDK types and recorded traffic, November 2026. Ids are checked at once, parameters
when a request runs; a batch never fails as a whole.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import orjson
from aiohttp import web

from bench.simulator.anthropic import Anthropic
from bench.simulator.app import Route
from bench.simulator.batches import Batches
from bench.simulator.batchjobs import ENDED, Clerk, Fate, File, Job, Line, Outcome, Stage
from bench.simulator.delivery import hang_up, json_reply, plain
from bench.simulator.faults import Fault
from bench.simulator.storage import download, gateway_page, owner_of, unanswered
from bench.simulator.wire import Answer, Call, Json, Rejected, Reply, Tag, Trouble, dump, parse

PATH: Final = "/v1/messages/batches"
MOST: Final = 100_000
KEPT: Final = 29 * 86_400.0
MOST_BYTES: Final = 256_000_000
MOST_LISTED: Final = 1000
POLL: Final = {"retry-after": "10"}
CUSTOM_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
FORBIDDEN: Final = ("stream", "speed")
WORDS: Final = {
    Fate.ANSWERED: "succeeded",
    Fate.REFUSED: "errored",
    Fate.EXPIRED: "expired",
    Fate.CANCELLED: "canceled",
}


class AnthropicBatchDesk:
    """Serves the Message Batches."""

    def __init__(self, wire: Anthropic, batches: Batches, keys: tuple[str, ...]) -> None:
        self._wire, self._batches, self._keys = wire, batches, keys
        batches.serve(wire.name, Clerk(self._call, self._word, wire.reject, wire.trouble))

    def routes(self) -> list[Route]:
        """Return the routes that lead here."""
        return [Route(self._wire.prefix + PATH, self.handle)]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve one request."""
        tag = Tag(self._batches.new_id(), int(self._batches.real))
        owner = owner_of(self._wire, request, self._keys)
        if owner is None:
            return plain(self._wire.trouble(Trouble(fault=Fault.AUTH), tag))
        if request.method == "GET" and self._batches.odd.stumbles(self._wire.name):
            return gateway_page()
        path = request.path.removeprefix(self._wire.prefix + PATH).strip("/").split("/")
        try:
            if request.method == "POST" and path == [""]:
                return await self._create(request, owner, tag)
            if request.method == "GET" and path[1:] == ["results"]:
                return await download(request, self._results(self._job(path[0], owner)))
            return self._look(request, path, owner)
        except Rejected as rejected:
            return plain(self._wire.reject(rejected, tag))

    def _look(self, request: web.BaseRequest, path: list[str], owner: bytes) -> web.StreamResponse:
        match request.method, path:
            case "GET", [""]:
                return json_reply(self._list(owner, dict(request.query), request.host))
            case "GET", [job_id]:
                found = self._batch(self._job(job_id, owner), request.host)
                waits = {} if found["processing_status"] == "ended" else POLL
                return plain(Reply(body=dump(found), headers=waits))
            case "POST", [job_id, "cancel"]:
                job = self._job(job_id, owner)
                if not self._batches.cancel(job):
                    raise Rejected("The batch has ended and cannot be canceled.")
                return json_reply(self._batch(job, request.host))
            case "DELETE", [job_id]:
                job = self._job(job_id, owner)
                if self._batches.stage(job) not in ENDED:
                    raise Rejected("The batch has not ended.")
                del self._batches.jobs[job_id]
                return json_reply({"id": job_id, "type": "message_batch_deleted"})
        raise Rejected("Not Found", status=404)

    async def _create(self, request: web.BaseRequest, owner: bytes, tag: Tag) -> web.StreamResponse:
        raw = await request.read()
        lost = self._batches.odd.lose(self._wire.name, "lose_create")
        if lost == "before":
            return hang_up(request)
        if len(raw) > MOST_BYTES:
            raise Rejected("Request exceeds the maximum size", status=413)
        lines = _lines(parse(raw))
        model, quirks = str(lines[0].body.get("model")), self._batches.odd.next(self._wire.name)
        if quirks.queue_full or not self._batches.room(self._wire.name, model, lines):
            return plain(self._wire.trouble(Trouble(fault=Fault.RATE_LIMITED), tag))
        job = self._batches.add_job(
            Job(
                id="msgbatch_" + self._batches.new_id()[:24],
                provider=self._wire.name,
                owner=owner,
                model=model,
                lines=lines,
                quirks=quirks,
                created=self._batches.real,
                born=self._batches.now(),
                label={"version": request.headers.get("anthropic-version", "")},
            )
        )
        return unanswered(request, lost) if lost else json_reply(self._batch(job, request.host))

    def _call(self, job: Job, line: Line) -> Call:
        for name in FORBIDDEN:
            if line.body.get(name):
                raise Rejected(f"{name}: not supported in batches")
        return self._wire.understand(line.body, str(job.label["version"]))

    def _word(self, call: Call, answer: Answer, tag: Tag) -> Reply:
        message = self._wire.message(call, answer, tag)
        message["usage"]["service_tier"] = "batch"
        return Reply(body=dump(message))

    def _job(self, job_id: str, owner: bytes) -> Job:
        job = self._batches.job(job_id, self._wire.name, owner)
        if job is None:
            raise Rejected(f"Message batch {job_id} was not found.", status=404)
        return job

    def _batch(self, job: Job, host: str) -> Json:
        stage = self._batches.stage(job)
        ended, archived = stage in ENDED, self._batches.age(job) > KEPT
        moment = self._batches.moment
        address = f"http://{host}{self._wire.prefix}{PATH}/{job.id}/results"
        return {
            "id": job.id,
            "type": "message_batch",
            "processing_status": "ended" if ended else "canceling" if stage is Stage.CANCELLING else "in_progress",
            "request_counts": _counts(job),
            "ended_at": _moment(self._batches.ended_at(job)) if ended else None,
            "created_at": _moment(job.created),
            "expires_at": _moment(moment(job, job.window)),
            "archived_at": _moment(moment(job, KEPT)) if archived else None,
            "cancel_initiated_at": None if job.ordered is None else _moment(moment(job, job.ordered)),
            "results_url": address if ended and not archived and not job.quirks.no_files else None,
        }

    def _list(self, owner: bytes, query: Mapping[str, str], host: str) -> Json:
        jobs = self._batches.listed(self._wire.name, owner)
        limit = min(int(query.get("limit", "20")), MOST_LISTED)
        ids = [job.id for job in jobs]
        start = ids.index(query["after_id"]) + 1 if query.get("after_id") in ids else 0
        shown = jobs[start : start + limit]
        ends = (shown[0].id, shown[-1].id) if shown else (None, None)
        more = start + limit < len(jobs)
        data = [self._batch(job, host) for job in shown]
        return {"data": data, "has_more": more, "first_id": ends[0], "last_id": ends[1]}

    def _results(self, job: Job) -> File:
        """Return the results file, written when it is first asked for."""
        if self._batches.stage(job) not in ENDED:
            raise Rejected("The batch has not ended, there are no results yet.")
        if self._batches.age(job) > KEPT:
            raise Rejected("The results are not available any more.", status=404)
        if not job.files:
            rows = [{"custom_id": each.custom_id, "result": _result(each)} for each in job.outcomes or []]
            file = File(
                id=f"{job.id}_results",
                owner=job.owner,
                name=f"{job.id}_results.jsonl",
                data=b"".join(dump(row) + b"\n" for row in rows),
                created=self._batches.real,
                purpose="results",
                late=job.quirks.late_results,
                cut=job.quirks.cut_downloads,
                short=job.quirks.short_downloads,
            )
            job.filed([self._batches.add_file(file).id])
        file = self._batches.files[job.files[0]]
        if file.late > 0:
            file.late -= 1
            raise Rejected("The results are not available yet.", status=404)
        return file


def _lines(body: Json) -> list[Line]:
    """Return the requests of a create call; ids are checked at once."""
    requests = body.get("requests")
    if not isinstance(requests, list) or not requests:
        raise Rejected("requests: at least one request is required")
    if len(requests) > MOST:
        raise Rejected(f"requests: at most {MOST} requests are allowed")
    lines: list[Line] = []
    seen: set[str] = set()
    for place, each in enumerate(requests):
        custom_id = each.get("custom_id") if isinstance(each, dict) else None
        if not isinstance(custom_id, str) or not CUSTOM_ID.fullmatch(custom_id):
            raise Rejected(f"requests.{place}.custom_id: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
        if custom_id in seen:
            raise Rejected(f"requests.{place}.custom_id: duplicate custom_id")
        params = each.get("params")
        if not isinstance(params, dict):
            raise Rejected(f"requests.{place}.params: Field required")
        seen.add(custom_id)
        lines.append(Line(custom_id, params))
    return lines


def _counts(job: Job) -> Json:
    """Return the counters: everything is processing until the end, and the sum is always the batch's size."""
    counts: Json = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    if job.outcomes is None:
        return counts | {"processing": len(job.lines)}
    if job.quirks.lying_counts:
        return counts | {"errored": len(job.lines)}
    fates = {each.custom_id: each.fate for each in job.outcomes}
    for line in job.lines:
        counts[WORDS[fates.get(line.custom_id, Fate.ANSWERED)]] += 1
    return counts


def _result(outcome: Outcome) -> Json:
    result: Json = {"type": WORDS[outcome.fate]}
    if outcome.fate is Fate.ANSWERED:
        result["message"] = orjson.Fragment(outcome.reply.body)
    elif outcome.fate is Fate.REFUSED:
        result["error"] = orjson.loads(outcome.reply.body) | {"request_id": None}
    return result


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds")
