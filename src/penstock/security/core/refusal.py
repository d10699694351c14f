"""Refusals: an error becomes a refusal code and a text for the peer. No I/O.

Codes belong to a protocol. A protocol either lists a code for each kind of error (filter, distribution), or uses the
code that every PenstockError has (tree, assured).
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from penstock.base.errors import LocalProtocolError, PenstockError

REASON_SIZE_MAX = 256
"""Maximum number of characters in the text of a refusal (net.control.Text)."""

M = TypeVar("M")


class RefusalError(PenstockError):
    """A request breaks the rules or cannot be carried out. `refusal` is the code for the peer. With `is_final` the
    connection ends."""

    def __init__(self, refusal: str, what: str, *, hint: str = "", is_final: bool = False) -> None:
        super().__init__(what, hint=hint)
        self.refusal = refusal
        self.is_final = is_final


class Refusals(Generic[M]):
    """The refusals of one protocol. `message` makes a refusal from a code, a text and the number of the request.
    `codes` are searched in order, and the first matching kind counts; other errors have the code `other`. Without
    `codes`, a refusal has the error's own code."""

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
        """Return the message that refuses the request of this number; with 0 it refuses the peer."""
        return self._message(self.code_of(error), str(error)[:REASON_SIZE_MAX], number)

    def final(self, error: PenstockError) -> RefusalError:
        """Return the same refusal as an error that ends the connection."""
        return RefusalError(self.code_of(error), error.what, hint=error.hint, is_final=True)

    def is_final(self, error: PenstockError) -> bool:
        """True if the connection ends with this error; a protocol violation always ends it."""
        return self.code_of(error) == self._other or (isinstance(error, RefusalError) and error.is_final)


def check_number(number: int) -> None:
    """Raise LocalProtocolError if a numbered request has the number 0."""
    if not number:
        raise LocalProtocolError("request number 0 is invalid: numbers begin at 1")
