"""Google's official client, as it is, drives files and batch jobs and finds nothing wrong with the simulator."""

import io
import json
from collections.abc import Iterator

import httpx
import pytest
from google import genai
from google.genai import errors, types

from bench.simulator.launch import Running, running

MODEL = "gemini-3-flash-preview"


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A simulator whose batches stand still until told."""
    folder = tmp_path_factory.mktemp("sdk-batches")
    (folder / "settings.toml").write_text('[batches]\nspeed = 0.0\n[batches.enqueued_tokens]\n"gemini/tight" = 40\n')
    with running(folder / "state", config=folder / "settings.toml") as found:
        yield found


@pytest.fixture
def client(standing: Running) -> Iterator[genai.Client]:
    options = types.HttpOptions(base_url=standing.url("gemini"), retry_options=types.HttpRetryOptions(attempts=1))
    with genai.Client(api_key="good", http_options=options) as found:
        yield found


def row(key: str, **config: object) -> str:
    request = {"contents": [{"role": "user", "parts": [{"text": key}]}], "generationConfig": config}
    return json.dumps({"key": key, "request": request})


def upload(client: genai.Client, *rows: str, name: str | None = None) -> types.File:
    config = types.UploadFileConfig(mime_type="application/jsonl", name=name, display_name="ours")
    return client.files.upload(file=io.BytesIO("\n".join(rows).encode()), config=config)


def submit(client: genai.Client, *rows: str, model: str = MODEL) -> types.BatchJob:
    file = upload(client, *rows)
    assert file.name is not None
    return client.batches.create(model=model, src=file.name, config={"display_name": "mine"})


def look(client: genai.Client, job: types.BatchJob) -> types.BatchJob:
    assert job.name is not None
    return client.batches.get(name=job.name)


def advance(simulator: Running, seconds: float) -> None:
    httpx.post(f"{simulator.address}/_sim/batches/advance", json={"seconds": seconds})


def test_a_job_goes_from_file_to_rows(client: genai.Client, standing: Running) -> None:
    """Upload, create, poll, download."""
    job = submit(client, row("k1"), row("k2", temperature=7))
    assert (job.state, job.display_name) == (types.JobState.JOB_STATE_PENDING, "mine")
    advance(standing, 1000)
    job = look(client, job)
    assert job.state is types.JobState.JOB_STATE_SUCCEEDED
    assert job.dest is not None
    assert job.dest.file_name is not None
    found = [json.loads(text) for text in client.files.download(file=job.dest.file_name).splitlines()]
    kinds = {each["key"]: "response" if "response" in each else each["error"]["code"] for each in found}
    assert kinds == {"k1": "response", "k2": 400}


def test_inlined_requests_come_back_inlined(client: genai.Client, standing: Running) -> None:
    """In the job itself."""
    asked = types.InlinedRequest(contents=[types.Content(role="user", parts=[types.Part(text="inline-1")])])
    job = client.batches.create(model=MODEL, src=[asked], config={"display_name": "inline"})
    advance(standing, 1000)
    job = look(client, job)
    assert job.dest is not None
    assert job.dest.inlined_responses is not None
    response = job.dest.inlined_responses[0].response
    assert response is not None
    assert response.text


def test_a_name_of_our_own_is_taken_once(client: genai.Client) -> None:
    """A second upload is refused, the file is there."""
    file = upload(client, row("n1"), name="our-own-name-1")
    assert (file.name, file.size_bytes) == ("files/our-own-name-1", len(row("n1")))
    with pytest.raises(errors.ClientError) as caught:
        upload(client, row("n1"), name="our-own-name-1")
    assert caught.value.code == 409
    client.files.delete(name="our-own-name-1")
    with pytest.raises(errors.ClientError) as caught:
        client.files.get(name="our-own-name-1")
    assert caught.value.code == 403


@pytest.mark.parametrize("bad", ["{oops", "{}", '{"key":"k","request":{}}'], ids=["json", "no request", "no contents"])
def test_a_bad_row_refuses_the_create_call(bad: str, client: genai.Client) -> None:
    """At once."""
    with pytest.raises(errors.ClientError) as caught:
        submit(client, row("k1"), bad)
    assert caught.value.code == 400


def test_a_full_queue_refuses_the_create_call(client: genai.Client, standing: Running) -> None:
    """Until the live jobs have ended."""
    submit(client, row("q1"), model="tight")
    with pytest.raises(errors.ClientError) as caught:
        submit(client, row("q2"), model="tight")
    assert (caught.value.code, caught.value.status) == (429, "RESOURCE_EXHAUSTED")
    advance(standing, 1000)
    assert submit(client, row("q2"), model="tight").name


def test_a_cancelled_job_has_no_results(client: genai.Client, standing: Running) -> None:
    """And an error."""
    job = submit(client, *(row(f"c{n}") for n in range(4)))
    assert job.name is not None
    advance(standing, 7)
    client.batches.cancel(name=job.name)
    advance(standing, 10)
    job = look(client, job)
    assert (job.state, job.dest) == (types.JobState.JOB_STATE_CANCELLED, None)


def test_a_job_expires_after_two_days(client: genai.Client, standing: Running) -> None:
    """With nothing to fetch."""
    httpx.post(f"{standing.address}/_sim/batches", json={"provider": "gemini", "slow": 10**6})
    job = submit(client, row("x1"))
    httpx.delete(f"{standing.address}/_sim/batches")
    advance(standing, 47 * 3600)
    assert look(client, job).state is types.JobState.JOB_STATE_RUNNING
    advance(standing, 2 * 3600)
    assert look(client, job).state is types.JobState.JOB_STATE_EXPIRED


def test_jobs_are_listed_newest_first_through_the_sdk_s_paging(client: genai.Client) -> None:
    """Two at a time."""
    made = [submit(client, row("l1")).name for _ in range(3)]
    assert [job.name for job in client.batches.list(config={"page_size": 2})][:3] == made[::-1]


def test_a_deleted_job_is_gone(client: genai.Client, standing: Running) -> None:
    """A second time it is not found."""
    job = submit(client, row("d1"))
    assert job.name is not None
    advance(standing, 1000)
    client.batches.delete(name=job.name)
    with pytest.raises(errors.ClientError) as caught:
        client.batches.delete(name=job.name)
    assert caught.value.code == 404
