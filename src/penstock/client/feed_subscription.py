"""One feed for one subscription: the adapters' streams are merged, joined to the image, and checked by the gate."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Literal, TypeAlias

import msgspec

from penstock.base.counters import Cause, Counters
from penstock.base.errors import ConfigurationError, PenstockError, RefusedError, SealKeyError, UnreachableError
from penstock.base.log import logger
from penstock.capture.live._reading import BatchReader
from penstock.capture.live.reading import Models
from penstock.client._pipeline import Pipeline
from penstock.client.config import ClientConfig
from penstock.client.filtered import FilteredFeed
from penstock.client.gate import SEALED, Gate
from penstock.client.joining import Joining, Live, Outcome
from penstock.client.service import Image, Protection, fetch_image, has_service
from penstock.client.unicast import UnicastReceiver
from penstock.filter.client.discovery import AUTO, find_filter
from penstock.middleware import Discontinuity, LossReceipt, Merged, MergedBatch, MergeGap, SessionEvent
from penstock.middleware.live import MulticastReceiver
from penstock.middleware.live.merging_receiver import MergingReceiver, StreamSource
from penstock.net.live.loop_thread import LoopThread
from penstock.net.udp import Address, Channel
from penstock.security import Entitlement
from penstock.security.core.authentication import is_older, scope_of
from penstock.security.core.brokering import Authentication, BrokeredStream, StreamAddress
from penstock.wire import AuthenticationScope, Authenticator, LeaseFlag, PacketMessage

log = logger("client.line")

Transport: TypeAlias = Literal["auto", "multicast", "tcp"]

LOOP_BACK = "127.0.0.1"

TURN_SECONDS = 0.005
"""Interval at which a line is read while an image or a key is awaited."""


class Surroundings(msgspec.Struct):
    """Objects shared by the lines of a subscription."""

    thread: Callable[[], LoopThread]
    protection: Protection
    config: ClientConfig
    counters: Counters
    models: Models
    node: str
    interface: str | None
    transport: Transport
    where: str | None
    on_refused: Callable[[RefusedError], None]
    lease: LeaseFlag
    """Lease of the authentication keys."""


class FeedSubscription:
    """One feed of a subscription. Used by one thread at a time."""

    def __init__(
        self,
        around: Surroundings,
        stream: BrokeredStream,
        topics: Sequence[str],
        token: str,
        reader: BatchReader,
        *,
        image: bool,
    ) -> None:
        self._around = around
        self._stream = stream
        self._wanted = list(topics)
        self._asked: list[str] = []  # topics requested from adapters over TCP
        self._token = token
        self.is_multicast = self._goes_by_multicast(stream)
        self.gate = Gate(self._topics_to_pass(stream), around.where, around.models, around.counters)
        self.gate.learns_models = has_service(stream)
        self._multicast: dict[str, tuple[frozenset[Channel], MulticastReceiver]] = {}  # by interface
        self._authentication: Authentication | None = None
        self._scopes: list[AuthenticationScope] = []
        self._authenticators: list[Authenticator] = []  # of the open receivers
        self._filtered: FilteredFeed | None = None
        self._module: Address | None = find_filter(around.config.filter) if self.is_multicast else None
        self._unicast: UnicastReceiver | None = None
        self._merging = MergingReceiver([], config=around.config.merger, counters=around.counters)
        self.pipeline = Pipeline(self._merging.merger, self.gate.by_topic, reader)
        # a sealed message without a key, and the messages after it
        self._unopened: deque[PacketMessage | SessionEvent] = deque()
        self._unopened_since = 0.0
        self._image: Future[Image] | None = None
        self._joining: Joining | None = None
        if image and not stream.delay_s and has_service(stream):  # an image is current: a delayed stream has none
            self._joining = Joining(self._merging.merger, around.config, stream.feed)
        self.update(stream)

    def update(self, stream: BrokeredStream) -> None:
        """Set the current adapters. New ones are joined before others are left, so that no message is missed."""
        self._stream = stream
        self.gate.want(self._topics_to_pass(stream))
        self.gate.requires_seal = stream.sealed and self.is_multicast
        self.gate.hold_keys(stream.keys)
        if stream.authentication is not None:
            self.authenticate(stream.authentication)
        asked = self._topics_of(stream)
        is_changed, self._asked = asked != self._asked, asked
        if self.is_multicast:
            if stream.addresses:  # without known adapters, the last addresses are kept
                self._listen(stream)
        elif self._unicast is None:
            self._unicast = UnicastReceiver(
                self._around.thread(),
                self._around.protection,
                self._around.config,
                self._around.counters,
                node=self._around.node,
                token=self._token,
                topics=asked,
                delay_s=stream.delay_s,
                on_refused=self._around.on_refused,
            )
            self._unicast.follow(stream.addresses)
            self._merging.add(self._unicast)
        else:
            self._unicast.follow(stream.addresses)
            if is_changed:
                self._unicast.modify(asked)

    def authenticate(self, told: Authentication) -> None:
        """Set the current keys and publishers of the feed; other packets on its groups are dropped."""
        if is_older(told, self._authentication):
            return
        self._authentication = told
        self._scopes = [scope_of(told)]
        for each in self._authenticators:
            each.use(self._scopes)

    def allow(self, entitlement: Entitlement, token: str) -> None:
        """Apply a renewed token."""
        self.gate.allow(entitlement, self._stream.delay_s)
        if token != self._token:
            self._token = token
            if self._unicast is not None:
                self._unicast.renew(token)
            if self._filtered is not None:
                self._filtered.receiver.renew(token)

    def want(self, topics: Sequence[str]) -> None:
        """Set other topics; a following update() gives the adapters' streams for them."""
        self._wanted = list(topics)
        self.gate.want(self._topics_to_pass(self._stream))

    def ordinary_source(self) -> StreamSource | None:
        """Return the source for the pipeline; None if messages need more than the pipeline does."""
        if self._joining is not None or self._unopened or not self.gate.is_by_topic:
            return None
        if self._filtered is not None and self._is_filter_gone(self._filtered):
            return None
        return self._merging.only_source

    def judge_left(self) -> list[Outcome]:
        """Return what the pipeline left to the line."""
        return self._judged(self.pipeline.left)

    def receive(self, timeout: float) -> list[Outcome]:
        """Return messages for the application, in order; waits at most `timeout` seconds."""
        if self._filtered is not None and self._is_filter_gone(self._filtered):
            self._leave_filter(self._filtered)
        outcomes = self._judged(self._merging.receive(min(timeout, TURN_SECONDS) if self._is_waiting else timeout))
        return outcomes if self._joining is None else self._join(self._joining, outcomes)

    def descriptors(self) -> list[int] | None:
        """Return descriptors that become readable when something arrives; None if the line must be read to know."""
        return self._merging.descriptors()

    def idle_seconds(self) -> float:
        """Return the time until receive() is due even if nothing arrives."""
        return min(self._merging.idle_seconds(), TURN_SECONDS) if self._is_waiting else self._merging.idle_seconds()

    @property
    def _is_waiting(self) -> bool:
        """True while an image or a key is awaited."""
        return self._joining is not None or bool(self._unopened)

    def close(self) -> None:
        self._merging.close()
        if self._image is not None:
            self._image.cancel()

    # Sources of messages

    def can_take(self, stream: BrokeredStream) -> bool:
        """True if this line can take the stream; a stream with another transport needs a new line. So does a stream
        with other topics before the image is joined, because kept messages were selected by the earlier topics.
        """
        if not stream.addresses:
            return True
        if self._joining is not None and self._topics_of(stream) != self._asked:
            return False
        return self._goes_by_multicast(stream) == self.is_multicast

    def _topics_of(self, stream: BrokeredStream) -> list[str]:
        return [*stream.topics, *(topic for topic in self._wanted if topic.startswith("!"))]

    def _topics_to_pass(self, stream: BrokeredStream) -> list[str]:
        """The wanted topics; of a client's publisher, only those that the publisher may send."""
        return self._wanted if has_service(stream) else self._topics_of(stream)

    def _goes_by_multicast(self, stream: BrokeredStream) -> bool:
        wanted = self._around.transport
        can = stream.delay_s == 0 and bool(stream.addresses) and all(each.group for each in stream.addresses)
        if wanted == "multicast" and not can:
            raise ConfigurationError(
                f"{stream.feed} is not available by multicast for this client", hint="use transport='auto' or 'tcp'"
            )
        return can and wanted != "tcp"

    def _listen(self, stream: BrokeredStream) -> None:
        if self._filtered is not None:
            self._filtered.follow(stream, self._asked)
        elif self._module is not None:
            self._use_filter(self._module, stream)
        if self._filtered is None:
            self._listen_directly(stream.addresses)

    def _use_filter(self, module: Address, stream: BrokeredStream) -> None:
        around = self._around
        try:
            self._filtered = FilteredFeed(
                module,
                around.thread(),
                around.protection,
                around.config,
                around.counters,
                around.models,
                stream,
                topics=self._asked,
                where=around.where,
                node=around.node,
                token=self._token,
                on_refused=self._refused_by_filter,
                authenticator=self._authenticator(),
            )
        except (RefusedError, UnreachableError) as error:
            if around.config.filter != AUTO:
                raise
            log.warning("filter_not_used", feed=stream.feed, error=str(error))
            self._module = None
        else:
            self._merging.add(self._filtered)

    def _refused_by_filter(self, error: RefusedError) -> None:
        """Runs in the thread's loop. The filter is not asked again about the rights of the same token."""
        if self._around.config.filter != AUTO or error.peer_code in ("revoked", "token", "expired"):
            self._around.on_refused(error)

    def _is_filter_gone(self, filtered: FilteredFeed) -> bool:
        config, receiver = self._around.config, filtered.receiver
        return config.filter == AUTO and (receiver.is_refused or receiver.detached_s > config.filter_wait_s)

    def _leave_filter(self, filtered: FilteredFeed) -> None:
        """The filter did not return: join the groups directly."""
        log.warning("filter_left", feed=self._stream.feed)
        self._filtered = self._module = None
        self._listen_directly(self._stream.addresses)
        self._merging.retire(filtered)

    def _listen_directly(self, addresses: Sequence[StreamAddress]) -> None:
        by_interface: dict[str, set[Channel]] = {}
        for each in addresses:
            interface = self._around.interface or each.interface or LOOP_BACK
            by_interface.setdefault(interface, set()).add(
                Channel(group=each.group, port=each.port, interface=interface)
            )
        for interface in [*self._multicast, *by_interface]:
            channels = frozenset(by_interface.get(interface, ()))
            known, receiver = self._multicast.get(interface, (frozenset(), None))
            if channels == known:
                continue
            if receiver is None:
                receiver = MulticastReceiver(
                    sorted(channels, key=str),
                    config=self._around.config.receiver,
                    counters=self._around.counters,
                    authenticator=self._authenticator(),
                )
                self._merging.add(receiver)
            elif channels:
                receiver.listen(sorted(channels, key=str))
            if channels:
                self._multicast[interface] = (channels, receiver)
            else:
                del self._multicast[interface]
                self._merging.retire(receiver)

    def _authenticator(self) -> Authenticator:
        """Return an authenticator for a new receiver. Authenticators of closed receivers are few, and are kept."""
        made = Authenticator(self._scopes, lease=self._around.lease)
        self._authenticators.append(made)
        return made

    # Processing of received messages

    def _judged(self, merged: Sequence[object]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for each in merged:
            if isinstance(each, MergedBatch):
                chosen = self.gate.choose(each.messages)
            elif isinstance(each, Merged):
                chosen = [message for message in each.messages if self.gate.passes(message)]
            elif isinstance(each, SessionEvent):
                outcomes += self._opened([msgspec.structs.replace(each, feed=self._stream.feed)])
                continue
            else:
                if isinstance(each, MergeGap | Discontinuity | LossReceipt):
                    outcomes.append(each)
                continue
            if isinstance(chosen, list):
                outcomes += self._opened(chosen)
            elif len(chosen):
                outcomes.append(chosen)
        if self._unopened:
            outcomes += self._opened([])
        return outcomes

    def _opened(self, messages: Sequence[PacketMessage | SessionEvent]) -> list[Outcome]:
        """Return the decrypted messages and the events between them. A message without a key, and everything after it,
        waits for the key.
        """
        if not self._unopened and not any(
            isinstance(message, PacketMessage) and message.flags & SEALED for message in messages
        ):
            return _runs(messages)
        if not self._unopened:
            self._unopened_since = time.monotonic()
        self._unopened.extend(messages)
        opened: list[PacketMessage | SessionEvent] = []
        while self._unopened:
            message: PacketMessage | SessionEvent | None = self._unopened[0]
            assert message is not None
            if isinstance(message, PacketMessage) and message.flags & SEALED:
                sealed = message
                try:
                    message = self.gate.open(sealed)
                except SealKeyError:
                    if self.gate.is_of_the_past(sealed):
                        self._around.counters.add("messages_dropped", cause=Cause.BEFORE_JOIN)
                        if self._joining is not None:
                            self._joining.pass_over(sealed)
                    elif self._is_wait_over():
                        self._around.counters.add("messages_dropped", cause=Cause.NO_ANSWER)
                    else:
                        break
                    message = None
                if message is not None and not self.gate.meets(message):
                    message = None
            self._unopened.popleft()
            if message is not None:
                opened.append(message)
                self._unopened_since = time.monotonic()
        return _runs(opened)

    def _is_wait_over(self) -> bool:
        config = self._around.config
        return (
            len(self._unopened) > config.early_messages_max
            or time.monotonic() - self._unopened_since > config.key_wait_s
        )

    # Late join

    @property
    def _live(self) -> Live:
        if self._filtered is not None:
            return self._filtered.begun(self._stream.addresses)
        return None if self._unicast is None else self._unicast.begun

    def _ask_for_image(self, joining: Joining) -> None:
        around = self._around
        if able := joining.ask(self._stream.addresses, self._live, time.monotonic_ns()):
            self._image = around.thread().start(
                fetch_image(
                    able, around.protection, around.node, self._token, self._asked, around.config.image_messages_max
                )
            )

    def _join(self, joining: Joining, outcomes: list[Outcome]) -> list[Outcome]:
        """Return nothing until an image fits; then the image, and the messages after it."""
        joining.keep(outcomes)
        if self._image is None:
            self._ask_for_image(joining)
        if self._image is None or not self._image.done():
            return []
        image, self._image = self._image_or_none(self._image), None
        if image is None:
            joining.fail(time.monotonic_ns())
            return []
        if not joining.fits(image, self._live):
            return []
        self._joining = None
        current = [message for message in image.messages if self.gate.passes(message, by_service=True)]
        joined: list[Outcome] = [current] if current else []
        joined += joining.kept_after(image)
        for start in joining.starts(image):
            joined += self._judged(self._merging.handle(start))
        return joined

    def _image_or_none(self, future: "Future[Image]") -> Image | None:
        try:
            return future.result()
        except PenstockError as error:
            if isinstance(error, RefusedError):
                self._around.on_refused(error)
            log.info("image_failed", feed=self._stream.feed, error=str(error))
            return None


def _runs(opened: Sequence[PacketMessage | SessionEvent]) -> list[Outcome]:
    """Return runs of consecutive messages, and the events between them."""
    runs: list[Outcome] = []
    for each in opened:
        if isinstance(each, SessionEvent):
            runs.append(each)
        elif runs and isinstance(runs[-1], list):
            runs[-1].append(each)
        else:
            runs.append([each])
    return runs
