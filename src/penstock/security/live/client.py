"""AdminClient: the requests of clients, adapters and operators to the administration server.

    client = AdminClient.connect("penstock://127.0.0.1:7400", Credentials.load("alice.toml"))
    brokered = client.subscribe(["md.us.eq.>"])
    ...
    for event in client.events(brokered.events_after).events: ...       # waits; call it in a thread of its own
    client.renew(brokered.subscription_id)                              # before brokered.expires_ns

The client logs in when necessary, and tries the next address if a server does not answer or is a standby. Calls may be
made in any thread. A refusal is raised as the error of its code (base.errors).
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.base.clock import NS_PER_SECOND, random_bytes
from penstock.base.errors import (
    ConnectionLostError,
    PenstockError,
    RemoteProtocolError,
    StandbyError,
    TokenError,
    UnreachableError,
)
from penstock.base.log import logger
from penstock.model import MessageModel
from penstock.security.core import brokering as b
from penstock.security.core import operating as o
from penstock.security.core.credentials import Credentials
from penstock.security.core.proof import NONCE_SIZE
from penstock.security.live.http import AdminAddress, HttpAnswer, HttpCaller, parse_addresses

A = TypeVar("A")

TIMEOUT_S = 5.0
EVENTS_WAIT_S = 20.0
RENEW_MARGIN_NS = 5 * NS_PER_SECOND

log = logger("admin_client")


class AdminClient:
    """`close()` ends waiting calls of other threads with ConnectionLostError."""

    def __init__(
        self, addresses: Sequence[AdminAddress], credentials: Credentials, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.credentials = credentials
        self._addresses = list(addresses)
        self._caller = HttpCaller(credentials.ca_file, timeout_s)
        self._lock = threading.Lock()
        self._session: b.Session | None = None
        self._current = 0
        self._has_warned = False
        self._models: dict[str, tuple[str, MessageModel]] = {}
        self.generation = 0
        """The highest generation seen. Answers from servers of lower generations are refused."""

    @staticmethod
    def connect(url: str, credentials: Credentials | str | Path, *, timeout_s: float = TIMEOUT_S) -> "AdminClient":
        """Make a client for "penstock://host:port,host:port" (loopback only) or "penstocks://…" (TLS). Sends nothing
        yet."""
        if not isinstance(credentials, Credentials):
            credentials = Credentials.load(credentials)
        return AdminClient(parse_addresses(url), credentials, timeout_s=timeout_s)

    @property
    def url(self) -> str:
        """The addresses of the server and its standbys."""
        return ",".join(map(str, self._addresses))

    @property
    def host(self) -> str:
        """The server that answered last."""
        return self._addresses[self._current].host

    def close(self) -> None:
        self._caller.close()

    def __enter__(self) -> "AdminClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Clients

    def login(self) -> b.Session:
        """Open a new session. Other calls log in automatically."""
        request = b.ChallengeRequest(client=self.credentials.client)

        def exchange(address: AdminAddress) -> b.Session:
            self._warn_if_unchecked(address)
            asked = self._answer_at(address, "POST", "/v1/challenge", request)
            challenge, nonce = asked.decode(b.Challenge), random_bytes(NONCE_SIZE)
            answer = self.credentials.answer(challenge, nonce, asked.binding)
            login = b.LoginRequest(
                client=self.credentials.client,
                challenge=challenge.challenge,
                nonce=nonce,
                binding=asked.binding,
                proof=answer.proof,
            )
            session = self._call_at(address, "POST", "/v1/login", login, b.Session)
            answer.check_server(session.server_proof)
            return session

        session = self._somewhere(exchange)
        with self._lock:
            self._session = session
        return session

    def subscribe(
        self,
        topics: Sequence[str] = (),
        *,
        send: Sequence[str] = (),
        publish: bool = False,
        subscription_id: str | None = None,
    ) -> b.Brokered:
        """Subscribe to streams. With the id of an earlier subscription of this client, replace that subscription. With
        `publish`, the subscription has a stream of its own for the topics of `send`; the answer comes when present
        receivers have joined the stream."""
        request = b.SubscribeRequest(
            subscription_id=subscription_id or random_bytes(16).hex(),
            topics=list(topics),
            send=list(send),
            publish=publish,
        )
        return self._call("POST", "/v1/subscriptions", request, b.Brokered)

    def modify(self, subscription_id: str, topics: Sequence[str] = (), *, send: Sequence[str] = ()) -> b.Brokered:
        request = b.ModifyRequest(topics=list(topics), send=list(send))
        return self._call("PUT", f"/v1/subscriptions/{subscription_id}", request, b.Brokered)

    def subscription(self, subscription_id: str) -> b.Brokered:
        """Return the current state of a subscription, with a fresh token."""
        return self._call("GET", f"/v1/subscriptions/{subscription_id}", None, b.Brokered)

    renew = subscription

    def cancel(self, subscription_id: str) -> None:
        self._call("DELETE", f"/v1/subscriptions/{subscription_id}", None, None)

    @contextlib.contextmanager
    def identified(self) -> Iterator[str]:
        """Provide a token that identifies this client, for a server that accepts orders from named clients. The
        subscription is cancelled at the end."""
        brokered = self.subscribe((">",))
        try:
            yield brokered.token
        finally:
            try:
                self.cancel(brokered.subscription_id)
            except PenstockError as error:
                log.info("not_cancelled", error=str(error))  # the subscription expires by itself

    def events(self, after: int, *, wait_s: float = EVENTS_WAIT_S) -> b.Events:
        """Return the events after event `after`. Waits up to `wait_s` for the first one."""
        path = f"/v1/events?after={after}&wait_s={wait_s:g}"
        return self._call("GET", path, None, b.Events, wait_s=wait_s)

    def entitlements(self) -> o.Entitlements:
        """Return this client's rights; for administrators and auditors, the rights and subscriptions of all clients."""
        return self._call("GET", "/v1/entitlements", None, o.Entitlements)

    def models(self) -> list[b.ModelReference]:
        return self._call("GET", "/v1/models", None, b.ModelList).models

    def model(self, model_id: int, version: int | None = None) -> MessageModel:
        """Return a message model by id, in this version or the newest. An unchanged model is not transferred again."""
        path = f"/v1/models/{model_id}" + ("" if version is None else f"?version={version}")
        held = self._models.get(path)
        headers = {} if held is None else {"If-None-Match": held[0]}

        def exchange(address: AdminAddress) -> MessageModel:
            answer = self._caller.call(address, "GET", path, None, {**headers, **self._authorization()})
            self._note_generation(answer.headers, address)
            if answer.status == 304 and held is not None:
                return held[1]
            document = answer.decode(b.ModelDocument)
            model = MessageModel.parse(document.text, where=f"model {model_id} of {address}")
            if model.id != model_id or version not in (None, model.version):
                raise RemoteProtocolError(f"requested model {model_id}, received model {model.id}", where=str(address))
            self._models[path] = (answer.headers.get("etag", ""), model)
            return model

        return self._with_session(lambda: self._somewhere(exchange))

    # Publishers

    def claim_publisher(self, name: str) -> b.PublisherClaimed:
        """Return the id of the client's publisher of this name, and an epoch for its next start."""
        return self._call("POST", "/v1/publishers", b.PublisherRequest(name=name), b.PublisherClaimed)

    # Adapters

    def register(self, registration: b.AdapterRegistration) -> b.Registered:
        return self._call("POST", "/v1/adapters", registration, b.Registered)

    def heartbeat(self, heartbeat: b.AdapterHeartbeat) -> b.HeartbeatAnswer:
        """Send a heartbeat. NotFoundError means that the adapter must register (again)."""
        return self._call("POST", "/v1/adapters/heartbeat", heartbeat, b.HeartbeatAnswer)

    # Filters

    def verification(self) -> b.Verification:
        """Return the keys and revocations for checking stream tokens, and the number of the last event they include."""
        return self._call("GET", "/v1/verification", None, b.Verification)

    def authentication(self) -> b.AuthenticationAnswer:
        """Return the scopes whose packets this client may check; `authentication` events update them."""
        return self._call("GET", "/v1/authentication", None, b.AuthenticationAnswer)

    # Administrators

    def revoke(self, client: str, reason: str, topics: Sequence[str] = (">",)) -> o.RevokeAnswer:
        request = o.RevokeRequest(client=client, reason=reason, topics=list(topics))
        return self._call("POST", "/v1/revocations", request, o.RevokeAnswer)

    def restore(self, client: str) -> None:
        """Undo all revocations of a client."""
        self._call("POST", "/v1/restorations", o.RestoreRequest(client=client), None)

    def set_policy(self, text: str | None = None) -> o.PolicyAnswer:
        """Set a new policy document, or make the server read its own file again."""
        return self._call("PUT", "/v1/policy", o.PolicyRequest(text=text), o.PolicyAnswer)

    def status(self) -> o.ServerStatus:
        return self._call("GET", "/v1/status", None, o.ServerStatus)

    def audit(self, after: int = 0) -> o.AuditEntries:
        return self._call("GET", f"/v1/audit?after={after}", None, o.AuditEntries)

    def promote(self, reason: str) -> o.ServerStatus:
        """Make the server at the only address the primary."""
        return self._call("POST", "/v1/promote", o.PromoteRequest(reason=reason), o.ServerStatus)

    # The standby

    def changes(self, after: int, history_id: str, *, wait_s: float = 0.0) -> o.Changes:
        path = f"/v1/changes?after={after}&history_id={history_id}&wait_s={wait_s:g}"
        return self._call("GET", path, None, o.Changes, wait_s=wait_s)

    # Sending requests

    def _warn_if_unchecked(self, address: AdminAddress) -> None:
        if self._has_warned or address.is_tls or self.credentials.can_check_server:
            return
        self._has_warned = True
        log.warning(
            "server_not_authenticated",
            client=self.credentials.client,
            address=str(address),
            why="the credentials have no server_key, and the connection has no TLS",
            hint="add the line that `penstock admin server-key` prints to the credentials file",
        )

    def _call(
        self, method: str, path: str, request: msgspec.Struct | None, kind: type[A] | None, *, wait_s: float = 0.0
    ) -> A:
        return self._with_session(
            lambda: self._somewhere(lambda address: self._call_at(address, method, path, request, kind, wait_s=wait_s))
        )

    def _with_session(self, attempt: Callable[[], A]) -> A:
        """Log in first if there is no session or it ends soon. If the server rejects the session, log in again once."""
        with self._lock:
            session = self._session
        is_fresh = session is None or session.expires_ns - time.time_ns() < RENEW_MARGIN_NS
        if is_fresh:
            self.login()
        try:
            return attempt()
        except TokenError:
            if is_fresh:
                raise
        self.login()
        return attempt()

    def _somewhere(self, exchange: Callable[[AdminAddress], A]) -> A:
        """Try the address that answered last, then the others in turn."""
        failure: Exception | None = None
        start = self._current
        for step in range(len(self._addresses)):
            position = (start + step) % len(self._addresses)
            try:
                answer = exchange(self._addresses[position])
            except (UnreachableError, ConnectionLostError, StandbyError) as error:
                if self._caller.is_closed:
                    raise
                log.debug("address_failed", address=str(self._addresses[position]), error=str(error))
                failure = error
                continue
            self._current = position
            return answer
        assert failure is not None
        raise failure

    def _call_at(
        self,
        address: AdminAddress,
        method: str,
        path: str,
        request: msgspec.Struct | None,
        kind: type[A] | None,
        *,
        wait_s: float = 0.0,
    ) -> A:
        return self._answer_at(address, method, path, request, wait_s=wait_s).decode(kind)

    def _answer_at(
        self, address: AdminAddress, method: str, path: str, request: msgspec.Struct | None, *, wait_s: float = 0.0
    ) -> HttpAnswer:
        body = None if request is None else msgspec.json.encode(request)
        answer = self._caller.call(address, method, path, body, self._authorization(), wait_s=wait_s)
        self._note_generation(answer.headers, address)
        return answer

    def _authorization(self) -> dict[str, str]:
        with self._lock:
            return {} if self._session is None else {"Authorization": f"Bearer {self._session.token}"}

    def _note_generation(self, headers: dict[str, str], address: AdminAddress) -> None:
        text = headers.get("penstock-generation", "")
        generation = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
        if generation < self.generation:
            raise StandbyError(f"was replaced: its generation {generation} is too low", where=str(address))
        self.generation = generation
