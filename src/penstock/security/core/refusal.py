"""How a server refuses: an error becomes a refusal code and a text that the peer can read. It does no I/O.

Codes are those of a protocol. A protocol either lists a code for each kind of error (filter, distribution), or uses
the code that every PenstockError has (tree, assured).
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from penstock.base.errors import LocalProtocolError, PenstockError

REASON_SIZE_MAX = 256
"""Characters of a refusal's text (net.control.Text)."""

M = TypeVar("M")


class RefusalError(PenstockError):
    """A request is against the rules, or cannot be carried out. `refusal` is the code that the peer gets. With
    `is_final` the connection ends."""

    def __init__(self, refusal: str, what: str, *, hint: str = "", is_final: bool = False) -> None:
        super().__init__(what, hint=hint)
        self.refusal = refusal
        self.is_final = is_final


class Refusals(Generic[M]):
    """The refusals of one protocol. `message` makes one of a code, a text and the number of the request. `codes` are
    asked in order, the first kind that fits counts; an error of no listed kind has the code `other`. Without `codes`
    the code of a refusal is the error's own."""

    def __init__(
        self,
        message: Callable[[str, str, int], M],
        codes: Sequence[tuple[type[PenstockError], str]] | None = None,
        other: str = "",
    ) -> None:
        self._message = message
        self._codes = codes
        self._other = other

    def code_of(self, error: PenstockError) -> str:
        if isinstance(error, RefusalError):
            return error.refusal
        if self._codes is None:
            return error.code
        return next((code for kind, code in self._codes if isinstance(error, kind)), self._other)

    def of(self, error: PenstockError, number: int = 0) -> M:
        """The message that refuses the request of this number; with 0 it refuses the peer."""
        return self._message(self.code_of(error), str(error)[:REASON_SIZE_MAX], number)

    def final(self, error: PenstockError) -> RefusalError:
        """The same refusal, which ends the connection."""
        return RefusalError(self.code_of(error), error.what, hint=error.hint, is_final=True)

    def is_final(self, error: PenstockError) -> bool:
        """True if the connection ends with this error: a breach of the protocol always ends it."""
        return self.code_of(error) == self._other or (isinstance(error, RefusalError) and error.is_final)


def check_number(number: int) -> None:
    """Of a request that is answered."""
    if not number:
        raise LocalProtocolError("a request has a number from 1 on")
