"""Settings of simulated batch APIs: how fast time passes, and what goes wrong with the next ones. Records only.

Quirks are what the real services do now and then; each default is the harmless behaviour.
"""

from typing import Annotated, Literal

import msgspec

Moment = Literal["", "before", "after", "gateway"]
Chance = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Chances(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How likely each of `Quirks` is, from 0 to 1: for a batch, or for the call or look that it names.

    Where a quirk counts looks, downloads or rows, it is one to three of them. The batches of DashScope lose no rows:
    its documents promise that what is not there was not charged.
    """

    lose_upload: Chance = 0.0
    lose_create: Chance = 0.0
    bad_gateways: Chance = 0.0
    queue_full: Chance = 0.0
    invalid: Chance = 0.0
    fresh_404: Chance = 0.0
    list_lag: Chance = 0.0
    late_results: Chance = 0.0
    cut_downloads: Chance = 0.0
    short_downloads: Chance = 0.0
    repeat_rows: Chance = 0.0
    lose_rows: Chance = 0.0
    no_files: Chance = 0.0
    lying_counts: Chance = 0.0
    stuck: Chance = 0.0
    expire: Chance = 0.0


class BatchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How batches pass, in their own seconds, of which `speed` go into one real second.

    Attributes:
        speed: 1 is real time; 0 stands still, and only `/_sim/batches/advance` moves it.
        validating: until the first request runs.
        request: between two requests that finish.
        finalizing: between the last request and the end.
        cancelling: between the order to cancel and the end.
        window: after which a batch expires; 0 leaves every provider its own.
        stuck_for_ever: a batch that is stuck stays so past its window, until it is cancelled.
        chances: of what goes wrong by itself.
        enqueued_tokens: most prompt tokens in all live batches of a model, by `provider/model`, by provider, or `*`.
    """

    speed: float = 3600.0
    validating: float = 5.0
    request: float = 1.0
    finalizing: float = 5.0
    cancelling: float = 5.0
    window: float = 0.0
    stuck_for_ever: bool = True
    chances: Chances = Chances()
    enqueued_tokens: dict[str, int] = {}


class Quirks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is odd about the batches that are created while it is set.

    Attributes:
        provider: whose batches; empty for all.
        lose_upload, lose_create: cut the connection before or after the call took effect, or answer it, when it has
            taken effect, with a proxy's 502 page; the next call only.
        bad_gateways: so many looks at batches and files are answered with a proxy's 502 page.
        queue_full: refuse for the queue: a failed batch, or a 429 of the create call.
        invalid: refuse for the file: the code of the complaint, told of the first line.
        fresh_404: so many looks at a fresh id are answered 404.
        list_lag: so many lists do not have a batch yet.
        late_results: so many downloads are answered as if the results were not there yet.
        cut_downloads: so many downloads break off in the middle.
        short_downloads: so many downloads end early after a whole line, without a word.
        shuffle: rows come in another order than lines.
        repeat_rows, lose_rows: so many rows come twice, or were paid and are nowhere.
        no_files: a completed batch that names no results file.
        lying_counts: counters that do not add up.
        stuck: never leaves the state before its last.
        slow: requests take so many times as long, so that a batch expires.
        expire: requests take so long that the window cuts the batch in half.
        key_last: in a row, the id comes after the answer (Gemini).
        job_states: states begin with `JOB_STATE_` (Gemini).
        file_in_metadata: the results file is named in the metadata only (Gemini).
        fuzzy_list: a list filtered by marker also gives batches whose marker looks alike.
    """

    provider: str = ""
    lose_upload: Moment = ""
    lose_create: Moment = ""
    bad_gateways: int = 0
    queue_full: bool = False
    invalid: str = ""
    fresh_404: int = 0
    list_lag: int = 0
    late_results: int = 0
    cut_downloads: int = 0
    short_downloads: int = 0
    shuffle: bool = True
    repeat_rows: int = 0
    lose_rows: int = 0
    no_files: bool = False
    lying_counts: bool = False
    stuck: bool = False
    slow: float = 1.0
    expire: bool = False
    key_last: bool = False
    job_states: bool = False
    file_in_metadata: bool = False
    fuzzy_list: bool = True
