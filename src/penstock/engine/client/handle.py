"""What messages and records of a node have in common: they end, by themselves or with an error, and show tokens."""

from types import TracebackType
from typing import Protocol, Self

from penstock.base.errors import PenstockError


class Source(Protocol):
    def renew(self, token: str) -> None: ...

    def close(self) -> None: ...


class Consumption:
    def __init__(self, source: Source) -> None:
        self._consumed = source
        self._is_closed = False
        self._error: PenstockError | None = None

    @property
    def is_over(self) -> bool:
        return self._is_closed or self._error is not None

    def renew(self, token: str) -> None:
        """A newer token of the administration server."""
        self._consumed.renew(token)

    def fail(self, error: PenstockError) -> None:
        """End it with this error, before the application sees anything more."""
        if self._error is None:
            self._error = error

    def cancel(self) -> None:
        self.close()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._consumed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cancel()

    def _check(self) -> None:
        """Whether it may go on."""
        if self._error is not None:
            self.close()
            raise self._error
