"""Files and batches of OpenAI, DashScope, Zhipu and Moonshot: one shape, four spellings.

Facts: the providers' batch references and recorded traffic, November 2026. A create call never looks at the file;
validation comes later and names the first bad line only. Results are an output and an error file, null when empty.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec
import orjson
from aiohttp import web

from bench.simulator.app import Route
from bench.simulator.batches import Batches
from bench.simulator.batchjobs import ENDED, Clerk, Complaint, Fate, File, Job, Line, Outcome, Stage
from bench.simulator.delivery import hang_up, json_reply, plain
from bench.simulator.faults import Fault
from bench.simulator.limits import MINUTE, Bucket
from bench.simulator.openai import CHAT, OpenAI
from bench.simulator.openai_lines import SPELLINGS, complain, model_of, read_lines
from bench.simulator.storage import download, gateway_page, owner_of, unanswered, uploaded
from bench.simulator.wire import Call, Json, Rejected, Tag, Trouble, parse

HOUR: Final = 3600
WINDOW: Final = re.compile(r"(\d{1,3})([hd])")
SAMPLING: Final = ("temperature", "top_p", "n", "presence_penalty", "frequency_penalty")
QUEUE: Final = "Enqueued token limit reached for {} in organization simulated. Please try again later."
WORDS: Final = {Stage.RUNNING: "in_progress"}
LEFT: Final = {
    Fate.EXPIRED: ("batch_expired", "This request could not be executed before the completion window expired."),
    Fate.CANCELLED: ("batch_cancelled", "This request was not executed because the batch was cancelled."),
}


class OpenAIBatchDesk:
    """Serves `/files` and `/batches` of one provider."""

    def __init__(self, wire: OpenAI, batches: Batches, keys: tuple[str, ...]) -> None:
        self._wire, self._batches, self._keys = wire, batches, keys
        self._spelling = SPELLINGS[wire.name]
        self._lists: dict[bytes, Bucket] = {}
        batches.serve(wire.name, Clerk(_read(wire), wire.write, wire.reject, wire.trouble))

    def routes(self) -> list[Route]:
        """Return the routes that lead here."""
        return [Route(f"{self._wire.prefix}/{part}", self.handle) for part in ("files", "batches")]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve one request."""
        tag = Tag(self._batches.new_id(), int(self._batches.real))
        owner = owner_of(self._wire, request, self._keys)
        if owner is None:
            return plain(self._wire.trouble(Trouble(fault=Fault.AUTH), tag))
        if request.method == "GET" and self._batches.odd.stumbles(self._wire.name):
            return gateway_page()
        path = request.path.removeprefix(self._wire.prefix).strip("/").split("/")
        try:
            return await self._serve(request, path, owner)
        except Rejected as rejected:
            return plain(self._wire.reject(rejected, tag))

    async def _serve(self, request: web.BaseRequest, path: list[str], owner: bytes) -> web.StreamResponse:
        match request.method, path:
            case "POST", ["files"]:
                return await self._upload(request, owner)
            case "GET", ["files", file_id, "content"]:
                return await download(request, self._content(file_id, owner))
            case "POST", ["batches"]:
                return await self._create(request, owner)
            case method, ["files", *rest]:
                return json_reply(self._look_at_files(method, rest, owner))
            case method, ["batches", *rest]:
                return json_reply(self._look_at_batches(method, rest, owner, dict(request.query)))
        raise _no_such(request.method, path)

    def _look_at_files(self, method: str, path: list[str], owner: bytes) -> Json:
        match method, path:
            case "GET", []:
                return self._file_list(owner)
            case "GET", [file_id]:
                return _file(self._file(file_id, owner))
            case "DELETE", [file_id]:
                self._file(file_id, owner)
                del self._batches.files[file_id]
                return {"id": file_id, "object": "file", "deleted": True}
        raise _no_such(method, path)

    def _look_at_batches(self, method: str, path: list[str], owner: bytes, query: dict[str, str]) -> Json:
        match method, path:
            case "GET", []:
                return self._list(owner, query)
            case "GET", [job_id]:
                return self._batch(self._job(job_id, owner))
            case "POST", [job_id, "cancel"]:
                return self._cancel(self._job(job_id, owner))
        raise _no_such(method, path)

    async def _upload(self, request: web.BaseRequest, owner: bytes) -> web.StreamResponse:
        lost = self._batches.odd.lose(self._wire.name, "lose_upload")
        name, purpose, data = await uploaded(request)
        if lost == "before":
            return hang_up(request)
        if purpose != "batch" or not name.endswith(".jsonl"):
            raise Rejected("Invalid file for purpose batch.", param="purpose", code="invalid_value")
        if len(data) > self._spelling.most_bytes or not data:
            raise Rejected("File is too large." if data else "File is empty.", param="file")
        file = File(
            id=self._spelling.file + self._batches.new_id()[:24],
            owner=owner,
            name=name,
            data=data,
            created=self._batches.real,
            hidden=self._batches.odd.next(self._wire.name).fresh_404,
        )
        self._batches.add_file(file)
        return unanswered(request, lost) if lost else json_reply(_file(file))

    async def _create(self, request: web.BaseRequest, owner: bytes) -> web.StreamResponse:
        body = parse(await request.read())
        lost = self._batches.odd.lose(self._wire.name, "lose_create")
        if lost == "before":
            return hang_up(request)
        if body.get("endpoint") != self._spelling.endpoint:
            raise Rejected(f"Invalid value: endpoint {body.get('endpoint')!r}.", param="endpoint")
        metadata = body.get("metadata") or {}
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise Rejected("Invalid metadata.", param="metadata")
        job = self._start(str(body.get("input_file_id") or ""), self._window(body), owner, body, metadata)
        return unanswered(request, lost) if lost else json_reply(self._batch(job))

    def _start(self, file_id: str, window: float, owner: bytes, body: Json, metadata: Json) -> Job:
        batches, name = self._batches, self._wire.name
        file = batches.files.get(file_id)
        file = file if file is not None and file.owner == owner else None
        lines, urls, complaint = read_lines(file.data if file else b"")
        quirks = batches.odd.next(name)
        if file is None:
            complaint = Complaint("invalid_request", f"The file {file_id} was not found.", "file_id", None)
        complaint = complaint or self._complaint(lines, urls, quirks.invalid)
        model = model_of(lines[0]) if lines else ""
        if complaint is None and (quirks.queue_full or not batches.room(name, model, lines)):
            complaint = Complaint("token_limit_exceeded", QUEUE.format(model))
        return batches.add_job(
            Job(
                id="batch_" + batches.new_id(),
                provider=name,
                owner=owner,
                model=model,
                lines=lines,
                quirks=quirks,
                created=batches.real,
                born=batches.now(),
                window=window,
                label={"metadata": metadata, "keep": body.get("auto_delete_input_file") is False},
                input_file=file_id,
                complaint=complaint,
            )
        )

    def _complaint(self, lines: list[Line], urls: list[str], invalid: str) -> Complaint | None:
        found = complain(lines, urls, self._spelling.endpoint)
        if found is None and self._spelling.no_sampling:
            bad = ((n, name) for n, line in enumerate(lines, 1) for name in SAMPLING if name in line.body)
            number, name = next(bad, (0, ""))
            found = Complaint("invalid_request", f"{name} is not allowed", f"body.{name}", number) if number else None
        if found is None and invalid:
            found = Complaint(invalid, "The file was refused.", None, 1)
        return found

    def _window(self, body: Json) -> float:
        match = WINDOW.fullmatch(str(body.get("completion_window", "24h")))
        hours = int(match[1]) * (24 if match[2] == "d" else 1) if match else 0
        least, most = self._spelling.hours
        if not least <= hours <= most:
            raise Rejected(f"Invalid completion_window; {least}h to {most}h.", param="completion_window")
        return float(hours * HOUR)

    def _list(self, owner: bytes, query: Mapping[str, str]) -> Json:
        self._count_list(owner)
        jobs = self._batches.listed(self._wire.name, owner)
        if self._spelling.filtered:
            jobs = [job for job in jobs if _wanted(job, query)]
        after, limit = query.get("after", ""), min(int(query.get("limit", "20")), 100)
        start = next((place + 1 for place, job in enumerate(jobs) if job.id == after), 0)
        shown = jobs[start : start + limit]
        page: Json = {"object": "list", "data": [self._batch(job) for job in shown]}
        page["has_more"] = start + limit < len(jobs)
        if shown and not self._spelling.echo_ids:
            page |= {"first_id": shown[0].id, "last_id": shown[-1].id}
        return page

    def _count_list(self, owner: bytes) -> None:
        most, now = self._spelling.lists_per_minute, self._batches.real
        if not most:
            return
        bucket = self._lists.setdefault(owner, Bucket(most, MINUTE, now))
        if bucket.wait(1, now):
            raise Rejected("Requests rate limit exceeded, please try again later.", code="limit_requests", status=429)
        bucket.take(1, now)

    def _cancel(self, job: Job) -> Json:
        if not self._batches.cancel(job):
            raise Rejected(f"Cannot cancel a batch with status '{self._batches.stage(job)}'.")
        return self._batch(job)

    def _batch(self, job: Job) -> Json:
        """Return the Batch object, writing its results files when it has just ended."""
        batches, stage = self._batches, self._batches.stage(job)
        output, failures = self._results(job)
        born, ended = int(job.created), int(batches.ended_at(job))
        counts = self._counts(job, stage)
        return {
            "id": job.id,
            "object": "batch",
            "endpoint": self._spelling.endpoint,
            "model": job.model or None,
            "errors": _errors(job) if stage is Stage.FAILED else None,
            "input_file_id": job.input_file,
            "completion_window": f"{int(job.window / HOUR)}h",
            "status": WORDS.get(stage, stage.value),
            "output_file_id": output,
            "error_file_id": failures,
            "created_at": born,
            "in_progress_at": None if stage in (Stage.VALIDATING, Stage.FAILED) else born + 1,
            "expires_at": None if self._spelling.filtered else int(batches.moment(job, job.window)),
            "completed_at": ended if stage is Stage.COMPLETED else None,
            "failed_at": ended if stage is Stage.FAILED else None,
            "expired_at": ended if stage is Stage.EXPIRED else None,
            "cancelled_at": ended if stage is Stage.CANCELLED else None,
            "request_counts": counts,
            "metadata": job.label["metadata"] or None,
        }

    def _counts(self, job: Job, stage: Stage) -> Json:
        if stage in (Stage.VALIDATING, Stage.FAILED):
            return {"total": 0, "completed": 0, "failed": 0}
        outcomes = job.outcomes
        done = self._batches.finished(job) if outcomes is None else _number(outcomes, Fate.ANSWERED)
        failed = 0 if outcomes is None else _number(outcomes, Fate.REFUSED)
        if job.quirks.lying_counts:
            done, failed = 0, done
        return {"total": len(job.lines), "completed": done, "failed": failed}

    def _results(self, job: Job) -> tuple[str | None, str | None]:
        if self._batches.stage(job) not in ENDED or job.quirks.no_files:
            return None, None
        if not job.files:
            job.filed([self._write(job, self._spelling.output, good=True), self._write(job, self._spelling.failures)])
            if self._spelling.deletes_input and not job.label["keep"]:
                self._batches.files.pop(job.input_file, None)
        return job.files[0] or None, job.files[1] or None

    def _write(self, job: Job, prefix: str, *, good: bool = False) -> str:
        outcomes = [each for each in job.outcomes or [] if (each.fate is Fate.ANSWERED) is good]
        rows = [row for each in outcomes if (row := self._row(each)) is not None]
        if not rows:
            return ""
        file = File(
            id=prefix + self._batches.new_id()[:24],
            owner=job.owner,
            name=f"{job.id}_{'output' if good else 'error'}.jsonl",
            data=b"".join(orjson.dumps(row) + b"\n" for row in rows),
            created=self._batches.real,
            purpose="batch_output",
            late=job.quirks.late_results,
            cut=job.quirks.cut_downloads,
            short=job.quirks.short_downloads,
        )
        return self._batches.add_file(file).id

    def _row(self, outcome: Outcome) -> Json | None:
        request_id = outcome.id or self._batches.new_id()
        row: Json = {"id": f"batch_req_{request_id}", "custom_id": outcome.custom_id}
        if self._spelling.echo_ids:
            row["id"], request_id = outcome.custom_id, ""
        if outcome.fate in LEFT:
            code, message = LEFT[outcome.fate]
            return (
                None if self._spelling.silent else row | {"response": None, "error": {"code": code, "message": message}}
            )
        body = orjson.Fragment(outcome.reply.body)
        row["response"] = {"status_code": outcome.reply.status, "request_id": request_id, "body": body}
        return row if self._spelling.bare_rows else row | {"error": None}

    def _file(self, file_id: str, owner: bytes) -> File:
        file = self._batches.file(file_id, owner)
        if file is None:
            raise Rejected(f"No such File object: {file_id}", param="id", status=404)
        return file

    def _content(self, file_id: str, owner: bytes) -> File:
        file = self._file(file_id, owner)
        if file.late > 0:
            file.late -= 1
            raise Rejected(f"No such File object: {file_id}", param="id", status=404)
        return file

    def _job(self, job_id: str, owner: bytes) -> Job:
        job = self._batches.job(job_id, self._wire.name, owner)
        if job is None:
            raise Rejected(f"No batch found with id '{job_id}'.", status=404)
        return job

    def _file_list(self, owner: bytes) -> Json:
        mine = [file for file in self._batches.files.values() if file.owner == owner and file.purpose == "batch"]
        return {"object": "list", "data": [_file(file) for file in reversed(mine)], "has_more": False}


def _read(wire: OpenAI) -> Callable[[Job, Line], Call]:
    def read(job: Job, line: Line) -> Call:
        del job
        return wire.read(CHAT, {}, line.body)

    return read


def _no_such(method: str, path: list[str]) -> Rejected:
    return Rejected(f"Invalid URL ({method} {'/'.join(path)})", status=404)


def _number(outcomes: list[Outcome], fate: Fate) -> int:
    return len({each.custom_id for each in outcomes if each.fate is fate})


def _file(file: File) -> Json:
    return {
        "id": file.id,
        "object": "file",
        "bytes": len(file.data),
        "created_at": int(file.created),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def _errors(job: Job) -> Json:
    found = job.complaint
    data = [] if found is None else [msgspec.to_builtins(found)]
    return {"object": "list", "data": data}


def _wanted(job: Job, query: Mapping[str, str]) -> bool:
    """Whether a job is on DashScope's filtered list: names are compared loosely, times exactly."""
    asked, name = query.get("ds_name", ""), str(job.label["metadata"].get("ds_name", ""))
    alike = name.startswith(asked[:6]) if job.quirks.fuzzy_list else name == asked
    after = query.get("create_after", "")
    created = datetime.fromtimestamp(job.created, UTC).strftime("%Y%m%d%H%M%S")
    return (not asked or alike) and (not after or created >= after)
