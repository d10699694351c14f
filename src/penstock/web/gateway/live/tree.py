"""The tree's agents as a browser's source: each subscription is its own party at a leaf, with a token of its user,
and published messages go to the root. All code runs in the console's loop, except blocking calls."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

import msgspec

from penstock.base.clock import SystemRandomness
from penstock.base.counters import Counters
from penstock.base.errors import (
    FilterExpressionError,
    LocalProtocolError,
    ModelError,
    PenstockError,
    RequestError,
    UnreachableError,
)
from penstock.base.log import logger
from penstock.capture.live.reading import Models
from penstock.model import Message, MessageModel
from penstock.net.core.client_session import Over
from penstock.security.live.client import AdminClient
from penstock.topics import Predicate
from penstock.topics.refusal import Refusal, most_helpful
from penstock.tree.client.core.events import Deliver, InfoHeard, Paused, Receipt, Resumed
from penstock.tree.client.core.subscriber import Subscriber
from penstock.tree.client.core_runner import TreeCoreRunner
from penstock.tree.client.subscription import Since, no_models, subscriber_config
from penstock.tree.core.control import Position
from penstock.tree.core.infostream import Info, Through
from penstock.web.core.sentences import sentence
from penstock.web.gateway.core import replies
from penstock.web.gateway.core.requests import Subscribe
from penstock.web.gateway.live.publishing import BrokeredGrant, Publisher, TreePlaces, party
from penstock.web.gateway.live.source import Arrival, Outlet
from penstock.wire import Extension, PacketMessage, decode_hops

TEND_S = 0.1
OPEN_S = 5.0

HOPS = int(Extension.HOPS)

T = TypeVar("T")
log = logger("console.tree")


class TreeSource:
    """`publishing` is the thread pool for blocking publishers."""

    def __init__(
        self,
        admin: AdminClient,
        places: TreePlaces,
        models: Sequence[MessageModel],
        outlet: Outlet,
        publishing: Executor,
    ) -> None:
        self.agent = ""
        self.tree = places.tree
        self.path: list[str] = []
        self._admin = admin
        self._places = places
        self._models = Models(no_models)
        for model in models:
            self._models.learn(model)
        self._known = models
        self._outlet = outlet
        self._publishing = publishing
        self._feeds: dict[int, _Feed] = {}
        self._opening: asyncio.Future[Publisher] | None = None
        self._publisher: Publisher | None = None
        """The last opened publisher, if it still works."""
        self._is_connected: bool | None = None
        self._tending = asyncio.ensure_future(self._tend())

    # Requests of the browser

    async def subscribe(self, request: Subscribe) -> None:
        since: Since = request.begin()
        if isinstance(since, int):
            if request.stream is None:
                raise RequestError("a sequence number needs a stream", hint="name the stream too")
            since = {request.stream: Position("sequence", since)}
        self._check_condition(request.where)
        name = party(self._admin)
        config, _ = subscriber_config(
            _shuffled(self._places.leaves),
            request.topics,
            where=request.where,
            since=since,
            name=name,
            tree=self.tree,
            cls=request.cls,
        )
        brokered = await asyncio.to_thread(self._admin.subscribe, request.topics)
        grant = BrokeredGrant(self._admin, brokered, request.topics, ())
        feed = _Feed(request.id, grant, Subscriber(config, SystemRandomness(), Counters("gateway"), token=grant.token))
        self._feeds[request.id] = feed
        feed.running = TreeCoreRunner(
            feed.core, name, self._places.guard, feed.counters, lambda each: self._told(feed, each)
        )
        feed.running.runner.failed.add_done_callback(lambda failed: self._failed(feed, failed))
        feed.running.start()
        try:
            await self._wait_open(feed)
        except BaseException:
            await self.unsubscribe(request.id)
            raise

    def _check_condition(self, where: str | None) -> None:
        """Refuse a condition that matches no message, with the reason; the agent would refuse it later."""
        if not where:
            return
        refusals: list[Refusal] = []
        for model in self._known:
            try:
                Predicate.compile(where, model)
                return
            except FilterExpressionError as error:
                refusals.append((model, error))
        if (refusal := most_helpful(where, refusals)) is not None:
            raise refusal

    async def _wait_open(self, feed: "_Feed") -> None:
        """Wait until an agent has accepted or refused the subscription."""
        deadline = time.monotonic() + OPEN_S
        while not self._is_open(feed):
            if feed.error is not None:
                raise feed.error
            if time.monotonic() > deadline:
                raise UnreachableError("no agent of the tree answers", where=", ".join(self._places.leaves))
            await asyncio.sleep(TEND_S / 10)

    def _is_open(self, feed: "_Feed") -> bool:
        """True if an agent has accepted the subscription. The outlet is notified of that before anything else."""
        if not feed.was_open and feed.core.welcome is not None and feed.error is None:
            feed.was_open = True
            feed.is_live = feed.core.is_live
            self._outlet.opened(feed.number, feed.is_live)
        return feed.was_open

    async def unsubscribe(self, number: int) -> None:
        feed = self._feeds.pop(number, None)
        if feed is not None:
            await feed.running.close()
            await asyncio.to_thread(feed.grant.cancel)

    async def publish(self, topic: str, record: Message) -> None:
        if self._publisher is None or self._publisher.is_over:
            self._opening = self._waiting(Publisher, self._admin, self._places)
            self._publisher = await asyncio.shield(self._opening)
        try:
            await self._waiting(self._publisher.publish, topic, record)
        except PenstockError:
            if self._publisher.is_over:
                publisher, self._publisher = self._publisher, None
                await self._waiting(publisher.close)
            raise

    def _waiting(self, function: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._publishing, function, *arguments)

    async def models(self) -> Sequence[MessageModel]:
        return self._known

    def pause(self) -> None:
        for feed in self._feeds.values():
            feed.running.pause()
            feed.running.carry_out_all(feed.core.handle(Paused(), time.monotonic_ns()))

    def resume(self) -> None:
        for feed in self._feeds.values():
            feed.running.resume()
            feed.running.carry_out_all(feed.core.handle(Resumed(), time.monotonic_ns()))

    async def close(self) -> None:
        self._tending.cancel()
        await asyncio.gather(self._tending, return_exceptions=True)
        for number in list(self._feeds):
            await self.unsubscribe(number)
        if self._opening is not None:  # its caller may be gone, but the publisher will exist
            (publisher,) = await asyncio.gather(self._opening, return_exceptions=True)
            if isinstance(publisher, Publisher):
                await self._waiting(publisher.close)
        self._admin.close()

    # Messages of agents

    def _told(self, feed: "_Feed", instruction: object) -> None:
        match instruction:
            case Deliver(stream, messages):
                self._is_open(feed)
                self._deliver(feed, stream, messages)
            case Receipt(stream, cause, first, last, count):
                self._is_open(feed)
                told = replies.Receipt(
                    id=feed.number, receipt=cause, stream=stream, first=first or None, last=last, count=count or None
                )
                self._outlet.received(told)
            case InfoHeard(agent, info):
                if not isinstance(info, Through):
                    self._outlet.heard(info_document(agent, info, time.time_ns()))
            case Over(error):
                self._end(feed, error)

    def _deliver(self, feed: "_Feed", stream: str, messages: Iterable[PacketMessage]) -> None:
        """Deliver copies, because messages that wait for a browser must not hold the blocks that they arrived in."""
        arrivals: list[Arrival] = []
        for message in messages:
            try:
                each = self._models.read(message)
            except ModelError:
                continue  # too short for its model, although valid publishers cannot send such a message
            each.seq = message.sequence
            if isinstance(each, Message):
                each = each.copy()
            else:
                each.payload = bytes(each.payload)
            arrivals.append(Arrival(_time_ns(message), each))
        self._outlet.arrived(feed.number, stream, arrivals)

    def _end(self, feed: "_Feed", error: PenstockError) -> None:
        feed.error = error
        if feed.number in self._feeds and not feed.was_open:
            return  # subscribe() reports the error
        self._outlet.ended(feed.number, error)
        asyncio.ensure_future(self.unsubscribe(feed.number)).add_done_callback(_log_failure)

    def _failed(self, feed: "_Feed", failed: "asyncio.Future[Exception]") -> None:
        self._end(feed, LocalProtocolError(f"the subscription failed: {failed.result()!r}"))

    # Periodic checks

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(TEND_S)
            self._look()
            for feed in list(self._feeds.values()):
                if time.monotonic() >= feed.grant.renew_at:
                    await self._renew(feed)
            publisher = self._publisher
            if publisher is not None and time.monotonic() >= publisher.grant.renew_at:
                await self._waiting(publisher.renew)

    def _look(self) -> None:
        """Report changed states of the links."""
        for feed in self._feeds.values():
            if self._is_open(feed) and feed.core.is_live != feed.is_live:
                feed.is_live = feed.core.is_live
                if feed.is_live:
                    self._outlet.is_live(feed.number)
        opened = [feed for feed in self._feeds.values() if feed.was_open]
        if not opened:
            return
        lost = next((feed for feed in opened if feed.core.welcome is None), None)
        welcome = None if lost is not None else opened[0].core.welcome
        agent, path = ("", []) if welcome is None else (welcome.agent, list(welcome.path))
        if (lost is None, agent, path) != (self._is_connected, self.agent, self.path):
            self._is_connected = lost is None
            detail = "" if lost is None else f"{self.agent or 'the agent'} does not answer"
            self.agent, self.path = agent, path
            state = replies.State(
                state="connected" if self._is_connected else "lost", agent=agent, path=path, detail=detail
            )
            self._outlet.changed(state)

    async def _renew(self, feed: "_Feed") -> None:
        try:
            brokered = await asyncio.to_thread(feed.grant.renewed)
        except (UnreachableError, OSError) as error:
            log.info("not_renewed", error=str(error))
            feed.grant.renew_at = time.monotonic() + 1.0
            return
        except PenstockError as error:
            self._end(feed, error)
            return
        feed.grant.take(brokered)
        feed.running.carry_out_all(feed.core.renew(brokered.token))


class _Feed:
    """One subscription."""

    running: TreeCoreRunner

    def __init__(self, number: int, grant: BrokeredGrant, core: Subscriber) -> None:
        self.number = number
        self.grant = grant
        self.core = core
        self.counters = Counters("gateway")
        self.is_live = False
        self.was_open = False
        self.error: PenstockError | None = None


def info_document(agent: str, info: Info, time_ns: int, number: int = 0) -> replies.Info:
    return replies.Info(
        number=number,
        agent=agent,
        info=info.kind,
        topic=f"infostream.{info.kind}",
        time_ms=time_ns / 1_000_000,
        detail=sentence(info),
        fields=msgspec.to_builtins(info),
    )


def _shuffled(places: tuple[str, ...]) -> tuple[str, ...]:
    """Distribute browsers over the leaves."""
    first = SystemRandomness().below(len(places))
    return (*places[first:], *places[:first])


def _time_ns(message: PacketMessage) -> int:
    """Time at which the root received the message; now, if it is not recorded."""
    body = message.extensions.get(HOPS)
    hops = decode_hops(body) if body is not None else []
    return hops[-1].time_ns if hops else time.time_ns()


def _log_failure(task: "asyncio.Future[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("not_ended", error=repr(error))
