"""The part that NodeMessages and Records share: closing, failing, and renewing the token."""

from types import TracebackType
from typing import Self

from penstock.base.errors import PenstockError
from penstock.engine.client.sources import NodeSource


class ConsumerHandle:
    def __init__(self, source: NodeSource) -> None:
        self._node_source = source
        self._is_closed = False
        self._error: PenstockError | None = None

    @property
    def is_over(self) -> bool:
        return self._is_closed or self._error is not None

    def renew(self, token: str) -> None:
        """Present a newer token of the administration server."""
        self._node_source.renew(token)

    def fail(self, error: PenstockError) -> None:
        """End with this error, before the application reads anything else."""
        if self._error is None:
            self._error = error

    def cancel(self) -> None:
        self.close()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._node_source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cancel()

    def _check(self) -> None:
        """Raise the error that ended the handle, if any."""
        if self._error is not None:
            self.close()
            raise self._error
