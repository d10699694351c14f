"""AdminClient: the administration server as its clients, adapters and operators see it.

    client = AdminClient.connect("penstock://127.0.0.1:7400", Credentials.load("alice.toml"))
    brokered = client.subscribe(["md.us.eq.>"])
    ...
    for event in client.events(brokered.events_after).events: ...       # waits; call it in a thread of its own
    client.renew(brokered.subscription_id)                              # before brokered.expires_ns

It logs in when it has to, and goes to the next address when one does not answer or only stands by. Calls may be made
in any thread. A refusal is raised as the error of its code (base.errors).
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
        """The highest seen; answers of a server that was replaced are not taken."""

    @staticmethod
    def connect(url: str, credentials: Credentials | str | Path, *, timeout_s: float = TIMEOUT_S) -> "AdminClient":
        """For "penstock://host:port,host:port" (this machine only) or "penstocks://…" (TLS). Nothing is sent yet."""
        if not isinstance(credentials, Credentials):
            credentials = Credentials.load(credentials)
        return AdminClient(parse_addresses(url), credentials, timeout_s=timeout_s)

    def close(self) -> None:
        self._caller.close()

    def __enter__(self) -> "AdminClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Clients

    def login(self) -> b.Session:
        """A new session; other calls do this by themselves."""
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
        self, topics: Sequence[str] = (), *, send: Sequence[str] = (), subscription_id: str | None = None
    ) -> b.Brokered:
        """Ask for streams; with the id of an earlier subscription of this client, in place of it."""
        request = b.SubscribeRequest(
            subscription_id=subscription_id or random_bytes(16).hex(), topics=list(topics), send=list(send)
        )
        return self._call("POST", "/v1/subscriptions", request, b.Brokered)

    def modify(self, subscription_id: str, topics: Sequence[str] = (), *, send: Sequence[str] = ()) -> b.Brokered:
        request = b.ModifyRequest(topics=list(topics), send=list(send))
        return self._call("PUT", f"/v1/subscriptions/{subscription_id}", request, b.Brokered)

    def subscription(self, subscription_id: str) -> b.Brokered:
        """As it is now, with a fresh token."""
        return self._call("GET", f"/v1/subscriptions/{subscription_id}", None, b.Brokered)

    renew = subscription

    def cancel(self, subscription_id: str) -> None:
        self._call("DELETE", f"/v1/subscriptions/{subscription_id}", None, None)

    @contextlib.contextmanager
    def identified(self) -> Iterator[str]:
        """A token that says who this is, for somebody who takes orders of named clients; given back at the end."""
        brokered = self.subscribe((">",))
        try:
            yield brokered.token
        finally:
            try:
                self.cancel(brokered.subscription_id)
            except PenstockError as error:
                log.info("not_cancelled", error=str(error))  # it ends there when its time is over

    def events(self, after: int, *, wait_s: float = EVENTS_WAIT_S) -> b.Events:
        """What happened since event `after`; waits for the first of it, at most `wait_s`."""
        path = f"/v1/events?after={after}&wait_s={wait_s:g}"
        return self._call("GET", path, None, b.Events, wait_s=wait_s)

    def entitlements(self) -> o.Entitlements:
        """What this client may; for administrators and auditors, what everybody may and has."""
        return self._call("GET", "/v1/entitlements", None, o.Entitlements)

    def models(self) -> list[b.ModelReference]:
        return self._call("GET", "/v1/models", None, b.ModelList).models

    def model(self, model_id: int, version: int | None = None) -> MessageModel:
        """A message model by id: of that version, else the newest. One that has not changed is not sent again."""
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
                raise RemoteProtocolError(f"model {model_id} was asked for, {model.id} came", where=str(address))
            self._models[path] = (answer.headers.get("etag", ""), model)
            return model

        return self._with_session(lambda: self._somewhere(exchange))

    # Publishers

    def claim_publisher(self, name: str) -> b.PublisherClaimed:
        """The id of the client's publisher of this name, and the epoch of a start that it is about to make."""
        return self._call("POST", "/v1/publishers", b.PublisherRequest(name=name), b.PublisherClaimed)

    # Adapters

    def register(self, registration: b.AdapterRegistration) -> b.Registered:
        return self._call("POST", "/v1/adapters", registration, b.Registered)

    def heartbeat(self, heartbeat: b.AdapterHeartbeat) -> b.HeartbeatAnswer:
        """NotFoundError means that the adapter has to register (again)."""
        return self._call("POST", "/v1/adapters/heartbeat", heartbeat, b.HeartbeatAnswer)

    # Filters

    def verification(self) -> b.Verification:
        """What stream tokens are checked with, and up to which event this is true."""
        return self._call("GET", "/v1/verification", None, b.Verification)

    def authentication(self) -> b.AuthenticationAnswer:
        """The scopes that this client may check packets of; `authentication` events keep them up to date."""
        return self._call("GET", "/v1/authentication", None, b.AuthenticationAnswer)

    # Administrators

    def revoke(self, client: str, reason: str, topics: Sequence[str] = (">",)) -> o.RevokeAnswer:
        request = o.RevokeRequest(client=client, reason=reason, topics=list(topics))
        return self._call("POST", "/v1/revocations", request, o.RevokeAnswer)

    def restore(self, client: str) -> None:
        """Take back every revocation of a client."""
        self._call("POST", "/v1/restorations", o.RestoreRequest(client=client), None)

    def set_policy(self, text: str | None = None) -> o.PolicyAnswer:
        """A new policy document, or the server's own file read again."""
        return self._call("PUT", "/v1/policy", o.PolicyRequest(text=text), o.PolicyAnswer)

    def status(self) -> o.ServerStatus:
        return self._call("GET", "/v1/status", None, o.ServerStatus)

    def audit(self, after: int = 0) -> o.AuditEntries:
        return self._call("GET", f"/v1/audit?after={after}", None, o.AuditEntries)

    def promote(self, reason: str) -> o.ServerStatus:
        """Make the server at the (one) address the primary."""
        return self._call("POST", "/v1/promote", o.PromoteRequest(reason=reason), o.ServerStatus)

    # The standby

    def changes(self, after: int, history_id: str, *, wait_s: float = 0.0) -> o.Changes:
        path = f"/v1/changes?after={after}&history_id={history_id}&wait_s={wait_s:g}"
        return self._call("GET", path, None, o.Changes, wait_s=wait_s)

    # How a call is made

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
        """Log in first when there is no session or it ends soon, and once more when the server does not take it."""
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
        """At the address that answered last, else at the others in turn."""
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
            raise StandbyError(f"was replaced: it is of generation {generation}", where=str(address))
        self.generation = generation
