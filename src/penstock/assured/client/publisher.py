"""A publisher of assured messages as the application uses it."""

import asyncio
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

from typing_extensions import Buffer

from penstock.assured.client.arguments import FLAGS, deadline_after, payload_bytes, unfit
from penstock.assured.client.async_publishing import AsyncPublishing
from penstock.assured.config import Treatment
from penstock.assured.core.session.events import Changed
from penstock.assured.core.session.parts import PublisherPart
from penstock.assured.wire._layout import (
    OUTCOME_ASYNC,
    OUTCOME_BAD_TOPIC,
    OUTCOME_DEGRADED,
    OUTCOME_DISK,
    OUTCOME_EXPIRED,
    OUTCOME_FULL,
    OUTCOME_KNOWN,
    OUTCOME_LIMIT,
    OUTCOME_NO_ENDPOINT,
    OUTCOME_NOT_ENTITLED,
    OUTCOME_REFUSED,
    OUTCOME_STORED,
    OUTCOME_SYNC,
    OUTCOME_TOO_LARGE,
    OUTCOME_TRANSACTION,
    OUTCOME_UNMATCHED,
    PRIORITY_DEFAULT,
)
from penstock.assured.wire.fullness import why_full
from penstock.base.errors import LimitError, PenstockError, RefusedError, UnreachableError
from penstock.base.log import logger
from penstock.model import Message
from penstock.topics import check_topic

if TYPE_CHECKING:
    from penstock.assured.client.connection import Assured

OUTCOMES = {
    OUTCOME_STORED: "stored",
    OUTCOME_ASYNC: "asynchronous",
    OUTCOME_SYNC: "synchronous",
    OUTCOME_DEGRADED: "degraded",
    OUTCOME_KNOWN: "known",
    OUTCOME_UNMATCHED: "unmatched",
    OUTCOME_NO_ENDPOINT: "no endpoint wants it",
    OUTCOME_FULL: "an endpoint is full",
    OUTCOME_TOO_LARGE: "it is too large",
    OUTCOME_NOT_ENTITLED: "this client may not publish on the topic",
    OUTCOME_BAD_TOPIC: "its topic is invalid",
    OUTCOME_EXPIRED: "its time to live has ended",
    OUTCOME_DISK: "the router's disk accepts no data",
    OUTCOME_LIMIT: "the router has no room for more messages",
    OUTCOME_TRANSACTION: "its transaction was not open, or was rolled back",
}
"""Texts for the outcomes of messages."""

ACCEPTED = {outcome: OUTCOMES[outcome] for outcome in (OUTCOME_STORED, OUTCOME_ASYNC, OUTCOME_SYNC, OUTCOME_DEGRADED)}
"""These outcomes need no further record."""

REFUSED_KEPT = 1_024

log = logger("assured.application")


class MessageOptions(TypedDict, total=False):
    """Options of publish(), send() and publish_async()."""

    priority: int
    ttl_ms: int
    """Time to live in milliseconds; 0: unlimited."""

    replication: Treatment
    """Applies where publishers decide."""

    model_id: int
    model_version: int
    """A Message of a model sets the model's id and version."""

    transaction: int
    """Number of the open transaction; 0: none."""


class AssuredPublisher:
    """Made by Assured.publisher(). Any thread may publish; messages of one thread are stored in its order."""

    def __init__(self, assured: "Assured", part: PublisherPart) -> None:
        self.part = part
        self.warns = True
        """True: unmatched messages are logged once. False: the application checks `outcomes`."""
        self._assured = assured
        self._window = part.window
        self._checked: dict[str, None] = {}
        self._refused: list[tuple[int, int, int]] = []
        self._unflushed: list[tuple[int, int, int]] = []
        self._told: set[int] = set()  # messages whose refusal publish() has raised
        self._unmatched_told = 0  # by publish()
        self._is_closed = self._has_warned = False
        self._in_loops: dict[asyncio.AbstractEventLoop, AsyncPublishing] = {}
        assured.listen(self._on_changed)

    def publish(
        self, topic: str, payload: Buffer | Message, *, timeout: float | None = None, **options: Unpack[MessageOptions]
    ) -> str:
        """Publish a message, and return its outcome when it is stored: "stored", "asynchronous", "synchronous",
        "degraded" (synchronous was requested, and the standby does not answer), or "unmatched" (no endpoint wants it).

        RefusedError if the router refuses the message, LimitError if it is too large, UnreachableError if it is not
        acknowledged within `timeout` seconds; the message may still be stored then.
        """
        until = None if timeout is None else deadline_after(timeout)
        number = self._put(topic, payload, options)
        is_done = self._assured.exchange(self.part, number, until)
        if self._in_loops:  # their messages may be acknowledged as well
            self._acknowledged()
        if is_done:
            return self._judged(number, self._window.outcome_of(number))
        self._assured.flush_soon()
        with self._assured.lock:
            left = None if until is None else max(0.0, until - time.monotonic())
            self._assured.changed.wait_for(lambda: self._window.outcome_of(number) or self._is_over(), left)
            outcome = self._window.outcome_of(number)
            if not outcome:
                self._assured.check(self.part)
                raise UnreachableError(f"message {number} was not acknowledged in time", hint="it may still be stored")
        return self._judged(number, outcome)

    def send(self, topic: str, payload: Buffer | Message, **options: Unpack[MessageOptions]) -> int:
        """Publish without waiting for the acknowledgement; waits only while the window is full. Return the message's
        number; outcome() and flush() tell its outcome.
        """
        number = self._put(topic, payload, options)
        self._assured.flush_soon()
        return number

    def _put(self, topic: str, payload: Buffer | Message, options: MessageOptions) -> int:
        """Into the window, when there is room."""
        while True:
            number = self._put_now(topic, payload, options)
            if number:
                return number
            self._await_room()

    def _put_now(self, topic: str, payload: Buffer | Message, options: MessageOptions) -> int:
        """Into the window; 0: there is no room, or the session is over."""
        if options or type(topic) is not str or type(payload) is not bytes or topic not in self._checked:
            return self._put_with(topic, payload, **options)
        if self._assured.is_over or not self.part.has_begun:
            return 0
        return self._window.put(topic, payload, PRIORITY_DEFAULT, 0, 0, 0, 0, 0)

    def _put_with(
        self,
        topic: str,
        payload: Buffer | Message,
        *,
        priority: int = PRIORITY_DEFAULT,
        ttl_ms: int = 0,
        replication: Treatment = "none",
        model_id: int = 0,
        model_version: int = 0,
        transaction: int = 0,
    ) -> int:
        number = 0
        try:
            if topic not in self._checked:
                self._check_topic(topic)
            if isinstance(payload, Message):
                model_id, model_version = payload.model.id, payload.version
            content = payload_bytes(payload)
            flags = FLAGS[replication]
            if not self._assured.is_over and self.part.has_begun:
                number = self._window.put(topic, content, priority, flags, model_id, model_version, ttl_ms, transaction)
        except (OverflowError, TypeError, KeyError) as error:
            options = {"priority": priority, "ttl_ms": ttl_ms, "model_id": model_id, "model_version": model_version}
            raise unfit(error, topic, replication, **options) from None
        if (
            not number
            and transaction
            and self._window.next_number - self._window.unresolved >= self._window.messages_max
        ):
            raise LimitError(f"more than {self._window.messages_max} messages in a transaction")
        return number

    async def publish_async(self, topic: str, payload: Buffer | Message, **options: Unpack[MessageOptions]) -> str:
        """Like publish(), in an asyncio loop; any number of calls may wait at a time. Messages of a loop are stored in
        the order of the calls. The message of a cancelled call may still be stored."""
        in_loop = self._in_loops.get(asyncio.get_running_loop()) or self._begin_in_loop()
        number, outcome = await in_loop.publish(topic, payload, options)
        return ACCEPTED.get(outcome) or self._judged(number, outcome)

    def _begin_in_loop(self) -> AsyncPublishing:
        for loop, ended in list(self._in_loops.items()):
            if ended.is_left:
                del self._in_loops[loop]
        begun = AsyncPublishing(self._assured, self.part, self._put_now, self._acknowledged)
        self._in_loops[asyncio.get_running_loop()] = begun
        return begun

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all published messages are acknowledged. False after a timeout. RefusedError if a message was
        refused since the last flush; see `refused`. Unmatched messages are not an error: `outcomes` counts them, and
        the first of them are logged."""
        deadline = deadline_after(timeout)
        last = self._window.next_number
        with self._assured.lock:
            while self._window.unresolved < last:
                self._assured.check(self.part)
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._assured.changed.wait(left)
            refused, self._unflushed = self._unflushed, []
            told, self._told = self._told, set()
        for first, end, outcome in refused:
            for number in range(first, end + 1):
                if number not in told:
                    raise self._refusal(number, outcome)
        self._warn()
        return True

    def _warn(self) -> None:
        """Log unmatched messages of send(), which cannot report them."""
        unmatched = self._window.outcome_counts().get(OUTCOME_UNMATCHED, 0) - self._unmatched_told
        if unmatched and self.warns and not self._has_warned:
            self._has_warned = True
            log.warning("messages_unmatched", messages=unmatched, hint="no endpoint wants them; `outcomes` counts them")

    def outcome(self, number: int) -> str:
        """The outcome of one of the last 65,536 messages; empty if the message is not acknowledged yet."""
        outcome = self._window.outcome_of(number)
        return self._in_words(number, outcome) if outcome else ""

    @property
    def outcomes(self) -> dict[str, int]:
        """Number of messages per outcome, in the words of publish(); refused messages by reason."""
        return {OUTCOMES.get(outcome, str(outcome)): count for outcome, count in self._window.outcome_counts().items()}

    @property
    def refused(self) -> list[tuple[int, int, int]]:
        """Refused messages, the newest last: first number, last number, outcome."""
        return list(self._refused)

    @property
    def unacknowledged(self) -> int:
        return self.part.unacknowledged

    def close(self) -> None:
        """Close the publisher. Unacknowledged messages may or may not be stored: call flush() before."""
        if not self._is_closed:
            self._is_closed = self.part.is_closed = True
            self.part.has_begun = False  # no message is added from now on
            self._assured.unlisten(self._on_changed)
            self._assured.close_part(self.part)
            for in_loop in list(self._in_loops.values()):
                in_loop.close()
            self._in_loops.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def _check_topic(self, topic: str) -> None:
        if not isinstance(topic, str):
            raise TypeError(topic)  # _put() replaces it by an error with a text
        check_topic(topic)
        if len(self._checked) >= 4_096:
            self._checked.clear()
        self._checked[topic] = None

    def _await_room(self) -> None:
        with self._assured.lock:
            self._assured.check(self.part)
            self._assured.changed.wait_for(lambda: (self.part.has_begun and self._window.room > 0) or self._is_over())
            self._assured.check(self.part)

    def _is_over(self) -> bool:
        return self._assured.failure_of(self.part) is not None

    def _judged(self, number: int, outcome: int) -> str:
        if outcome >= OUTCOME_REFUSED:
            self._told.add(number)
            if len(self._told) > 2 * REFUSED_KEPT:  # refusals of older messages are dropped, too
                self._told = {each for each in self._told if each >= self._unflushed[0][0]}
            raise self._refusal(number, outcome)
        self._unmatched_told += outcome == OUTCOME_UNMATCHED
        return self._in_words(number, outcome)

    def _in_words(self, number: int, outcome: int) -> str:
        if outcome == OUTCOME_FULL and (found := self._window.full_endpoint(number)) is not None:
            endpoint, limit = found
            return why_full(endpoint.name, endpoint.messages_max, endpoint.bytes_max, limit)
        return OUTCOMES.get(outcome, f"outcome {outcome}")

    def _refusal(self, number: int, outcome: int) -> PenstockError:
        what = f"message {number} was refused: {self._in_words(number, outcome)}"
        if outcome == OUTCOME_TOO_LARGE:  # the same error as send() raises
            return LimitError(what, hint=f"at most {self._window.payload_size_max:,} bytes (message_bytes_max)")
        return RefusedError(what, peer_code=f"outcome-{outcome}")

    # The loop's thread

    def _on_changed(self, changed: Changed) -> None:
        for part, first, last, outcome in changed.refused:
            if part is self.part:
                for runs in (self._refused, self._unflushed):
                    runs.append((first, last, outcome))
                    del runs[:-REFUSED_KEPT]
        if self._in_loops:
            self._acknowledged()

    # Any thread

    def _acknowledged(self, by: AsyncPublishing | None = None) -> None:
        for in_loop in list(self._in_loops.values()):
            if in_loop is not by:
                in_loop.changed()
