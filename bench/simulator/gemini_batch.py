"""Gemini's files and batch jobs (AI Studio keys).

Facts: Google's API reference, SDK types and live notes, November 2026. The create call reads the whole file and refuses
it for one bad row; full queues are a 429 of the create call; 64-bit numbers are strings; zero counters are left out;
inlined results are sent twice; expired and cancelled jobs have none.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote

import msgspec
import orjson
from aiohttp import web

from bench.simulator.app import Route
from bench.simulator.batches import Batches
from bench.simulator.batchjobs import ENDED, Clerk, Fate, File, Job, Line, Stage
from bench.simulator.delivery import hang_up, json_reply, plain
from bench.simulator.faults import Fault
from bench.simulator.gemini import Gemini
from bench.simulator.storage import download, gateway_page, owner_of, unanswered
from bench.simulator.wire import Json, Rejected, Reply, Tag, Trouble, dump, parse

VERSIONS: Final = ("/v1beta", "/v1", "/v1alpha")  # the SDK of late 2026 says v1
CREATE: Final = ":batchGenerateContent"
DOWNLOAD: Final = ":download"
TWO_DAYS: Final = 2 * 86_400.0
NAME: Final = re.compile(r"files/[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
KIND: Final = "type.googleapis.com/google.ai.generativelanguage.v1beta."
FINALIZE: Final = "finalize"
STATES: Final = {
    Stage.VALIDATING: "PENDING",
    Stage.COMPLETED: "SUCCEEDED",
    Stage.EXPIRED: "EXPIRED",
    Stage.CANCELLED: "CANCELLED",
    Stage.FAILED: "FAILED",
}
INTERNAL: Final = 13
EMPTY: Final[Json] = {}


class Upload(msgspec.Struct):
    """A resumable upload under way."""

    owner: bytes
    name: str
    label: str
    data: bytearray


class GeminiBatchDesk:
    """Serves files, uploads, downloads and batch jobs."""

    def __init__(self, wire: Gemini, batches: Batches, keys: tuple[str, ...]) -> None:
        self._wire, self._batches, self._keys = wire, batches, keys
        self._uploads: dict[str, Upload] = {}
        batches.serve(
            wire.name,
            Clerk(
                lambda job, line: wire.understand(job.model, line.body),
                lambda call, answer, tag: Reply(body=dump(wire.response(call, answer, tag))),
                wire.reject,
                wire.trouble,
            ),
        )

    def routes(self) -> list[Route]:
        """Return the routes that lead here."""
        start = self._wire.prefix
        found: list[Route] = []
        for version in VERSIONS:
            found += [
                Route(f"{start}/upload{version}/files", self.handle, method="POST"),
                Route(f"{start}/download{version}/files", self.handle, method="GET"),
                Route(f"{start}{version}/files", self.handle),
                Route(f"{start}{version}/batches", self.handle),
                Route(f"{start}{version}/models/", self.handle, method="POST", suffix=CREATE),
            ]
        return found

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve one request."""
        tag = Tag(self._batches.new_id(), int(self._batches.real))
        upload = self._uploads.get(request.query.get("upload_id", ""))
        owner = upload.owner if upload else owner_of(self._wire, request, self._keys)
        if owner is None:
            return plain(self._wire.trouble(Trouble(fault=Fault.AUTH), tag))
        if request.method == "GET" and self._batches.odd.stumbles(self._wire.name):
            return gateway_page()
        path = request.path.removeprefix(self._wire.prefix).strip("/").split("/")
        try:
            return await self._serve(request, path, owner, tag)
        except Rejected as rejected:
            return plain(self._wire.reject(rejected, tag))

    async def _serve(self, request: web.BaseRequest, path: list[str], owner: bytes, tag: Tag) -> web.StreamResponse:
        match request.method, path:
            case "POST", ["upload", _, "files"]:
                return await self._upload(request, owner)
            case "GET", ["download", _, "files", name] | [_, "files", name] if name.endswith(DOWNLOAD):
                return await download(request, self._content(name.removesuffix(DOWNLOAD), owner))
            case "POST", [_, "models", model]:
                return await self._create(request, unquote(model).removesuffix(CREATE), owner, tag)
            case method, [_, "files", *rest]:
                return json_reply(self._look_at_files(method, rest, owner, request.host))
            case method, [_, "batches", *rest]:
                return json_reply(self._look_at_jobs(method, rest, owner, dict(request.query)))
        raise Rejected("Requested entity was not found.", status=404)

    def _look_at_files(self, method: str, path: list[str], owner: bytes, host: str) -> Json:
        match method, path:
            case "GET", []:
                mine = [
                    file for file in self._batches.files.values() if file.owner == owner and file.purpose == "batch"
                ]
                return {"files": [self._file(file, host) for file in reversed(mine)]}
            case "GET", [name]:
                return self._file(self._known(name, owner), host)
            case "DELETE", [name]:
                self._known(name, owner)
                del self._batches.files[f"files/{name}"]
                return EMPTY
        raise Rejected("Requested entity was not found.", status=404)

    def _look_at_jobs(self, method: str, path: list[str], owner: bytes, query: Mapping[str, str]) -> Json:
        match method, path:
            case "GET", []:
                return self._list(owner, query)
            case "GET", [name]:
                return self._operation(self._job(name, owner))
            case "POST", [order] if order.endswith(":cancel"):
                job = self._job(order.removesuffix(":cancel"), owner)
                if not self._batches.cancel(job):
                    raise Rejected("The batch has already ended.")
                return EMPTY
            case "DELETE", [name]:
                job = self._job(name, owner)
                for file_id in job.files:
                    self._batches.files.pop(file_id, None)
                del self._batches.jobs[job.id]
                return EMPTY
        raise Rejected("Requested entity was not found.", status=404)

    async def _upload(self, request: web.BaseRequest, owner: bytes) -> web.StreamResponse:
        key, body = request.query.get("upload_id", ""), await request.read()
        if not key:
            return self._start(request, parse(body or b"{}"), owner)
        upload = self._uploads.get(key)
        if upload is None or int(request.headers.get("x-goog-upload-offset", "-1")) != len(upload.data):
            raise Rejected("The upload does not go on there.")
        upload.data += body
        if FINALIZE not in request.headers.get("x-goog-upload-command", ""):
            return plain(Reply(headers={"x-goog-upload-status": "active"}))
        del self._uploads[key]
        lost = self._batches.odd.lose(self._wire.name, "lose_upload")
        if lost == "before":
            return hang_up(request)
        file = File(
            id=upload.name,
            owner=upload.owner,
            name=upload.label,
            data=bytes(upload.data),
            created=self._batches.real,
            hidden=self._batches.odd.next(self._wire.name).fresh_404,
        )
        self._batches.add_file(file)
        if lost:
            return unanswered(request, lost)
        found = dump({"file": self._file(file, request.host)})
        return plain(Reply(headers={"x-goog-upload-status": "final"}, body=found))

    def _start(self, request: web.BaseRequest, body: Json, owner: bytes) -> web.StreamResponse:
        asked = body.get("file") or {}
        key = self._batches.new_id()
        name = str(asked.get("name") or f"files/{key[:12]}")
        if not NAME.fullmatch(name):
            raise Rejected("The file name is not valid.")
        if name in self._batches.files:
            raise Rejected("The file already exists.", status=409)
        label = str(asked.get("displayName") or asked.get("display_name") or "")
        self._uploads[key] = Upload(owner, name, label, bytearray())
        where = f"http://{request.host}{request.path}?upload_id={key}&upload_protocol=resumable"
        return plain(Reply(headers={"x-goog-upload-url": where, "x-goog-upload-status": "active"}))

    async def _create(self, request: web.BaseRequest, model: str, owner: bytes, tag: Tag) -> web.StreamResponse:
        body = parse(await request.read()).get("batch")
        if not isinstance(body, dict):
            raise Rejected("batch is required.")
        lost = self._batches.odd.lose(self._wire.name, "lose_create")
        if lost == "before":
            return hang_up(request)
        source = body.get("inputConfig") or body.get("input_config") or {}
        file_id = str(source.get("fileName") or source.get("file_name") or "")
        inline = (source.get("requests") or {}).get("requests")
        lines = _inline(inline) if inline else self._lines(file_id, owner)
        quirks = self._batches.odd.next(self._wire.name)
        if quirks.invalid:
            raise Rejected("The file was refused.")
        if quirks.queue_full or not self._batches.room(self._wire.name, model, lines):
            return plain(self._wire.trouble(Trouble(fault=Fault.RATE_LIMITED_BLIND), tag))
        job = Job(
            id="batches/" + self._batches.new_id()[:24],
            provider=self._wire.name,
            owner=owner,
            model=model,
            lines=lines,
            quirks=quirks,
            created=self._batches.real,
            born=self._batches.now(),
            window=TWO_DAYS,
            label={"name": str(body.get("displayName") or body.get("display_name") or ""), "inline": bool(inline)},
            input_file=file_id,
        )
        self._batches.add_job(job)
        return unanswered(request, lost) if lost else json_reply(self._operation(job))

    def _lines(self, file_id: str, owner: bytes) -> list[Line]:
        """Return the rows of an input file; raises Rejected for the first bad one."""
        file = self._batches.files.get(file_id)
        if file is None or file.owner != owner:
            raise Rejected(f"The file {file_id} does not exist.", status=404)
        lines: list[Line] = []
        for number, text in enumerate(file.data.removesuffix(b"\n").split(b"\n"), 1):
            try:
                found = orjson.loads(text)
            except orjson.JSONDecodeError:
                found = None
            if not isinstance(found, dict) or not _is_request(found.get("request")):
                raise Rejected(f"Row {number} of the input file is not valid.")
            lines.append(Line(str(found.get("key") or ""), found["request"]))
        return lines

    def _list(self, owner: bytes, query: Mapping[str, str]) -> Json:
        jobs = self._batches.listed(self._wire.name, owner)
        token, size = query.get("pageToken", ""), int(query.get("pageSize", "50"))
        start = int(token) if token.isdigit() else 0
        shown = [self._operation(job, listed=True) for job in jobs[start : start + size]]
        return {"operations": shown} | ({"nextPageToken": str(start + size)} if start + size < len(jobs) else {})

    def _operation(self, job: Job, *, listed: bool = False) -> Json:
        stage = self._batches.stage(job)
        prefix = "JOB_STATE_" if job.quirks.job_states else "BATCH_STATE_"
        output = self._output(job, stage, listed=listed)
        metadata: Json = {
            "@type": f"{KIND}GenerateContentBatch",
            "model": f"models/{job.model}",
            "displayName": job.label["name"],
            "inputConfig": {"fileName": job.input_file} if job.input_file else {},
            "name": job.id,
            "createTime": _moment(job.created),
            "updateTime": _moment(job.created),
            "state": prefix + STATES.get(stage, "RUNNING"),
            "priority": "0",
            "batchStats": _stats(job),
        }
        found: Json = {"name": job.id, "metadata": metadata}
        if stage not in ENDED:
            return found
        metadata["endTime"] = _moment(self._batches.ended_at(job))
        found["done"] = True
        if stage is not Stage.COMPLETED:
            return found | {"error": {"code": INTERNAL, "message": f"The batch is {stage.value}."}}
        metadata |= {"output": output} if output else {}
        if not job.quirks.file_in_metadata:
            found["response"] = {"@type": f"{KIND}GenerateContentBatchOutput"} | output
        return found

    def _output(self, job: Job, stage: Stage, *, listed: bool) -> Json:
        """Return where the results are, or the results themselves."""
        if stage is not Stage.COMPLETED or job.quirks.no_files:
            return {}
        if job.label["inline"]:
            return {} if listed else {"inlinedResponses": {"inlinedResponses": [_relabel(row) for row in _rows(job)]}}
        if not job.files:
            file = File(
                id=f"files/batch-{job.id.removeprefix('batches/')}",
                owner=job.owner,
                name="results.jsonl",
                data=b"".join(dump(row) + b"\n" for row in _rows(job)),
                created=self._batches.real,
                purpose="results",
                late=job.quirks.late_results,
                cut=job.quirks.cut_downloads,
                short=job.quirks.short_downloads,
            )
            job.filed([self._batches.add_file(file).id])
        return {"responsesFile": job.files[0]}

    def _known(self, name: str, owner: bytes) -> File:
        file = self._batches.file(f"files/{name}", owner)
        if file is None:
            text = f"You do not have permission to access the File {name} or it may not exist."
            raise Rejected(text, status=403)
        return file

    def _content(self, name: str, owner: bytes) -> File:
        file = self._known(name, owner)
        if file.late > 0:
            file.late -= 1
            raise Rejected("Not ready.", status=503 if file.late % 2 else 404)
        if file.purpose == "batch":
            raise Rejected("Only generated files can be downloaded.")
        return file

    def _job(self, name: str, owner: bytes) -> Job:
        job = self._batches.job(f"batches/{name}", self._wire.name, owner)
        if job is None:
            raise Rejected("Requested entity was not found.", status=404)
        return job

    def _file(self, file: File, host: str) -> Json:
        return {
            "name": file.id,
            "displayName": file.name,
            "mimeType": "application/jsonl",
            "sizeBytes": str(len(file.data)),
            "createTime": _moment(file.created),
            "updateTime": _moment(file.created),
            "expirationTime": _moment(file.created + TWO_DAYS),
            "uri": f"http://{host}{self._wire.prefix}{VERSIONS[0]}/{file.id}",
            "state": "ACTIVE",
            "source": "UPLOADED",
        }


def _is_request(found: object) -> bool:
    return isinstance(found, dict) and bool(found.get("contents"))


def _inline(requests: list[Json]) -> list[Line]:
    lines: list[Line] = []
    for number, each in enumerate(requests, 1):
        if not _is_request(each.get("request")):
            raise Rejected(f"Request {number} is not valid.")
        lines.append(Line(str((each.get("metadata") or {}).get("key") or f"inline-{number}"), each["request"]))
    return lines


def _rows(job: Job) -> Iterator[Json]:
    for outcome in job.outcomes or []:
        body = outcome.reply.body
        answered = outcome.fate is Fate.ANSWERED
        said: Json = {"response": orjson.Fragment(body)} if answered else {"error": _status(orjson.loads(body))}
        key = {"key": outcome.custom_id}
        yield said | key if job.quirks.key_last else key | said


def _relabel(row: Json) -> Json:
    """Return a row as inlined results have it."""
    return {"metadata": {"key": row["key"]}} | {name: value for name, value in row.items() if name != "key"}


def _status(reply: Json) -> Json:
    return {name: value for name, value in reply["error"].items() if name in ("code", "message", "details")}


def _stats(job: Job) -> Json:
    """Return the counters as strings, zeros left out."""
    outcomes = job.outcomes or []
    good = sum(each.fate is Fate.ANSWERED for each in outcomes)
    bad = sum(each.fate is Fate.REFUSED for each in outcomes)
    if job.quirks.lying_counts:
        good, bad = bad, good
    counts = {
        "requestCount": len(job.lines),
        "successfulRequestCount": good,
        "failedRequestCount": bad,
        "pendingRequestCount": 0 if job.outcomes is not None else len(job.lines),
    }
    return {name: str(number) for name, number in counts.items() if number}


def _moment(at: float) -> str:
    """Return a moment with nine decimals, as this service does at times."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"
