"""A live adapter and the administration server: registration, tokens, revocations, and the keys of the feed."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from penstock.base.log import logger
from penstock.feed.adapter_config import AdapterConfig
from penstock.feed.live.outbound import Outbound
from penstock.feed.live.registration import Registration
from penstock.security import Grant, Sealer, StreamKey, Token
from penstock.security.core.brokering import (
    AdapterHeartbeat,
    AdapterRegistration,
    AuthenticationChanged,
    Events,
    HeartbeatAnswer,
    KeysChanged,
    ModelReference,
    Registered,
    Revoked,
    SourceStreamName,
    SubscriptionBrokered,
    SubscriptionCancelled,
)
from penstock.security.live.authentication_state import AuthenticationState
from penstock.security.live.client import AdminClient
from penstock.security.live.gate import TokenGate
from penstock.security.live.key_lease import ReceivingLease
from penstock.wire import AuthenticationScope

FOREVER_NS = 2**63 - 1

log = logger("feed.administration")


def open_to_all(text: str, now_ns: int) -> Token:
    """The token check of an open service: every client may receive and send everything."""
    return Token("stream", "anyone", "", (Grant(">", "receive"), Grant(">", "send")), now_ns, FOREVER_NS, 0)


class Administration:
    """Keeps one adapter registered, and applies the answers. `revoke` is called in the thread of the loop; `post`
    runs a call in the data thread. `answering` is the lease of the authentication keys of the adapter's repair
    requests."""

    def __init__(
        self,
        config: AdapterConfig,
        outbound: Outbound,
        models: Iterable[ModelReference],
        *,
        post: Callable[[Callable[[], None]], None],
        revoke: Callable[[Revoked], None],
        answering: ReceivingLease,
    ) -> None:
        self._config = config
        self._outbound = outbound
        self._models = list(models)
        self._post = post
        self._revoke = revoke
        self._answering = answering
        self._loop = asyncio.get_running_loop()
        self._keys: dict[int, StreamKey] = {}
        self._active_key_id = 0
        self._keys_lock = threading.Lock()
        self._service_port = 0
        self.gate = TokenGate(Path(config.state_directory) / "tokens.json")
        self._authentication = AuthenticationState(
            Path(config.state_directory) / "authentication.json", self._authenticate, answering
        )
        self.term = 0
        client = AdminClient.connect(config.admin.url, config.admin.credentials)
        self._registration = Registration(
            client,
            self._describe,
            self._heartbeat,
            self._on_registered,
            self._on_heartbeat,
            self._on_events,
            now_ns=outbound.lease.now_ns,
            events_wait_s=lambda: answering.events_wait_s,
        )

    def start(self, service_port: int) -> None:
        self._service_port = service_port
        self._registration.start()
        self._answering.start()

    async def stop(self) -> None:
        await asyncio.to_thread(self._registration.stop)
        await asyncio.to_thread(self._answering.stop)

    def announce_term(self, term: int) -> None:
        self.term = term
        self._registration.heartbeat_soon()

    @property
    def is_registered(self) -> bool:
        return self._registration.is_registered

    # In the registration's threads

    def _describe(self) -> AdapterRegistration:
        config, channel = self._config, self._config.publish.channel
        is_multicast = config.publish.transport == "multicast"
        return AdapterRegistration(
            feed=config.feed,
            adapter=config.name,
            index=config.index,
            publisher_id=self._outbound.publisher.publisher_id,
            transport="multicast" if is_multicast else "unicast",
            service_host=config.admin.service_host or config.service.host,
            service_port=self._service_port,
            topics=list(config.admin.topics),
            source_streams=[SourceStreamName(stream_id=each.id, name=each.name) for each in config.streams],
            contributions=list(config.admin.contributions),
            models=self._models,
            sealed=config.publish.sealed,
            group=channel.group if is_multicast else "",
            port=channel.port if is_multicast else 0,
            interface=channel.interface if is_multicast else "",
            term=self.term,
            epoch=self._outbound.publisher.epoch,
        )

    def _heartbeat(self) -> AdapterHeartbeat:
        self.gate.forget_expired(time.time_ns())
        return AdapterHeartbeat(
            feed=self._config.feed, adapter=self._config.name, term=self.term, key_ids=sorted(self._keys)[-64:]
        )

    def _on_registered(self, registered: Registered, asked_ns: int) -> None:
        self.gate.renew(registered)
        self._hold(registered.keys, registered.active_key_id)
        self._outbound.lease.renew(asked_ns, registered.key_lease_s)
        if registered.authentication is not None:
            self._authentication.renew([registered.authentication])
            self._authentication.note_answer(asked_ns, registered.key_lease_s)
        for each in registered.revoked:
            self._loop.call_soon_threadsafe(self._revoke, each)

    def _on_heartbeat(self, answer: HeartbeatAnswer, asked_ns: int) -> None:
        """The lease is for the server's active key. An answer that was overtaken by an event with a newer key does not
        renew the lease."""
        if answer.active_key_id > self._active_key_id:
            self._hold([], answer.active_key_id)
        if answer.active_key_id > self._active_key_id:
            log.warning("key_missed", key_id=answer.active_key_id)
            self._registration.register_again()
        elif answer.active_key_id == self._active_key_id:
            self._outbound.lease.renew(asked_ns, answer.key_lease_s)

    def _on_events(self, answer: Events, asked_ns: int) -> None:
        for event in (each.body for each in answer.events):
            self.gate.note(event)
            match event:
                case Revoked():
                    self._loop.call_soon_threadsafe(self._revoke, event)
                case KeysChanged():
                    self._hold(event.keys, event.active_key_id)
                    if event.keys:
                        self._registration.heartbeat_soon()  # the server waits for the confirmation of every adapter
                case AuthenticationChanged():
                    if event.authentication.scope == self._config.feed:
                        self._authentication.note(event.authentication)
                case SubscriptionBrokered():
                    log.info("brokered", client=event.client, subscription=event.subscription_id)
                case SubscriptionCancelled():
                    reason = "the subscription was cancelled"
                    cancelled = Revoked(
                        subscription_id=event.subscription_id, client=event.client, reason=reason, until_ns=0
                    )
                    self._loop.call_soon_threadsafe(self._revoke, cancelled)
                case _:
                    log.debug("event", kind=type(event).__name__)
        if answer.is_complete:
            self._authentication.note_answer(asked_ns, answer.key_lease_s)

    def _authenticate(self, scopes: list[AuthenticationScope]) -> None:
        """Use the feed's keys for packets and requests, starting with the next packet."""
        publisher = self._outbound.publisher
        scope = next((each for each in scopes if each.name == self._config.feed), None)
        if scope is not None and publisher.is_authenticated:
            self._post(lambda: publisher.authenticate(scope.keys, scope.active_key_id))

    def _hold(self, keys: Iterable[StreamKey], active_key_id: int) -> None:
        """Called in either thread of the registration."""
        if not self._config.publish.sealed:
            return
        publisher = self._outbound.publisher
        with self._keys_lock:
            self._keys.update({key.key_id: key for key in keys})
            active = self._keys.get(active_key_id)
            if active is not None and active_key_id != self._active_key_id:
                self._active_key_id = active_key_id
                sealer = Sealer(active, publisher.publisher_id, publisher.epoch)
                self._post(lambda: self._outbound.seal_with(sealer))
            for key_id in sorted(self._keys)[:-64]:
                del self._keys[key_id]
