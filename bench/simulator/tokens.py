"""Token counts that anybody can check: a token per four bytes of UTF-8, rounded up. Pure but for the prefix cache."""

from collections import OrderedDict
from hashlib import blake2b
from typing import Final

BYTES_PER_TOKEN: Final = 4
TOKENS_PER_MESSAGE: Final = 4
TOKENS_PER_PROMPT: Final = 3
CACHE_SIZE: Final = 20_000


def count(text: str) -> int:
    """Return the tokens of a text."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def count_prompt(texts: list[str]) -> int:
    """Return the tokens of a prompt of these messages."""
    return sum(map(count, texts)) + TOKENS_PER_MESSAGE * len(texts) + TOKENS_PER_PROMPT


def cut(text: str, tokens: int) -> str:
    """Return the beginning of `text` that has at most so many tokens."""
    return text.encode()[: max(0, tokens) * BYTES_PER_TOKEN].decode(errors="ignore")


class PrefixCache:
    """Which system prompts a provider has read lately; a prompt that begins like one of them is partly cheaper."""

    def __init__(self, size: int = CACHE_SIZE) -> None:
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._size = size

    def cached(self, model: str, prefix: str, unit: int) -> int:
        """Return how many tokens of `prefix` come from the cache, in whole units, and remember the prefix."""
        tokens = count(prefix) // unit * unit
        if not tokens:
            return 0
        digest = blake2b(f"{model}\n{prefix}".encode(), digest_size=12).digest()
        hit = digest in self._seen
        self._seen[digest] = None
        self._seen.move_to_end(digest)
        if len(self._seen) > self._size:
            self._seen.popitem(last=False)
        return tokens if hit else 0
