"""A transaction as the application uses it (REPL-10).

    with assured.transaction() as transaction:
        transaction.publish("orders.filled", fill)
        transaction.ack(message)

The transaction is committed when the block ends, and rolled back when the block raises.
"""

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import Buffer

from penstock.assured.client.publisher import OUTCOMES, AssuredPublisher
from penstock.assured.core.session._inbox import Delivery
from penstock.assured.core.session.events import BeginTransaction, EndTransaction
from penstock.assured.wire.control import Ended
from penstock.base.errors import LocalProtocolError, RefusedError, UnreachableError
from penstock.model import Message

if TYPE_CHECKING:
    from penstock.assured.client.connection import Assured


class Transaction:
    """Made by Assured.transaction(). Only one thread may use it. `done` returns the publisher at the end."""

    def __init__(
        self, assured: "Assured", publisher: AssuredPublisher, done: Callable[[AssuredPublisher], None]
    ) -> None:
        self._assured = assured
        self._publisher = publisher
        self._done = done
        self._number = 0
        self._is_over = False

    def __enter__(self) -> Self:
        part = self._publisher.part
        self._assured.tell(BeginTransaction(part))
        with self._assured.lock:
            self._assured.changed.wait_for(lambda: part.transaction or self._assured.is_over)
            self._assured.check(part)
            self._number = part.transaction
        return self

    def publish(self, topic: str, payload: Buffer | Message, **options: Any) -> int:
        """Return the message's number. The commit stores the message. Options: see AssuredPublisher.send()."""
        return self._publisher.send(topic, payload, transaction=self._open(), **options)

    def ack(self, message: Delivery) -> None:
        """Acknowledge the message with the commit; without a commit, the message is delivered again."""
        self._settle(message, message.source.ack)

    def nack(self, message: Delivery) -> None:
        self._settle(message, message.source.nack)

    def reject(self, message: Delivery) -> None:
        self._settle(message, message.source.reject)

    def commit(self) -> str:
        """Return the outcome of the transaction's messages, see AssuredPublisher.publish().

        RefusedError if the transaction was rolled back instead: none of it takes effect. UnreachableError if the
        outcome is unknown: no router answers, or another router took over before the answer came.
        """
        answer = self._end(is_commit=True)
        if answer.outcome != "committed":
            why = answer.why or "the router refused the commit"
            raise RefusedError(f"the transaction was rolled back: {why}", peer_code="rolled-back")
        return OUTCOMES.get(answer.treatment, "stored")

    def rollback(self) -> None:
        """Discard the published messages; the settled messages are delivered again."""
        self._end(is_commit=False)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._is_over:
            return
        if kind is None:
            self.commit()
        else:
            self.rollback()

    def _open(self) -> int:
        if self._is_over or not self._number:
            raise LocalProtocolError("the transaction is not open", hint="use it in a with statement")
        return self._number

    def _settle(self, message: Delivery, settle: Callable[..., int]) -> None:
        number = self._open()
        if not message.source.is_of(self._assured):
            raise LocalProtocolError("the message came on another connection", hint="begin the transaction there")
        if not settle(message, transaction=number):
            why = "already settled" if message.is_settled else "its flow or link has ended; it will be delivered again"
            raise RefusedError(f"the message cannot be settled: {why}", peer_code="gone")

    def _end(self, *, is_commit: bool) -> Ended:
        self._open()
        self._is_over = True
        token = self._assured.next_token()
        self._assured.tell(EndTransaction(token, self._publisher.part, is_commit))
        answer = self._assured.await_answer(token)
        self._done(self._publisher)
        if not isinstance(answer, Ended):
            raise UnreachableError(
                "unknown whether the transaction was committed",
                hint="another router took over before the answer came: check whether its messages were stored",
            )
        return answer
