"""Everything that can go wrong, and what each kind asks the engine or the user to do.

MirageError
├── UserError            the user's input or machine; one line: what, where, how to mend
│   └── StoreError       the store cannot be used as it is (newer, busy, read-only, damaged)
│       └── StoreRefused the disk takes no more writes
├── ProviderError        an attempt that brought no completion; its ErrorClass says what to do
├── BudgetExhausted      a reservation would pass a cap; nothing was sent
└── IllegalTransition    a request was moved along an arrow that does not exist (a defect of this program)
"""

from enum import StrEnum

from engine.provider import RateHints


class MirageError(Exception):
    """Root of every error this project raises on purpose."""


class UserError(MirageError):
    """A mistake that the user can mend; printed as one line, never as a traceback."""

    def __init__(self, what: str, *, where: str = "", mend: str = "") -> None:
        self.what, self.where, self.mend = what, where, mend
        place = f" ({where})" if where else ""
        super().__init__(f"{what}{place}" + (f"; {mend}" if mend else ""))


class StoreError(UserError):
    """The store file cannot be opened or written."""


class StoreRefused(StoreError):
    """The disk takes no more writes; the message says where unwritten results went."""


class ErrorClass(StrEnum):
    """What a failed attempt says about the next step.

    rate: slow this lane down and try again; transient: try again later; quota: stop the provider until a human or the
    calendar helps; auth: stop the provider, the key is wrong; bad_request: this request can never work;
    content: a policy blocked it; gone: the model or resource does not exist any more.
    """

    RATE = "rate"
    TRANSIENT = "transient"
    QUOTA = "quota"
    AUTH = "auth"
    BAD_REQUEST = "bad_request"
    CONTENT = "content"
    GONE = "gone"


class ProviderError(MirageError):
    """An attempt that brought no completion.

    Attributes:
        kind: what to do about it.
        status: HTTP status, or 0 where there was none.
        code: the provider's own discriminator, shortened.
        retry_after: seconds the provider asks to wait, or None.
        maybe_billed: True when the work may have been done and charged although no answer arrived.
        hints: limits that the refusal's own headers announced, or None.
    """

    def __init__(
        self,
        kind: ErrorClass,
        message: str,
        *,
        status: int = 0,
        code: str = "",
        retry_after: float | None = None,
        maybe_billed: bool = False,
        hints: RateHints | None = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.message, self.status, self.code = kind, message, status, code
        self.retry_after, self.maybe_billed, self.hints = retry_after, maybe_billed, hints


class BudgetExhausted(MirageError):
    """A reservation would pass a cap.

    Attributes:
        scope: the scope whose cap stands in the way, e.g. `model gpt-5.5`.
    """

    def __init__(self, scope: str, unit: str, needs: int, has: int) -> None:
        super().__init__(f"{scope}: needs {needs} {unit}, has {has}")
        self.scope, self.unit, self.needs, self.has = scope, unit, needs, has


class IllegalTransition(MirageError):
    """The transition table has no such arrow."""
