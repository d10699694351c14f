"""A transaction as the application holds it (REPL-10).

    with assured.transaction() as transaction:
        transaction.publish("orders.filled", fill)
        transaction.ack(message)

It is committed when the block ends, and rolled back when it raises.
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
    """Made by Assured.transaction(). Of one thread. `done` takes its publisher back."""

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
        """The message's number; it is stored when the transaction is committed. Options as of AssuredPublisher.send."""
        return self._publisher.send(topic, payload, transaction=self._open(), **options)

    def ack(self, message: Delivery) -> None:
        """It is done with when the transaction is committed, and comes again if it is not."""
        self._settle(message, message.source.ack)

    def nack(self, message: Delivery) -> None:
        self._settle(message, message.source.nack)

    def reject(self, message: Delivery) -> None:
        self._settle(message, message.source.reject)

    def commit(self) -> str:
        """What its messages got, as of publish(). RefusedError if it was rolled back instead: nothing of it holds.
        UnreachableError if that is not known: nobody answers, or another router took over before the answer came."""
        answer = self._end(is_commit=True)
        if answer.outcome != "committed":
            why = answer.why or "the router did not take it"
            raise RefusedError(f"the transaction was rolled back: {why}", peer_code="rolled-back")
        return OUTCOMES.get(answer.treatment, "stored")

    def rollback(self) -> None:
        """What it published vanishes, what it settled comes again."""
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
            raise LocalProtocolError("the message came on another connection", hint="begin the transaction on that one")
        if not settle(message, transaction=number):
            why = "it was settled before" if message.is_settled else "its flow or link has ended, and it comes again"
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
                "it is not known whether the transaction was committed",
                hint="another router took over before the answer came: see whether what it published is there",
            )
        return answer
