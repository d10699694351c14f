"""The stream service of an adapter: sends subscribers their messages over TCP. live/subscriber_server.py runs it.

A subscriber opens a stream with a token. It gets the published messages that match its interests and grants, in packets
of its own stream. A stream with an image begins with the image: messages published before the image is complete are
held, and sent after it unless the image includes them. An image may include messages that the service has not seen yet;
these are skipped later. A delayed stream is read from the journal. The service waits for no subscriber: one whose queue
is full gets a refusal and is disconnected. `now_ns` is the time of the wall clock, because tokens expire by it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from numpy.typing import NDArray

from penstock.base.core import Tick, refuse
from penstock.base.counters import Cause, Counters
from penstock.base.errors import PenstockError, RevokedError, TokenExpiredError, TopicError
from penstock.base.log import logger
from penstock.feed.config import ServiceConfig
from penstock.feed.core.service.accounts import Accounts
from penstock.feed.core.service.events import (
    Close,
    ContributionTaken,
    Disconnected,
    EndStream,
    ImageTaken,
    MessageReceived,
    MessageSent,
    Overrun,
    Published,
    Recorded,
    RequestFailed,
    Revoke,
    SendMessage,
    ServiceEvent,
    ServiceInstruction,
    StartHistory,
    TakeContribution,
    TakeImage,
)
from penstock.feed.core.service.published import PublishedBatch, StreamPacker
from penstock.feed.core.service.selection import Selector
from penstock.feed.core.service.subscriber import PendingRows, Subscriber
from penstock.middleware.core.events import OutgoingMessage
from penstock.middleware.core.reserved_topics import RESERVED_PREFIX
from penstock.middleware.unicast import (
    PACKETS_BYTES,
    CloseStream,
    Contribute,
    Contributed,
    ImageBegin,
    ImageEnd,
    ModifyStream,
    OpenStream,
    Packets,
    RefusalCode,
    RenewToken,
    StreamOpened,
    StreamRefused,
)
from penstock.security import Entitlement, Token

log = logger("feed.service")

Verify = Callable[[str, int], Token]
"""Verifies a token's text at a time of the wall clock; raises PenstockError with the reason if it is invalid."""


class ServiceIdentity(msgspec.Struct, frozen=True):
    """The identity of the service."""

    adapter: str
    publisher_id: int
    streams: tuple[int, ...]
    contributions: tuple[str, ...] = ()
    """Names of the source streams that accept contributions of subscribers."""


class StreamService:
    """The core; `verify` checks tokens. New subscribers get `term`, and their streams begin with `models`."""

    def __init__(
        self,
        identity: ServiceIdentity,
        verify: Verify,
        config: ServiceConfig,
        counters: Counters,
        models: Sequence[OutgoingMessage] = (),
    ) -> None:
        self.identity = identity
        self.config = config
        self.counters = counters
        self.accounts = Accounts()
        self.term = 0
        self._verify = verify
        self._models = models
        self._subscribers: dict[int, Subscriber] = {}
        self._live = Selector()
        self._opened_count = 0
        self._is_closed = False
        self._out: list[ServiceInstruction] = []

    def handle(self, event: ServiceEvent, now_ns: int) -> list[ServiceInstruction]:
        match event:
            case Published():
                self._publish(event.batch)
            case MessageReceived():
                self._receive(event, now_ns)
            case MessageSent():
                if (subscriber := self._subscribers.get(event.subscriber)) is not None:
                    subscriber.unqueue(event.size)
            case Disconnected():
                self._drop(event.subscriber, Cause.CLOSED)
            case ImageTaken():
                self._send_image(event)
            case Recorded():
                self._send_recorded(event)
            case RequestFailed():
                self._refuse(event.subscriber, RefusalCode(event.refusal.code), event.refusal.reason)
            case ContributionTaken():
                self._confirm(event)
            case Revoke():
                self._revoke(event)
            case Overrun():
                self._end_all(RefusalCode.UNAVAILABLE, "the adapter could not keep up; connect again", live_only=True)
            case Close():
                self._is_closed = True
                self._end_all(RefusalCode.STOPPING, "the adapter stops")
            case Tick():
                self._expire(now_ns)
            case _:
                refuse(self, event)
        out, self._out = self._out, []
        return out

    def next_deadline_ns(self) -> int | None:
        """Expiry of the next token, by the wall clock."""
        ends = [each.token.expires_ns for each in self._subscribers.values()]
        return min(ends, default=None)

    def __len__(self) -> int:
        """Number of open streams."""
        return len(self._subscribers)

    @property
    def has_live(self) -> bool:
        """True if a subscriber receives published messages."""
        return bool(len(self._live))

    # Messages of subscribers

    def _receive(self, event: MessageReceived, now_ns: int) -> None:
        number, message = event.subscriber, event.message
        subscriber = self._subscribers.get(number)
        try:
            if isinstance(message, OpenStream) and subscriber is None:
                self._open(number, message, now_ns)
            elif subscriber is None:
                self._refuse(number, RefusalCode.PROTOCOL, "the first message opens a stream")
            elif isinstance(message, ModifyStream):
                self._modify(subscriber, message.topics, subscriber.token)
            elif isinstance(message, RenewToken):
                self._renew(subscriber, message.token, now_ns)
            elif isinstance(message, Contribute):
                self._contribute(subscriber, message)
            elif isinstance(message, CloseStream):
                self._drop(number, Cause.GOODBYE)
                self._out.append(EndStream(number))
            else:
                self._refuse(number, RefusalCode.PROTOCOL, f"{type(message).__name__} is not a request of a subscriber")
        except TopicError as error:
            self._refuse(number, RefusalCode.TOPICS, str(error))

    def _open(self, number: int, message: OpenStream, now_ns: int) -> None:
        if self._is_closed:
            self._refuse(number, RefusalCode.STOPPING, "the adapter stops")
            return
        if len(self._subscribers) >= self.config.subscribers_max:
            self._refuse(number, RefusalCode.LIMIT, f"{len(self._subscribers)} subscribers are the limit")
            return
        token = self._verified(number, message.token, now_ns)
        if token is None:
            return
        delays = Entitlement(token.grants).delays_s
        delay_s = message.delay_s if message.delay_s is not None else min(delays, default=0)
        granted_s = max((delay for delay in delays if delay <= delay_s), default=None)
        if message.topics and granted_s is None:
            what = "nothing" if not delays else f"nothing without a delay of {min(delays)} s"
            self._refuse(number, RefusalCode.ENTITLEMENT, f"{token.subject} is granted {what}")
            return
        if delay_s and message.image:
            self._refuse(number, RefusalCode.ENTITLEMENT, "a delayed stream has no image")
            return
        self._opened_count += 1
        identity = self.identity
        packer = StreamPacker(identity.publisher_id, self._opened_count, self.config.packet_size_max)
        subscriber = Subscriber(
            number,
            message,
            token,
            packer,
            lambda: self.accounts.open(token, delay_s, now_ns),
            granted_s=granted_s or 0,
            delay_s=delay_s,
        )
        self._select_live(subscriber)
        self._subscribers[number] = subscriber
        opened = StreamOpened(identity.adapter, identity.publisher_id, self.term, list(identity.streams))
        self._out.append(SendMessage(number, opened))
        if message.topics and self._models:
            self._send_models(subscriber)
        if delay_s:
            self._out.append(StartHistory(number, delay_s, message.from_ns))
        elif message.image:
            self._out.append(TakeImage(number))
        log.info("stream_opened", client=token.subject, subscription=token.subscription_id, delay_s=delay_s)

    def _verified(self, number: int, text: str, now_ns: int) -> Token | None:
        try:
            return self._verify(text, now_ns)
        except TokenExpiredError as error:
            self._refuse(number, RefusalCode.EXPIRED, str(error))
        except RevokedError as error:
            self._refuse(number, RefusalCode.REVOKED, str(error))
        except PenstockError as error:
            self._refuse(number, RefusalCode.TOKEN, str(error))
        return None

    def _modify(self, subscriber: Subscriber, topics: Sequence[str], token: Token) -> None:
        subscriber.modify(topics, token)
        self._select_live(subscriber)

    def _select_live(self, subscriber: Subscriber) -> None:
        if subscriber.wants_published:
            self._live.set(subscriber.number, subscriber.topics, subscriber.patterns())

    def _renew(self, subscriber: Subscriber, text: str, now_ns: int) -> None:
        token = self._verified(subscriber.number, text, now_ns)
        if token is None:
            return
        if token.subject != subscriber.token.subject:
            self._refuse(subscriber.number, RefusalCode.TOKEN, "the new token belongs to another client")
            return
        self._modify(subscriber, subscriber.topics, token)

    def _contribute(self, subscriber: Subscriber, message: Contribute) -> None:
        number = subscriber.number
        if message.stream not in self.identity.contributions:
            self._refuse(number, RefusalCode.CONTRIBUTION, f"{message.stream} accepts no contributions")
            return
        contributors = (each for each in self._subscribers.values() if each.contributes_to(message.stream))
        if any(each.token.subject != subscriber.token.subject for each in contributors):
            self._refuse(number, RefusalCode.CONTRIBUTION, f"another client contributes to {message.stream} now")
            return
        for each in message.messages:
            if each.topic.startswith(RESERVED_PREFIX):
                self._refuse(
                    number,
                    RefusalCode.CONTRIBUTION,
                    f"topics that begin with {RESERVED_PREFIX} are reserved for the plant",
                )
                return
            if not subscriber.may_send(each.topic):
                self._refuse(number, RefusalCode.ENTITLEMENT, f"{each.topic} has no grant to send")
                return
            if len(each.payload) + len(each.topic.encode()) > self.config.contribution_size_max:
                what = f"a contribution with its topic is limited to {self.config.contribution_size_max} bytes"
                self._refuse(number, RefusalCode.CONTRIBUTION, what)
                return
        if message.messages:
            subscriber.note_contribution(message.stream)
        self._out.append(TakeContribution(number, message.stream, message.first_sequence, message.messages))

    def _confirm(self, event: ContributionTaken) -> None:
        if (subscriber := self._subscribers.get(event.subscriber)) is None:
            return
        subscriber.account.note_contributed(event.taken_count)
        self._out.append(SendMessage(event.subscriber, Contributed(event.stream, event.next_sequence)))

    # Messages to subscribers

    def _send_models(self, subscriber: Subscriber) -> None:
        """Send all models, whatever the grants, because models contain no data. Models in the published stream are
        not passed on."""
        packets = subscriber.pack_messages(self._models)
        self._out += [SendMessage(subscriber.number, each) for each in _messages_of(packets)]

    def _publish(self, batch: PublishedBatch) -> None:
        sourced, sequences = batch.sourced, batch.packets["sequence"]
        for number, rows in self._live.select(batch.data, sourced).items():
            subscriber = self._subscribers[number]
            if subscriber.is_awaiting_image:
                subscriber.hold(PendingRows(batch.data, sequences[rows["packet_index"]], rows.copy()))
                self._queue(subscriber, batch.data.nbytes)
            else:
                self._send(subscriber, batch.data, subscriber.after_image(rows, sequences))

    def _send_recorded(self, event: Recorded) -> None:
        if (subscriber := self._subscribers.get(event.subscriber)) is None:
            return
        data = event.batch.data
        self._send(subscriber, data, subscriber.chosen(data, event.batch.sourced))

    def _send_image(self, event: ImageTaken) -> None:
        subscriber = self._subscribers.get(event.subscriber)
        if subscriber is None or not subscriber.is_awaiting_image:
            return
        image = event.image
        pending = subscriber.begin_after_image(image.next_packet)
        self._out.append(SendMessage(subscriber.number, ImageBegin(image.positions)))
        rows = subscriber.chosen(image.topic_data, image.rows)
        packets = subscriber.pack(image.topic_data, image.payloads, rows)
        # the image does not count for the queue limit, whatever its size
        self._out += [SendMessage(subscriber.number, each) for each in _messages_of(packets)]
        self._out.append(SendMessage(subscriber.number, ImageEnd(image.positions)))
        if not subscriber.is_live:
            self._drop(subscriber.number, Cause.CLOSED)
            self._out.append(EndStream(subscriber.number))
            return
        for each in pending:
            self._send(subscriber, each.data, each.rows)

    def _send(self, subscriber: Subscriber, data: NDArray[Any], rows: NDArray[Any]) -> None:
        for message in _messages_of(subscriber.pack(data, data, rows)):
            size = sum(map(len, message.packets))
            if not self._queue(subscriber, size):
                return
            self._out.append(SendMessage(subscriber.number, message, size))

    def _queue(self, subscriber: Subscriber, size: int) -> bool:
        """Add to the subscriber's queue. False if the subscriber is gone, or is dropped because its queue is full."""
        queued_size = subscriber.queue(size)
        if queued_size <= self.config.queue_bytes_max or subscriber.number not in self._subscribers:
            return subscriber.number in self._subscribers
        what = f"{queued_size} bytes wait to be read, the limit is {self.config.queue_bytes_max}"
        self._refuse(subscriber.number, RefusalCode.SLOW, what)
        return False

    # The end of a stream

    def _revoke(self, event: Revoke) -> None:
        for number, subscriber in list(self._subscribers.items()):
            token = subscriber.token
            if event.client == token.subject or event.subscription_id == token.subscription_id:
                self._refuse(number, RefusalCode.REVOKED, event.reason)

    def _expire(self, now_ns: int) -> None:
        for number, subscriber in list(self._subscribers.items()):
            if subscriber.token.expires_ns <= now_ns:
                self._refuse(number, RefusalCode.EXPIRED, "the token has expired")

    def _end_all(self, code: RefusalCode, reason: str, *, live_only: bool = False) -> None:
        for number, subscriber in list(self._subscribers.items()):
            if not (live_only and subscriber.delay_s):
                self._refuse(number, code, reason)

    def _refuse(self, number: int, code: RefusalCode, reason: str) -> None:
        self._drop(number, _CAUSES.get(code, Cause.REFUSED))
        self._out.append(EndStream(number, StreamRefused(code, reason[:256])))

    def _drop(self, number: int, cause: Cause) -> None:
        self._live.remove(number)
        subscriber = self._subscribers.pop(number, None)
        self.counters.add("subscriptions_ended" if subscriber else "subscriptions_refused", cause=cause)
        if subscriber is not None:
            self.accounts.close(subscriber.account)
            log.info(
                "stream_ended",
                client=subscriber.token.subject,
                cause=str(cause),
                messages=subscriber.account.messages,
                bytes=subscriber.account.bytes,
            )


_CAUSES = {RefusalCode.SLOW: Cause.SLOW, RefusalCode.EXPIRED: Cause.EXPIRED, RefusalCode.STOPPING: Cause.CLOSED}


def _messages_of(packets: list[bytes]) -> list[Packets]:
    """Split packets into messages of limited size."""
    messages: list[Packets] = []
    size = PACKETS_BYTES
    for packet in packets:
        size += len(packet)
        if size > PACKETS_BYTES:
            messages.append(Packets([]))
            size = len(packet)
        messages[-1].packets.append(packet)
    return messages
