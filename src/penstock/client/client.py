"""The client that connect() returns."""

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias, overload

from penstock.base.clock import NS_PER_SECOND, SystemRandomness
from penstock.base.counters import Counters
from penstock.base.errors import (
    ConnectionLostError,
    LocalProtocolError,
    NotFoundError,
    PenstockError,
    RateLimitedError,
    RefusedError,
    RevokedError,
    StandbyError,
    TokenExpiredError,
    UnreachableError,
)
from penstock.base.log import logger
from penstock.capture.live.reading import Models
from penstock.client.assured import AssuredSessions, HeldAssured, Routers
from penstock.client.brokered_publisher import BrokeredPublisher
from penstock.client.config import ClientConfig
from penstock.client.context import ClientContext
from penstock.client.contributor import Contributor
from penstock.client.feed_subscription import LOOP_BACK, Surroundings, Transport
from penstock.client.holding import Holding
from penstock.client.inbox import Inbox
from penstock.client.nodes import NodeConsumers, NodeRecords, NodeSubscription, kinds_of
from penstock.client.service import Protection
from penstock.client.streams import HeldPublisher, HeldStream, Places, Streams
from penstock.client.subscription import Subscription
from penstock.middleware import PublisherConfig
from penstock.middleware.live import MulticastPublisher
from penstock.net.guard import Guard
from penstock.net.live.loop_thread import LoopThread
from penstock.net.udp import Channel
from penstock.security.core.authentication import PUBLISHERS
from penstock.security.core.brokering import (
    Authentication,
    AuthenticationChanged,
    Brokered,
    BrokeredStream,
    KeysChanged,
    Revoked,
    StreamMoved,
    SubscriptionChanged,
)
from penstock.security.core.direct_address import NUMBERS, direct_address
from penstock.security.live.authentication_state import AuthenticationState
from penstock.security.live.client import AdminClient
from penstock.security.live.key_lease import ReceivingLease
from penstock.shm import RingWriter
from penstock.topics import GroupMap, Interest
from penstock.tree.client.subscription import Since
from penstock.wire import AuthenticationScope, Authenticator

NOT_NOW = (UnreachableError, ConnectionLostError, StandbyError, RateLimitedError, LocalProtocolError)
"""Errors of an unavailable or overloaded administration server; existing grants remain valid."""
RENEW_AFTER = 0.5
"""Share of the grants' lifetime after which they are renewed."""

Held: TypeAlias = Subscription | Holding

log = logger("client")


class Client:
    """Subscriptions and contributions of one connection. A thread renews grants and receives changes.

    While the administration server is unavailable, everything continues until the grants expire.
    """

    def __init__(
        self,
        admin: AdminClient,
        protection: Protection | None = None,
        *,
        interface: str | None = None,
        config: ClientConfig | None = None,
    ) -> None:
        self.admin = admin
        self.config = config or ClientConfig()
        self.models = Models(lambda model_id, version: admin.model(model_id))
        self._protection = protection or Protection()
        self._interface = interface
        self._node = admin.credentials.client
        self.address = direct_address(admin.credentials.client, SystemRandomness().below(NUMBERS))
        """The address of this client for MulticastPublisher.send_to()."""
        self._lock = threading.Lock()
        self._service: LoopThread | None = None
        self._subscriptions: dict[str, Held] = {}
        self._contributors: dict[str, Contributor] = {}
        self._inboxes: list[Inbox] = []
        self._publishers: list[MulticastPublisher] = []
        self._authentication = AuthenticationState(None, self._use_publishers_scope)  # for PUBLISHERS
        self._lease = ReceivingLease(client=admin.credentials.client)
        self._renew_at: dict[str, float] = {}  # on the monotonic clock
        self._events_after: int | None = None
        self._unheard_since: float | None = None  # start of the administration server's silence
        self._wake = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        guard = Guard(self._protection.secret, self._protection.tls)
        context = ClientContext(admin, guard, self.config, self.models, self, self._adopt)
        self._nodes = NodeConsumers(context)
        self._streams = Streams(context)
        self._assured = AssuredSessions(context)

    @overload
    def subscribe(
        self, *topics: str, where: str | None = None, image: bool = False, transport: Transport = "auto"
    ) -> Subscription: ...

    @overload
    def subscribe(
        self, *topics: str, node: str, where: str | None = None, offload: bool | None = None, convert: bool = False
    ) -> NodeSubscription: ...

    @overload
    def subscribe(
        self, *topics: str, agent: Places, where: str | None = None, since: Since = "live", **options: Any
    ) -> HeldStream: ...

    def subscribe(
        self,
        *topics: str,
        where: str | None = None,
        image: bool = False,
        transport: Transport = "auto",
        node: str | None = None,
        offload: bool | None = None,
        convert: bool = False,
        agent: Places | None = None,
        since: Since = "live",
        **options: Any,
    ) -> Subscription | NodeSubscription | HeldStream:
        """Subscribe to topics (docs/reference/topics.md), optionally with a filter (docs/reference/filters.md).

        With `image`, the subscription begins with the current state of its topics, followed by exactly the later
        updates.

        With `node`, "host:port" or "auto", messages come through a distribution node (docs/how-to/records.md), always
        starting with the current state; `offload` uses a separate process, `convert` makes prices floats.

        With `agent`, "host:port" or several, messages come through a distribution tree (docs/how-to/agents.md),
        starting at `since`: a sequence number, a time, an age, "oldest" or "live".
        """
        if agent is not None:
            return self._streams.subscribe(agent, topics, where=where, since=since, **options)
        if options:
            raise LocalProtocolError(f"{', '.join(options)}: only for a distribution tree", hint="set agent")
        if node is not None:
            if image or transport != "auto":
                raise LocalProtocolError(
                    "image and transport cannot be used with node", hint="a node always starts with the current state"
                )
            return self._nodes.messages(
                topics, "critical", node=node, offload=offload, convert=convert, where=where or ""
            )
        if offload is not None or convert:
            raise LocalProtocolError("offload and convert need a node", hint='set node="auto", or node="host:port"')
        return self._subscribe_to_streams(topics, where, image=image, transport=transport)

    def _subscribe_to_streams(
        self, topics: tuple[str, ...], where: str | None, *, image: bool, transport: Transport
    ) -> Subscription:
        """Subscribe to the feeds directly, by multicast, a filter module or TCP."""
        if not topics:
            raise LocalProtocolError("a subscription needs topics", hint="'>' matches all topics")
        for topic in topics:
            Interest.parse(topic)
        asked_ns = self._lease.now_ns()
        brokered = self.admin.subscribe(topics)
        self._begin_lease(asked_ns, brokered.key_lease_s)
        self._learn_models(brokered.streams)
        counters = Counters("client", subscription=brokered.subscription_id[:8])
        holder: list[Subscription] = []

        def refused(error: RefusedError) -> None:
            for each in holder:
                each.refused(error)

        around = Surroundings(
            self._service_thread,
            self._protection,
            self.config,
            counters,
            self.models,
            self._node,
            self._interface,
            transport,
            where,
            refused,
            self._lease.flag,
        )
        try:
            if where is not None:
                self.models.check_condition(where, kinds_of(brokered.streams))
            subscription = Subscription(around, brokered, topics, self, image=image)
        except BaseException:
            self.admin.cancel(brokered.subscription_id)
            raise
        holder.append(subscription)
        self._adopt(brokered, subscription)
        return subscription

    def metered(
        self,
        *topics: str,
        per_second: float,
        where: str | None = None,
        node: str | None = None,
        offload: bool | None = None,
        convert: bool = False,
    ) -> NodeSubscription:
        """Receive messages from a distribution node, at most `per_second` of each topic. Earlier updates of a topic are
        merged as its model defines; the newest update is always delivered.
        """
        return self._nodes.messages(
            topics, "metered", node=node, offload=offload, convert=convert, where=where or "", per_second=per_second
        )

    def records(
        self, *topics: str, node: str | None = None, offload: bool | None = None, convert: bool = False
    ) -> NodeRecords:
        """Return the newest records of these topics, in shared memory of a distribution node of this host."""
        return self._nodes.records(topics, node=node, offload=offload, convert=convert)

    def stream_publisher(self, *topics: str, agent: Places, name: str = "", **options: Any) -> HeldPublisher:
        """Open a publisher on the streams of a tree; `agent` names its root and the standby. Requires grants to send on
        `topics` (default: all granted topics).

        With a fixed `name`, a restarted publisher continues its numbering. `options`: tree, on, on_infostream,
        unconfirmed_max (docs/how-to/agents.md).
        """
        return self._streams.publisher(agent, topics or (">",), name=name, **options)

    def assured(
        self, routers: Routers, *, receive: Sequence[str] = (), send: Sequence[str] = (">",), **options: Any
    ) -> HeldAssured:
        """Open publishers, endpoints and transactions at a pair of message routers (docs/how-to/assured.md).

        Requires grants to send on the topics of `send` and to receive those of `receive`; topics without a grant are
        left out. `options`: role, silence_ms, backoff_ms and others of SessionConfig.
        """
        return self._assured.open(routers, tuple(receive), tuple(send), **options)

    def contribute(self, stream: str, *topics: str) -> Contributor:
        """Open a contributed source stream of a feed, to publish messages on these topics; requires grants to send."""
        if not topics:
            raise LocalProtocolError("a contribution needs topics", hint="pass the topics to send on")
        brokered = self.admin.subscribe((), send=topics)
        contributor = Contributor(
            self._service_thread(), self._protection, self.config, brokered, stream, self._node, self.admin.cancel
        )
        with self._lock:
            self._contributors[contributor.id] = contributor
        self._watch(brokered)
        return contributor

    @overload
    def publisher(self, *topics: str, config: PublisherConfig | None = None) -> BrokeredPublisher: ...

    @overload
    def publisher(
        self,
        channel: Channel,
        /,
        *,
        name: str,
        groups: GroupMap | None = None,
        config: PublisherConfig | None = None,
        ring: RingWriter | None = None,
    ) -> MulticastPublisher: ...

    def publisher(
        self,
        *topics: str | Channel,
        name: str = "",
        groups: GroupMap | None = None,
        config: PublisherConfig | None = None,
        ring: RingWriter | None = None,
    ) -> BrokeredPublisher | MulticastPublisher:
        """Open a publisher on these topics; requires grants to send. Messages go by multicast straight to the
        subscriptions with grants to receive them. Returns when the present subscribers have joined.

        With a channel in place of topics, and a name, return a publisher on this channel, whose id is derived from
        this client and the name; requires the role `publisher`, and the caller closes the publisher. Subscriptions do
        not see its messages. Its authentication keys follow the server while the client is open.
        """
        channel = topics[0] if topics else None
        if isinstance(channel, Channel):
            if len(topics) > 1 or not name:
                raise LocalProtocolError("a publisher on a channel needs a name", hint='pass name="…", and no topics')
            return self._named_publisher(channel, name, groups, config, ring)
        if name or groups is not None or ring is not None:
            raise LocalProtocolError("name, groups and ring need a channel", hint="pass a Channel in place of topics")
        return self._brokered_publisher(tuple(str(each) for each in topics), config)

    def _brokered_publisher(self, topics: tuple[str, ...], config: PublisherConfig | None) -> BrokeredPublisher:
        if not topics:
            raise LocalProtocolError("a publisher needs topics", hint="pass the topics to send on")
        asked_ns = self._lease.now_ns()
        brokered = self.admin.subscribe((), send=topics, publish=True)
        self._begin_lease(asked_ns, brokered.key_lease_s)
        try:
            made = BrokeredPublisher(
                brokered,
                self,
                topics,
                interface=self._interface or LOOP_BACK,
                config=config,
                lease=self._lease.flag,
            )
        except BaseException:
            self.admin.cancel(brokered.subscription_id)
            raise
        self._adopt(brokered, made)
        return made

    def _named_publisher(
        self,
        channel: Channel,
        name: str,
        groups: GroupMap | None,
        config: PublisherConfig | None,
        ring: RingWriter | None,
    ) -> MulticastPublisher:
        claimed = self.admin.claim_publisher(name)
        self._learn_publishers_scope()
        made = MulticastPublisher(
            channel,
            publisher_id=claimed.publisher_id,
            epoch=claimed.epoch,
            groups=groups,
            config=config,
            ring=ring,
            keys=(),
            lease=self._lease.flag,
        )
        with self._lock:
            self._publishers = [each for each in self._publishers if not each.is_closed] + [made]
        self._authentication.repeat()
        return made

    def inbox(self, *channels: Channel) -> Inbox:
        """Receive messages addressed to this client alone (`address`) on these channels. A client has one inbox at a
        time. A filter that requires tokens gets the token of a subscription, so the client must have one.
        """
        with self._lock:
            token = next((each.token for each in self._subscriptions.values()), "")
        self._learn_publishers_scope()
        made = Inbox(
            channels,
            self.address,
            self.config,
            self._protection,
            self.models,
            node=self._node,
            token=token,
            authenticator=Authenticator(self._authentication.scopes, lease=self._lease.flag),
        )
        with self._lock:
            self._inboxes = [each for each in self._inboxes if not each.is_closed] + [made]
        self._authentication.repeat()
        return made

    def close(self) -> None:
        """Close all subscriptions and the connection."""
        self._is_closed = True
        self._wake.set()
        with self._lock:
            ended: list[Held | Contributor] = [
                *self._subscriptions.values(),
                *self._contributors.values(),
            ]
        for each in ended:
            each.close()
        self.admin.close()
        if self._thread is not None:
            self._thread.join()
        if self._service is not None:
            self._service.close()
        self._lease.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # For subscriptions

    def modify(self, subscription: Subscription, topics: Sequence[str]) -> None:
        for topic in topics:
            Interest.parse(topic)
        brokered = self.admin.modify(subscription.id, topics)
        subscription.want(topics, brokered)
        self._schedule(brokered)

    def cancel(self, subscription: Held) -> None:
        with self._lock:
            self._subscriptions.pop(subscription.id, None)
            self._renew_at.pop(subscription.id, None)
        try:
            self.admin.cancel(subscription.id)
        except (UnreachableError, ConnectionLostError, NotFoundError, RevokedError) as error:
            log.info("not_cancelled", error=str(error))  # the subscription ends at the server when its grants expire

    def expire(self, subscription: Held) -> None:
        ago = "" if self._unheard_since is None else f" {time.monotonic() - self._unheard_since:.0f} s ago"
        subscription.fail(
            TokenExpiredError(
                "the grants of the subscription expired and were not renewed",
                hint=f"last contact with the administration server{ago}; subscribe again when the server is reachable",
            )
        )

    def hurry(self) -> None:
        with self._lock:
            self._renew_at = dict.fromkeys(self._renew_at, 0.0)
        self._wake.set()

    def _service_thread(self) -> LoopThread:
        with self._lock:
            if self._service is None:
                self._service = LoopThread("penstock-client-streams")
            return self._service

    def _learn_models(self, streams: Sequence[BrokeredStream]) -> None:
        """Load the models while the server is reachable, because readers must not wait for the server later."""
        for stream in streams:
            for each in stream.models:
                self.models.confirm(each.id, each.version)

    # The thread: renewals and events

    def _adopt(self, brokered: Brokered, subscription: Held) -> None:
        with self._lock:  # before the thread hears its events
            self._subscriptions[subscription.id] = subscription
        self._watch(brokered)

    def _watch(self, brokered: Brokered) -> None:
        self._schedule(brokered)
        self._hear_after(brokered.events_after)

    def _hear_after(self, events_after: int) -> None:
        """Receive the events after this number, in the client's thread."""
        with self._lock:
            if self._events_after is None or events_after < self._events_after:
                self._events_after = events_after
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-client", daemon=True)
                self._thread.start()

    def _learn_publishers_scope(self) -> None:
        """Fetch the authentication keys of publishers without a feed; events keep them up to date."""
        asked_ns = self._lease.now_ns()
        answer = self.admin.authentication()
        self._begin_lease(asked_ns, answer.key_lease_s)
        self._hear_after(answer.events_after)
        self._authentication.note(next(each for each in answer.scopes if each.scope == PUBLISHERS))

    def _begin_lease(self, asked_ns: int, lease_s: float) -> None:
        self._lease.begin(asked_ns, lease_s)
        self._lease.start()

    def _authenticate(self, told: Authentication) -> None:
        with self._lock:
            subscriptions = list(self._subscriptions.values())
        for subscription in subscriptions:
            subscription.authenticated(told)
        if told.scope == PUBLISHERS:
            self._authentication.note(told)

    def _use_publishers_scope(self, scopes: list[AuthenticationScope]) -> None:
        with self._lock:
            inboxes, publishers = self._inboxes, self._publishers
        for inbox in inboxes:
            if inbox.authenticator is not None:
                inbox.authenticator.use(scopes)
        for scope in scopes:
            for publisher in publishers:
                publisher.authenticate(scope.keys, scope.active_key_id)

    def _schedule(self, brokered: Brokered) -> None:
        left_s = (brokered.expires_ns - time.time_ns()) / NS_PER_SECOND
        with self._lock:
            self._renew_at[brokered.subscription_id] = time.monotonic() + max(left_s, 0.0) * RENEW_AFTER

    def _run(self) -> None:
        backoff = self.config.new_backoff()
        while not self._is_closed:
            lost: PenstockError | None = None
            self._wake.clear()
            try:
                self._renew_due()
                self._hear()
                self._unheard_since = None
                backoff.succeeded()
                continue
            except NOT_NOW as error:
                lost = error
                if self._unheard_since is None and not self._is_closed:
                    self._unheard_since = time.monotonic()
                    log.warning("administration_server_lost", error=str(error))
            except PenstockError as error:
                log.warning("administration_server_refuses", error=str(error))
            self._wake.wait(backoff.next_seconds(lost))

    def _renew_due(self) -> None:
        now = time.monotonic()
        with self._lock:
            due = [key for key, at in self._renew_at.items() if at <= now]
        for key in due:
            holder = self._holder(key)
            if holder is None or holder.is_over:
                with self._lock:
                    self._renew_at.pop(key, None)
                continue
            try:
                brokered = self._renewed(holder)
            except NOT_NOW:
                raise
            except PenstockError as error:
                holder.fail(error)
                continue
            holder.renewed(brokered)
            for inbox in [each for each in self._inboxes if not each.is_closed]:
                inbox.renew(brokered.token)
            self._schedule(brokered)

    def _renewed(self, holder: Held | Contributor) -> Brokered:
        try:
            return self.admin.renew(holder.id)
        except NotFoundError:  # the server was reset, or considered the client lost
            if isinstance(holder, Contributor) or getattr(holder, "is_sending", False):
                publish = isinstance(holder, BrokeredPublisher)
                return self.admin.subscribe((), send=holder.topics, publish=publish, subscription_id=holder.id)
            send = holder.send if isinstance(holder, HeldAssured) else ()
            return self.admin.subscribe(holder.topics, send=send, subscription_id=holder.id)

    def _hear(self) -> None:
        """Wait for events, at most until the next renewal."""
        with self._lock:
            after = self._events_after
            soonest = min(self._renew_at.values(), default=float("inf"))
        wait_s = min(self._lease.events_wait_s, max(soonest - time.monotonic(), 0.0))
        asked_ns = self._lease.now_ns()
        events = self.admin.events(after or 0, wait_s=wait_s)
        for event in events.events:
            self._take(event.body)
        if events.is_complete:
            self._lease.renew(asked_ns, events.key_lease_s)
        else:
            self.hurry()
            if self._inboxes or self._publishers:
                for told in self.admin.authentication().scopes:
                    self._authenticate(told)
        with self._lock:
            if self._events_after == after:  # otherwise a new subscription has requested earlier events meanwhile
                self._events_after = events.next_after

    def _take(self, body: object) -> None:
        match body:
            case Revoked():
                if (holder := self._holder(body.subscription_id)) is not None:
                    log.warning("revoked", subscription=body.subscription_id, reason=body.reason)
                    holder.fail(RevokedError(f"the subscription was revoked: {body.reason}"))
            case KeysChanged():
                for subscription in list(self._subscriptions.values()):
                    subscription.keyed(body.feed, body.keys)
            case AuthenticationChanged():
                self._authenticate(body.authentication)
            case SubscriptionChanged():
                with self._lock:
                    if body.subscription_id in self._renew_at:
                        self._renew_at[body.subscription_id] = 0.0
            case StreamMoved():
                if (holder := self._holder(body.subscription_id)) is not None:
                    self._learn_models(body.streams)
                    holder.moved(body.streams)
            case _:
                log.debug("event_ignored", kind=type(body).__name__)

    def _holder(self, subscription_id: str) -> Held | Contributor | None:
        with self._lock:
            return self._subscriptions.get(subscription_id) or self._contributors.get(subscription_id)
