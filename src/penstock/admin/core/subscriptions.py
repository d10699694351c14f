"""Subscriptions: created, renewed, modified, cancelled by their clients, or revoked."""

from collections.abc import Callable, Iterable

import msgspec

from penstock.admin.config import AdminLimits
from penstock.admin.core.client_grants import ClientGrants, has_lost
from penstock.admin.core.feeds import Feeds
from penstock.admin.core.issued import still_issued, wanted
from penstock.admin.core.publisher_streams import PublisherStreams, scope_of
from penstock.admin.core.records import Issued, Subscription
from penstock.admin.core.state import State
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ForbiddenError, LimitError, NotFoundError, RequestError, RevokedError
from penstock.security import Token, TokenSigner
from penstock.security.core.brokering import (
    Brokered,
    BrokeredStream,
    ModifyRequest,
    Revoked,
    StreamMoved,
    SubscribeRequest,
    SubscriptionBrokered,
    SubscriptionCancelled,
    SubscriptionChanged,
)
from penstock.security.core.token import SKEW_S, Grant

TOPICS_SIZE_MAX = 65_536
"""Maximal size of all topics of a subscription, in bytes."""


class Subscriptions:
    """`end_scope` is called with the scope of a publisher's stream that ended (StreamAuthentication.end)."""

    def __init__(
        self,
        state: State,
        feeds: Feeds,
        publisher_streams: PublisherStreams,
        rights: ClientGrants,
        limits: AdminLimits,
        signer: TokenSigner,
        end_scope: Callable[[str, int], None],
    ) -> None:
        self._state = state
        self._feeds = feeds
        self._publisher_streams = publisher_streams
        self._rights = rights
        self._limits = limits
        self._signer = signer
        self._end_scope = end_scope

    def subscribe(self, client: str, request: SubscribeRequest, now_ns: int) -> Brokered:
        """Create a subscription, or replace the one with the same client and id."""
        held = self._state.subscriptions.get(request.subscription_id)
        if held is not None and held.client != client:
            raise ForbiddenError("another client has a subscription with that id", hint="choose ids at random")
        if request.subscription_id in self._state.revoked:
            reason = self._state.revoked[request.subscription_id].reason
            raise RevokedError(f"the subscription with that id was revoked: {reason}", hint="choose a new id")
        if held is None:
            self._check_room(client)
        size = sum(len(text.encode()) for text in (*request.topics, *request.send))
        if size > TOPICS_SIZE_MAX:
            raise LimitError(f"the topics have {size} bytes, above the limit of {TOPICS_SIZE_MAX}")
        topics, send = tuple(request.topics), tuple(request.send)
        grants = tuple(self._rights.decide(client, request.topics, request.send, now_ns))
        issued = self._issued(held, grants, now_ns) if held is not None else ()
        expires_ns = held.expires_ns if held is not None else 0
        stream = held.stream if held is not None else None
        if request.publish and stream is None:
            if not send:
                raise RequestError("a publisher needs topics", where="send", hint="name the topics to send")
            stream = self._publisher_streams.new_stream()
        made = Subscription(request.subscription_id, client, topics, send, grants, expires_ns, issued, stream)
        answer = self._answer(made, now_ns)
        self._tell_adapters(made.subscription_id, held, now_ns)
        if stream is not None and (held is None or held.stream is None or held.grants != grants):
            before = self._publisher_streams.receivers(held) if held is not None else []
            self.tell_moved(dict.fromkeys([*before, *self._publisher_streams.receivers(made)]), now_ns)
        return msgspec.structs.replace(answer, events_after=self._state.meta.event_number)

    def modify(self, client: str, subscription_id: str, request: ModifyRequest, now_ns: int) -> Brokered:
        self._own(client, subscription_id)
        whole = SubscribeRequest(subscription_id=subscription_id, topics=request.topics, send=request.send)
        return self.subscribe(client, whole, now_ns)

    def renew(self, client: str, subscription_id: str, now_ns: int) -> Brokered:
        """The subscription in its current state, with a new token."""
        held = self._own(client, subscription_id)
        self._rights.decide(client, list(held.topics), list(held.send), now_ns)
        return self._answer(held, now_ns)

    def cancel(self, client: str, subscription_id: str, now_ns: int) -> None:
        """Cancel a subscription. Its tokens are refused from now on, so that a client cannot keep one for a time
        after its right has ended. A publisher's stream lingers, because receivers have not read all of it."""
        held = self._own(client, subscription_id)
        if held.stream is None:
            self._end(held, now_ns)
        else:
            self._state.put("subscription", subscription_id, msgspec.structs.replace(held, expires_ns=now_ns))
        self._refuse_tokens(held, "its client cancelled it", now_ns)

    def recheck(self, reason: str, now_ns: int) -> list[str]:
        """Apply changed rights: end subscriptions with more than their clients' rights, notify clients that could
        subscribe to more now, and update the keys. Returns the ids of the ended subscriptions."""
        ended = []
        for held in list(self._state.subscriptions.values()):
            grants = self._rights.narrowed(held.client, list(held.topics), list(held.send), now_ns)
            if has_lost(held.grants, grants) or self._has_lost_issued(held, now_ns):
                self._revoke(held, reason, now_ns)
                ended.append(held.subscription_id)
            elif tuple(grants) != held.grants:
                wider = msgspec.structs.replace(held, grants=tuple(grants))
                self._state.put("subscription", held.subscription_id, wider)
                self.tell_moved(self._publisher_streams.receivers(wider), now_ns)
                self._state.notify(held.client, SubscriptionChanged(subscription_id=held.subscription_id), now_ns)
        self._feeds.rotate_lost(now_ns)
        return ended

    def concerned(self, feeds: Iterable[str]) -> list[str]:
        """The ids of the subscriptions with streams of these feeds."""
        wanted = set(feeds)
        if not wanted:
            return []
        held = self._state.subscriptions.items()
        return [name for name, each in held if not wanted.isdisjoint(self._feeds.concerned(each.grants))]

    def tell_moved(self, subscription_ids: Iterable[str], now_ns: int) -> None:
        """Notify the subscribers: adapters of their feeds, or publishers, were added or removed, or roles changed."""
        for name in subscription_ids:
            held = self._state.subscriptions.get(name)
            if held is not None:
                event = StreamMoved(subscription_id=name, streams=self._streams(held, now_ns))
                self._state.notify(held.client, event, now_ns)

    def expire(self, now_ns: int) -> list[str]:
        """End subscriptions that were not renewed, and drop revocations of expired tokens; returns the ids of the
        ended subscriptions."""
        due_ns = now_ns - self._limits.linger_s * NS_PER_SECOND
        due = [each for each in self._state.subscriptions.values() if each.expires_ns < due_ns]
        for held in due:
            self._end(held, now_ns)
        over_ns = now_ns - 2 * SKEW_S * NS_PER_SECOND
        for name in [name for name, each in self._state.revoked.items() if each.until_ns < over_ns]:
            self._state.remove("revoked", name)
        return [each.subscription_id for each in due]

    def of_feed(self, feed: str) -> list[SubscriptionBrokered]:
        held = self._state.subscriptions.values()
        return [_told(each) for each in held if feed in self._feeds.concerned(each.grants)]

    def _answer(self, subscription: Subscription, now_ns: int) -> Brokered:
        client, name = subscription.client, subscription.subscription_id
        expires_ns = self._rights.expiry_ns(client, self._limits.token_s, now_ns)
        kept = msgspec.structs.replace(subscription, expires_ns=max(expires_ns, subscription.expires_ns))
        generation, grants = self._state.meta.generation, subscription.grants
        token = self._signer.sign(Token("stream", client, name, grants, now_ns, expires_ns, generation))
        self._state.put("subscription", name, kept)
        return Brokered(
            subscription_id=name,
            token=token,
            expires_ns=expires_ns,
            grants=list(grants),
            streams=self._streams(subscription, now_ns),
            publication=self._publisher_streams.publication(subscription, now_ns),
            generation=generation,
            events_after=self._state.meta.event_number,
            key_lease_s=self._limits.key_lease_s,
        )

    def _streams(self, subscription: Subscription, now_ns: int) -> list[BrokeredStream]:
        return [*self._feeds.streams(subscription, now_ns), *self._publisher_streams.streams(subscription, now_ns)]

    def _tell_adapters(self, subscription_id: str, before: Subscription | None, now_ns: int) -> None:
        made = self._state.subscriptions[subscription_id]
        feeds = {*self._feeds.concerned(made.grants), *self._feeds.concerned(before.grants if before else ())}
        for client in sorted({client for feed in feeds for client in self._feeds.clients(feed)}):
            self._state.notify(client, _told(made), now_ns)

    def _check_room(self, client: str) -> None:
        held = self._state.subscriptions.values()
        if len(held) >= self._limits.subscriptions_max:
            raise LimitError(f"there are {len(held)} subscriptions already", hint="raise subscriptions_max")
        own = sum(each.client == client for each in held)
        if own >= self._limits.client_subscriptions_max:
            raise LimitError(f"{client} has {own} subscriptions already", hint="cancel some, or use more topics in one")
        over = sum(each.client == client for each in self._state.revoked.values())
        if over >= self._limits.client_ended_max:
            raise LimitError(f"{client} ended {over} subscriptions", hint="modify one, or wait until tokens expire")

    def _own(self, client: str, subscription_id: str) -> Subscription:
        revoked = self._state.revoked.get(subscription_id)
        if revoked is not None and revoked.client == client:
            raise RevokedError(f"the subscription was revoked: {revoked.reason}")
        held = self._state.subscriptions.get(subscription_id)
        if held is None or held.client != client:
            raise NotFoundError("there is no such subscription", hint="subscribe again")
        return held

    def _revoke(self, held: Subscription, reason: str, now_ns: int) -> None:
        self._state.remove("subscription", held.subscription_id)
        self._end_stream(held, now_ns)
        self._refuse_tokens(held, reason, now_ns, held.client)

    def _end_stream(self, held: Subscription, now_ns: int) -> None:
        """End the stream of a publisher, whose subscription was removed."""
        if held.stream is not None:
            self.tell_moved(self._publisher_streams.receivers(held), now_ns)
            self._end_scope(scope_of(held), now_ns)

    def _refuse_tokens(self, held: Subscription, reason: str, now_ns: int, *told: str) -> None:
        """Revoke the tokens of a subscription until they expire; notify all adapters and filters, and the clients
        given as well."""
        name = held.subscription_id
        event = Revoked(subscription_id=name, client=held.client, reason=reason, until_ns=held.expires_ns)
        self._state.put("revoked", name, event)
        adapters = (each.client for each in self._state.adapters.values())
        for client in sorted({*told, *adapters, *self._rights.policy.filters()}):
            self._state.notify(client, event, now_ns)

    def _issued(self, held: Subscription, grants: tuple[Grant, ...], now_ns: int) -> tuple[Issued, ...]:
        """The grants of tokens issued before a change that exceed the new grants."""
        before = (*held.issued, Issued(held.grants, held.expires_ns))
        return still_issued(before, grants, now_ns - SKEW_S * NS_PER_SECOND)

    def _has_lost_issued(self, held: Subscription, now_ns: int) -> bool:
        over_ns = now_ns - SKEW_S * NS_PER_SECOND
        return any(
            has_lost(each.grants, self._rights.narrowed(held.client, *wanted(each.grants), now_ns))
            for each in held.issued
            if each.until_ns > over_ns
        )

    def _end(self, held: Subscription, now_ns: int) -> None:
        self._state.remove("subscription", held.subscription_id)
        self._end_stream(held, now_ns)
        event = SubscriptionCancelled(subscription_id=held.subscription_id, client=held.client)
        feeds = self._feeds.concerned(held.grants)
        for client in sorted({client for feed in feeds for client in self._feeds.clients(feed)}):
            self._state.notify(client, event, now_ns)


def _told(subscription: Subscription) -> SubscriptionBrokered:
    """A subscription as announced to adapters."""
    return SubscriptionBrokered(
        subscription_id=subscription.subscription_id,
        client=subscription.client,
        topics=list(subscription.topics),
        send=list(subscription.send),
        delays_s=sorted({each.delay_s for each in subscription.grants if each.action == "receive"}),
        expires_ns=subscription.expires_ns,
    )
