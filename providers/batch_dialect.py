"""How the batch APIs of OpenAI's shape differ: one frozen record per provider, no code.

Sources: the batch and files references of OpenAI, Alibaba Model Studio, Zhipu and Moonshot as of November 2026.
DeepSeek and vLLM's server have no batch API and so no record. Must not know: transports, keys.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from engine.batch.provider import BatchLimits
from providers.classify import ErrorTable

MB: Final = 1_000_000
DAY: Final = 86_400.0
MARKER_KEY: Final = "mirage"


class BatchDialect(msgspec.Struct, frozen=True, kw_only=True):
    """One provider's way with files and batches.

    Attributes:
        endpoint: what `endpoint` and the lines' `url` say.
        limits: of a batch; token ceilings of a model come from the catalogue.
        marker_key: the metadata key that carries the token.
        filters_by_marker: lists can be asked for the marker, by fuzzy comparison.
        create: further fields of the create call.
        forbidden: decoding parameters that a line must not have.
        shortest_id: fewest characters of a custom id.
        tells_size: the file object's `bytes` is what was uploaded or will be downloaded.
        lists_per_second: most polls and lists a second.
        unpaid_rest: statuses of an ended batch with an output file in which what has no row is documented to be unpaid.
    """

    endpoint: str = "/v1/chat/completions"
    limits: BatchLimits
    marker_key: str = MARKER_KEY
    filters_by_marker: bool = False
    create: Mapping[str, object] = {}
    forbidden: tuple[str, ...] = ()
    shortest_id: int = 1
    tells_size: bool = False
    lists_per_second: int = 2
    unpaid_rest: frozenset[str] = frozenset()


BATCH_DIALECTS: Final[Mapping[ErrorTable, BatchDialect]] = MappingProxyType(
    {
        ErrorTable.OPENAI: BatchDialect(
            limits=BatchLimits(
                max_requests=50_000,
                max_bytes=200 * MB,
                window=DAY,
                results_kept=30 * DAY,
                input_kept=30 * DAY,
            ),
            tells_size=True,
        ),
        ErrorTable.DASHSCOPE: BatchDialect(
            limits=BatchLimits(
                max_requests=50_000,
                max_bytes=500 * MB,
                max_line_bytes=MB,  # older regions; others take 6 MB
                live_batches=1_000,
                window=DAY,
                results_kept=30 * DAY,
                one_thinking_mode=True,
            ),
            marker_key="ds_name",
            filters_by_marker=True,
            tells_size=True,
            lists_per_second=1,
            # Model Studio's batch guide: what an expired task has not processed is neither run nor billed, a cancelled
            # one saves and bills what finished, and only successful requests cost anything. OpenAI promises rows and
            # was seen to lose a finished one of a cancelled batch; Zhipu and Moonshot say nothing.
            unpaid_rest=frozenset({"expired", "cancelled"}),
        ),
        ErrorTable.ZHIPU: BatchDialect(
            endpoint="/v4/chat/completions",
            limits=BatchLimits(
                max_requests=50_000, max_bytes=100 * MB, window=DAY, results_kept=30 * DAY, input_kept=30 * DAY
            ),
            # Without it the input vanishes at a moment of the provider's choosing.
            create={"auto_delete_input_file": False},
            shortest_id=6,
        ),
        ErrorTable.KIMI: BatchDialect(
            # How long results are kept is not documented; a day is what we count on.
            limits=BatchLimits(max_requests=None, max_bytes=100 * MB, window=DAY, results_kept=DAY),
            forbidden=("temperature", "top_p"),
        ),
    }
)
