"""StreamAdministration: every decision of the administration server, without I/O.

Each decision is a method. It takes the caller, the request and the time (nanoseconds since 1970), and returns the
answer, or raises a refusal before any change. Changes that must be durable are collected in `state.take_changes()` and
`take_audits()`; the driver makes them durable before it sends the answer. Call `tick()` several times a second.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.admin.config import AdminLimits, PublishingConfig
from penstock.admin.core.authentication import StreamAuthentication
from penstock.admin.core.client_grants import ClientGrants
from penstock.admin.core.feeds import Feeds, adapter_name, topics_of
from penstock.admin.core.publisher_streams import PublisherStreams, scope_of
from penstock.admin.core.publishers import Publishers
from penstock.admin.core.readers import EventReaders
from penstock.admin.core.records import Adapter, Denial, Denials
from penstock.admin.core.state import Audit, State, Stored
from penstock.admin.core.subscriptions import Subscriptions
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import (
    CredentialsExpiredError,
    ForbiddenError,
    LimitError,
    NotEntitledError,
    NotFoundError,
    PenstockError,
    RequestError,
    TokenError,
)
from penstock.base.ids import parse_group
from penstock.security import Policy, PrivateKey, Token, TokenSigner, TokenVerifier
from penstock.security.core import brokering as b
from penstock.security.core import operating as o
from penstock.security.core.authentication import PUBLISHERS
from penstock.security.core.patterns import parse_pattern
from penstock.security.core.policy import PolicyClient, Role

EVENT_NS_MAX = 24 * 3_600 * NS_PER_SECOND
"""Time after which an event that no client fetched is dropped."""
DENIALS_MAX = 256
DETAIL_SIZE_MAX = 1_024
BINDING_SIZE = 16
KEY_STEP = 1_024
"""Added to the key numbers by a standby that takes over. Larger than the number of keys that a server creates before
its standby receives them."""
SERVER = "(server)"


class Caller(NamedTuple):
    """The client that sent a request, and its address."""

    client: str
    roles: frozenset[Role]
    address: str


ITSELF = Caller(SERVER, frozenset(), "")


class StreamAdministration:
    def __init__(
        self,
        policy: Policy,
        key: PrivateKey,
        limits: AdminLimits,
        random: Callable[[int], bytes],
        records: Iterable[Stored],
        now_ns: int,
        publishing: PublishingConfig | None = None,
    ) -> None:
        self.state = State(records, events_kept=limits.events_kept)
        self.rights = ClientGrants(policy, self.state)
        self._limits = limits
        self._key = key
        self._signer = TokenSigner(key)
        self._sessions = TokenVerifier([key.public], purpose="session")
        self.readers = EventReaders(limits.adapter_lost_s, now_ns)
        self.feeds = Feeds(self.state, limits, random, self.rights.grants, now_ns, self.readers)
        self.publishers = Publishers(self.state, limits, random)
        self.publisher_streams = PublisherStreams(self.state, publishing or PublishingConfig(), self.publishers.new_id)
        self.authentication = StreamAuthentication(
            self.state, limits, random, self.feeds, self.publisher_streams, self.rights, self.readers, key.public.id
        )
        self.feeds.authenticate = self.publisher_streams.authenticate = self.authentication.hand_out
        self.subscriptions = Subscriptions(
            self.state, self.feeds, self.publisher_streams, self.rights, limits, self._signer, self.authentication.end
        )
        self._audits: list[Audit] = []
        self._ticked_ns = now_ns

    @property
    def policy(self) -> Policy:
        return self.rights.policy

    def audit(
        self, caller: Caller, action: str, now_ns: int, *, error: PenstockError | None = None, detail: str = ""
    ) -> None:
        """A line of the audit log: the action, or the refusal and its reason."""
        text = detail if error is None else f"{detail}{error}"
        code = "" if error is None else error.code
        outcome = "done" if error is None else "refused"
        line = Audit(now_ns, caller.client, caller.address, action, outcome, code, text[:DETAIL_SIZE_MAX])  # type: ignore[arg-type]
        self._audits.append(line)

    def take_audits(self) -> list[Audit]:
        audits, self._audits = self._audits, []
        return audits

    # Sessions

    def open_session(self, client: PolicyClient, address: str, now_ns: int, server_proof: bytes = b"") -> b.Session:
        """Open a session for an authenticated client; `server_proof` authenticates the server to the client."""
        expires_ns = self.rights.expiry_ns(client.name, self._limits.session_s, now_ns)
        bound = self._binding(client)
        token = Token("session", client.name, bound, (), now_ns, expires_ns, self.state.meta.generation)
        self.audit(Caller(client.name, client.roles, address), "login", now_ns)
        text = self._signer.sign(token)
        return b.Session(
            client=client.name,
            token=text,
            expires_ns=expires_ns,
            roles=sorted(client.roles),
            server_proof=server_proof,
        )

    def caller(self, token: str, address: str, now_ns: int) -> Caller:
        """The client of a session token. A client that is no longer in the policy has no roles, and may only read
        the reason."""
        session = self._sessions.verify(token, now_ns)
        client = self.policy.clients.get(session.subject)
        if client is None:
            return Caller(session.subject, frozenset(), address)
        if client.expires_ns is not None and now_ns >= client.expires_ns:
            raise CredentialsExpiredError("these credentials have expired", hint="ask the administrator for new ones")
        if not hmac.compare_digest(session.subscription_id.encode(), self._binding(client).encode()):
            raise TokenError(
                "the session was opened with other credentials", hint="log in again with the current credentials"
            )
        return Caller(session.subject, client.roles, address)

    def _binding(self, client: PolicyClient) -> str:
        """Ties a session to the secret or key that opened it, without revealing anything about that secret."""
        mark = self._key.sign(b"penstock session\0" + client.verifier.text.encode())
        return hashlib.sha256(mark).hexdigest()[:BINDING_SIZE]

    # Clients

    def subscribe(self, caller: Caller, request: b.SubscribeRequest, now_ns: int) -> b.Brokered:
        answer = self.subscriptions.subscribe(caller.client, request, now_ns)
        self._audit_brokered(caller, "publish" if request.publish else "subscribe", answer, now_ns)
        if request.publish:
            publisher = self.state.subscriptions[request.subscription_id]
            self.authentication.tell(scope_of(publisher), now_ns)  # filter modules, and receivers
        return answer

    def unaware(self, subscription_id: str, number: int, now_ns: int) -> list[str]:
        """Holders of the keys of a publisher's stream that are present and have not applied event `number`."""
        publisher = self.state.subscriptions.get(subscription_id)
        return [] if publisher is None else self.authentication.unaware(scope_of(publisher), number, now_ns)

    def modify(self, caller: Caller, subscription_id: str, request: b.ModifyRequest, now_ns: int) -> b.Brokered:
        answer = self.subscriptions.modify(caller.client, subscription_id, request, now_ns)
        self._audit_brokered(caller, "modify", answer, now_ns)
        return answer

    def renew(self, caller: Caller, subscription_id: str, now_ns: int) -> b.Brokered:
        return self.subscriptions.renew(caller.client, subscription_id, now_ns)

    def cancel(self, caller: Caller, subscription_id: str, now_ns: int) -> None:
        self.subscriptions.cancel(caller.client, subscription_id, now_ns)
        self.audit(caller, "cancel", now_ns, detail=subscription_id)

    def events(self, caller: Caller, after: int) -> b.Events:
        found, is_complete = self.state.events(caller.client, after)
        return b.Events(
            events=found,
            next_after=self.state.meta.event_number,
            is_complete=is_complete,
            key_lease_s=self._limits.key_lease_s,
        )

    def claim_publisher(self, caller: Caller, request: b.PublisherRequest, now_ns: int) -> b.PublisherClaimed:
        answer = self.publishers.claim(caller.client, request.name)
        self.audit(caller, "publisher", now_ns, detail=f"{answer.name}: {answer.publisher_id}, epoch {answer.epoch}")
        self.authentication.tell(PUBLISHERS, now_ns)
        return answer

    def _audit_brokered(self, caller: Caller, action: str, answer: b.Brokered, now_ns: int) -> None:
        rights = ", ".join(f"{each.action} {each.pattern} {each.delay_s}" for each in answer.grants)
        self.audit(caller, action, now_ns, detail=f"{answer.subscription_id}: {rights}")

    # Adapters

    def register(self, caller: Caller, request: b.AdapterRegistration, now_ns: int) -> b.Registered:
        self._check_adapter(caller, request, now_ns)
        is_change = self.feeds.register(caller.client, request, now_ns)
        if is_change:
            self.state.advance_events()
            self.feeds.rotate_lost(now_ns)  # with more topics in the feed, fewer clients have the right to all of them
            self.authentication.rotate_lost(now_ns)
            self.subscriptions.tell_moved(self.subscriptions.concerned([request.feed]), now_ns)
            self.audit(caller, "register", now_ns, detail=adapter_name(request))
        is_multicast = request.transport == "multicast"
        told = self.authentication.hand_out(caller.client, request.feed, now_ns) if is_multicast else None
        if is_change:
            if self.publishers.owner(request.publisher_id) is not None:
                # receivers must first learn that its id has left that scope
                self.authentication.tell(PUBLISHERS, now_ns)
            self.authentication.tell_of_publishers(request.feed, now_ns)
        meta = self.state.meta
        key = self.feeds.active_key(request.feed)
        return b.Registered(
            generation=meta.generation,
            generation_since_ns=meta.generation_since_ns,
            token_keys=[self._signer.public.text],
            keys=self.feeds.hand_out(caller.client, request.feed) if request.sealed else [],
            active_key_id=key.key_id if key is not None and request.sealed else 0,
            key_lease_s=self._limits.key_lease_s,
            heartbeat_s=self._limits.heartbeat_s,
            events_after=meta.event_number,
            revoked=list(self.state.revoked.values()),
            subscriptions=self.subscriptions.of_feed(request.feed),
            authentication=told,
        )

    def heartbeat(self, caller: Caller, request: b.AdapterHeartbeat, now_ns: int) -> b.HeartbeatAnswer:
        adapter = self.state.adapters.get(f"{request.feed}/{request.adapter}")
        if adapter is None or adapter.client != caller.client:
            raise NotFoundError("this adapter is not registered", hint="register it")
        if self.feeds.heartbeat(request, now_ns):
            self.subscriptions.tell_moved(self.subscriptions.concerned([request.feed]), now_ns)
        key = self.feeds.active_key(request.feed)
        return b.HeartbeatAnswer(
            generation=self.state.meta.generation,
            active_key_id=key.key_id if key is not None else 0,
            key_lease_s=self._limits.key_lease_s,
            heartbeat_s=self._limits.heartbeat_s,
        )

    def _check_adapter(self, caller: Caller, request: b.AdapterRegistration, now_ns: int) -> None:
        if request.transport == "multicast":
            parse_group(request.group)
        if not request.topics:
            raise RequestError("publishes nothing", where="topics", hint="name the topics of the feed")
        name = adapter_name(request)
        held = self.state.adapters.get(name)
        if held is not None and held.client != caller.client:
            raise ForbiddenError(f"{name} was registered by {held.client}")
        owner = self.publishers.owner(request.publisher_id)
        if owner is not None and not owner.startswith(f"{caller.client}/"):
            raise ForbiddenError(f"publisher id {request.publisher_id} is that of {owner}", hint="choose another one")
        if held is not None and _is_back_in_epochs(request, held.registration):
            raise RequestError(
                f"epoch {request.epoch} is before the last one of {name}, {held.registration.epoch}",
                where="epoch",
                hint="keep the adapter's state directory: it has the epochs that were used",
            )
        others = [
            each
            for each in self.feeds.adapters(request.feed, live=False)
            if each.registration.adapter != request.adapter
        ]
        for other in others:
            _check_beside(request, other.registration)
        published = [text for each in (request, *(other.registration for other in others)) for text in topics_of(each)]
        for client in dict.fromkeys([caller.client, *(each.client for each in others)]):
            refused = self.rights.not_sent(client, published, now_ns)
            if refused:
                raise NotEntitledError(
                    f"no rule lets {client} send all of {refused[0]}",
                    hint="every adapter of a feed may send all that the feed publishes",
                )
        for taken in (each.registration for each in self.state.adapters.values()):
            if taken.publisher_id == request.publisher_id and adapter_name(taken) != name:
                raise ForbiddenError(
                    f"publisher id {request.publisher_id} is that of {adapter_name(taken)}", hint="choose another one"
                )
        if held is None and len(self.state.adapters) >= self._limits.adapters_max:
            raise LimitError(f"there are {len(self.state.adapters)} adapters already", hint="raise adapters_max")

    # Filters

    def verification(self) -> b.Verification:
        meta = self.state.meta
        return b.Verification(
            generation=meta.generation,
            generation_since_ns=meta.generation_since_ns,
            token_keys=[self._signer.public.text],
            revoked=list(self.state.revoked.values()),
            events_after=meta.event_number,
        )

    def authenticate(self, caller: Caller, now_ns: int) -> b.AuthenticationAnswer:
        """The scopes whose packets the caller may check: all for a filter, else those of clients' publishers. Keys are
        symmetric, so a client with nothing to publish or to receive live gets none."""
        scopes = self.authentication.scopes() if "filter" in caller.roles else [PUBLISHERS]
        if not self.authentication.may_hold(caller.client, PUBLISHERS, now_ns):
            raise NotEntitledError(
                f"{caller.client} may not check packets of publishers: no rule gives it anything without a delay",
                hint="a client with the role publisher, adapter or filter, or with a live grant, gets the keys",
            )
        told = [self.authentication.hand_out(caller.client, each, now_ns) for each in scopes]
        return b.AuthenticationAnswer(
            scopes=told, events_after=self.state.meta.event_number, key_lease_s=self._limits.key_lease_s
        )

    # Administrators

    def revoke(self, caller: Caller, request: o.RevokeRequest, now_ns: int) -> o.RevokeAnswer:
        if request.client not in self.policy.clients:
            raise NotFoundError(f"there is no client {request.client!r}")
        topics = tuple(parse_pattern(text).subject for text in request.topics)
        held = self.state.denials.get(request.client)
        denials = (*(held.denials if held is not None else ()), Denial(topics, request.reason, now_ns))
        if len(denials) > DENIALS_MAX:
            raise LimitError(f"{request.client} has {DENIALS_MAX} revocations", hint="change the policy instead")
        self.state.put("denials", request.client, Denials(request.client, denials))
        ended = self.recheck(request.reason, now_ns)
        self.audit(caller, "revoke", now_ns, detail=f"{request.client}: {', '.join(topics)}: {request.reason}")
        return o.RevokeAnswer(subscriptions=ended)

    def restore(self, caller: Caller, request: o.RestoreRequest, now_ns: int) -> None:
        if request.client not in self.state.denials:
            raise NotFoundError(f"no topics of client {request.client!r} are revoked")
        self.state.remove("denials", request.client)
        self.recheck("", now_ns)
        self.audit(caller, "restore", now_ns, detail=request.client)

    def set_policy(self, caller: Caller, policy: Policy, now_ns: int) -> o.PolicyAnswer:
        self.rights.policy = policy
        self.state.set_policy_text(policy.text)
        ended = self.recheck("the policy was changed", now_ns)
        self.audit(caller, "policy", now_ns, detail=f"sha256 {self.policy_sha256}, {len(ended)} subscriptions ended")
        return o.PolicyAnswer(clients=len(policy.clients), revoked=ended)

    def recheck(self, reason: str, now_ns: int) -> list[str]:
        """Apply the current rights to all clients; returns the ids of the ended subscriptions."""
        lost = [each for each in self.state.adapters.values() if not self._may_stay(each, now_ns)]
        moved = self.subscriptions.concerned({each.registration.feed for each in lost})
        for each in lost:
            name = adapter_name(each.registration)
            self.feeds.remove(name)
            self.audit(ITSELF, "remove", now_ns, detail=f"{name} of {each.client}: {reason}")
        if lost:
            self.state.advance_events()
        ended = self.subscriptions.recheck(reason, now_ns)
        self.authentication.rotate_lost(now_ns)
        for feed in sorted({each.registration.feed for each in lost}):
            self.authentication.tell_of_publishers(feed, now_ns)
        self.subscriptions.tell_moved(moved, now_ns)
        return ended

    def _may_stay(self, adapter: Adapter, now_ns: int) -> bool:
        entry = self.policy.clients.get(adapter.client)
        published = self.feeds.published(adapter.registration.feed)
        is_adapter = entry is not None and "adapter" in entry.roles
        return is_adapter and not self.rights.not_sent(adapter.client, published, now_ns)

    @property
    def policy_sha256(self) -> str:
        return hashlib.sha256(self.policy.text.encode()).hexdigest()

    def adapter_statuses(self) -> list[o.AdapterStatus]:
        return [
            o.AdapterStatus(
                feed=each.registration.feed,
                adapter=each.registration.adapter,
                role=self.feeds.role(each),
                term=each.term,
                is_live=self.feeds.is_live(each),
                sealed=each.registration.sealed,
            )
            for feed in self.feeds.names()
            for each in self.feeds.adapters(feed, live=False)
        ]

    # Time

    def promote(self, reason: str, now_ns: int) -> None:
        """Make this server the primary."""
        meta = self.state.meta
        self.state.set_meta(generation=meta.generation + 1, generation_since_ns=now_ns)
        self.state.begin_events()
        self.publishers.begin()
        # the previous server may have created keys that this one did not receive
        self.state.set_meta(
            key_number=meta.key_number + KEY_STEP, authentication_key_number=meta.authentication_key_number + KEY_STEP
        )
        event = b.GenerationChanged(generation=self.state.meta.generation, since_ns=now_ns)
        for client in sorted({*(each.client for each in self.state.adapters.values()), *self.policy.filters()}):
            self.state.notify(client, event, now_ns)
        self.audit(ITSELF, "promote", now_ns, detail=f"generation {self.state.meta.generation}: {reason}")
        self.begin(now_ns)

    def begin(self, now_ns: int) -> None:
        """Check all rights again after a time without checks: credentials may have expired."""
        self.recheck("the credentials have expired", now_ns)

    def tick(self, now_ns: int) -> None:
        """Do everything that is due: drop silent adapters, create new keys, end subscriptions that were not renewed."""
        self.subscriptions.tell_moved(self.subscriptions.concerned(self.feeds.forget_lost(now_ns)), now_ns)
        self.readers.forget_lost(now_ns)
        self.feeds.adjust_times(now_ns)
        self.feeds.rotate_aged(now_ns)
        self.advance_keys(now_ns)
        for feed in self.authentication.rotate_silent(now_ns):
            self.audit(ITSELF, "key", now_ns, detail=f"{feed} gets another authentication key: an adapter is silent")
        for key in self.authentication.tick(now_ns):
            self.audit(ITSELF, "key", now_ns, detail=f"{key.feed} is authenticated with key {key.key_id}")
        for name in self.subscriptions.expire(now_ns):
            self.audit(ITSELF, "expire", now_ns, detail=name)
        expiries_ns = [each.expires_ns for each in self.policy.clients.values() if each.expires_ns is not None]
        if any(self._ticked_ns < each <= now_ns for each in expiries_ns):
            self.recheck("the credentials have expired", now_ns)
        self.state.forget_events(now_ns - EVENT_NS_MAX)
        self._ticked_ns = now_ns

    def advance_keys(self, now_ns: int) -> None:
        """Activate the stream keys that all holders have confirmed, and begin the subscriptions that waited for these
        keys. Call this soon after a heartbeat or a request for events.
        """
        for key in self.feeds.activate_due(now_ns):
            self.audit(ITSELF, "key", now_ns, detail=f"{key.feed} is sealed with key {key.key_id}")
        for feed, clients in self.feeds.admit_newcomers(now_ns):
            self.state.advance_events()
            concerned = self.subscriptions.concerned([feed])
            begun = [each for each in concerned if self.state.subscriptions[each].client in clients]
            self.subscriptions.tell_moved(begun, now_ns)


def _is_back_in_epochs(request: b.AdapterRegistration, before: b.AdapterRegistration) -> bool:
    """True if the request would give a publisher an epoch that receivers treat as stale."""
    return request.publisher_id == before.publisher_id and request.epoch < before.epoch


def _check_beside(request: b.AdapterRegistration, other: b.AdapterRegistration) -> None:
    """Raise if the adapter cannot belong to the same feed as another adapter."""
    if other.index == request.index:
        raise ForbiddenError(
            f"index {request.index} is that of {adapter_name(other)}",
            hint="give every adapter of a feed a different index",
        )
    if other.sealed != request.sealed:
        raise ForbiddenError(
            f"{adapter_name(other)} is {'sealed' if other.sealed else 'not sealed'}",
            hint="seal all adapters of a feed, or none",
        )
