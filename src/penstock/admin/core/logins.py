"""Logins: single-use challenges, proofs, and a limit on failed attempts."""

import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable

import msgspec

from penstock.admin.config import AdminLimits
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import AuthenticationError, CredentialsExpiredError, RateLimitedError
from penstock.security import Policy, PrivateKey, PublicKey
from penstock.security.core.brokering import Challenge, LoginRequest
from penstock.security.core.policy import PolicyClient
from penstock.security.core.proof import (
    CHALLENGE_SIZE,
    SALT_SIZE,
    UNBOUND,
    ScryptCost,
    SecretVerifier,
    login_statement,
    server_statement,
)

KNOWN_NS = 24 * 3_600 * NS_PER_SECOND
"""Time for which an address counts as a client's own after the client's last login."""


class _Waiting(msgspec.Struct, frozen=True):
    client: str
    address: str
    expires_ns: int


class LoginChallenges:
    """Challenges of the logins in progress. They are not stored: after a restart, clients request new challenges."""

    def __init__(
        self, limits: AdminLimits, key: PrivateKey, random: Callable[[int], bytes], binding: bytes = UNBOUND
    ) -> None:
        """`binding` is the SHA-256 of the server's certificate."""
        self._limits = limits
        self._key = key
        self._binding = binding
        self._random = random
        self._waiting: OrderedDict[bytes, _Waiting] = OrderedDict()
        self._by_address: dict[str, deque[bytes]] = {}
        self._failures = FailureTable(limits)

    def challenge(self, policy: Policy, client: str, address: str, now_ns: int) -> Challenge:
        self._failures.check(client, address, now_ns)
        known = policy.clients.get(client)
        verifier = known.verifier if known is not None else None
        if isinstance(verifier, SecretVerifier):
            salt, cost = verifier.salt, verifier.cost
        else:
            # constant for each name, so that unknown clients look like known ones
            salt = hashlib.sha256(self._key.sign(b"penstock salt\0" + client.encode())).digest()[:SALT_SIZE]
            cost = ScryptCost()
        challenge = self._random(CHALLENGE_SIZE)
        expires_ns = now_ns + int(self._limits.challenge_s * NS_PER_SECOND)
        self._keep(challenge, _Waiting(client, address, expires_ns))
        return Challenge(challenge=challenge, salt=salt, cost=cost, expires_ns=expires_ns)

    def login(self, policy: Policy, request: LoginRequest, address: str, now_ns: int) -> tuple[PolicyClient, bytes]:
        """Return the client's name and the server's proof."""
        self._failures.check(request.client, address, now_ns)
        try:
            client = self._checked(policy, request, now_ns)
        except AuthenticationError:
            self._failures.note(request.client, address, now_ns)
            raise
        self._failures.note_success(request.client, address, now_ns)
        return client, self._server_proof(client, self._statement(request))

    def _checked(self, policy: Policy, request: LoginRequest, now_ns: int) -> PolicyClient:
        waiting = self._take(request.challenge)  # a challenge is used up, also by a wrong answer
        if waiting is None or waiting.client != request.client:
            raise AuthenticationError("the challenge is unknown or was answered before", hint="ask for a new challenge")
        if now_ns >= waiting.expires_ns:
            raise AuthenticationError("the challenge has expired", hint="ask for a new challenge and answer it at once")
        if request.binding != self._binding:
            raise AuthenticationError(
                "the client saw another certificate than this server's",
                hint="another party is between them, or a proxy ends TLS: connect to the server itself",
            )
        client = policy.clients.get(request.client)
        verifier = (
            self._key.public if client is None else client.verifier
        )  # unknown names take the same time as known ones
        if not _is_proof(verifier, request.proof, self._statement(request)) or client is None:
            raise AuthenticationError("unknown client, or wrong secret or key")
        if client.expires_ns is not None and now_ns >= client.expires_ns:
            raise CredentialsExpiredError("these credentials have expired", hint="ask the administrator for new ones")
        return client

    def _statement(self, request: LoginRequest) -> bytes:
        return login_statement(request.client, request.challenge, request.nonce, self._binding)

    def _server_proof(self, client: PolicyClient, statement: bytes) -> bytes:
        if isinstance(client.verifier, SecretVerifier):
            return client.verifier.server_proof(statement)
        return self._key.sign(server_statement(statement))

    def _keep(self, challenge: bytes, waiting: _Waiting) -> None:
        """An address with too many challenges loses its own oldest challenge, not one of another address."""
        self._waiting[challenge] = waiting
        own = self._by_address.setdefault(waiting.address, deque())
        own.append(challenge)
        if len(own) > self._limits.address_challenges_max:
            self._take(own[0])
        if len(self._waiting) > self._limits.challenges_max:
            self._take(next(iter(self._waiting)))

    def _take(self, challenge: bytes) -> _Waiting | None:
        waiting = self._waiting.pop(challenge, None)
        if waiting is not None:
            own = self._by_address[waiting.address]
            own.remove(challenge)
            if not own:
                del self._by_address[waiting.address]
        return waiting


def _is_proof(verifier: SecretVerifier | PublicKey, proof: bytes, statement: bytes) -> bool:
    if isinstance(verifier, SecretVerifier):
        return verifier.is_proof(proof, statement)
    return verifier.is_signature(proof, statement)


class FailureTable:
    """Failed logins by client and address, and by address alone, within the last `failure_s`; bounded. A client that
    has logged in from an address recently is not refused because of failures of others at that address.
    """

    def __init__(self, limits: AdminLimits) -> None:
        self._limits = limits
        self._window_ns = int(limits.failure_s * NS_PER_SECOND)
        self._entries: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        self._successes_ns: OrderedDict[tuple[str, str], int] = OrderedDict()

    def check(self, client: str, address: str, now_ns: int) -> None:
        success_ns = self._successes_ns.get((client, address))
        is_known = success_ns is not None and now_ns - success_ns < KNOWN_NS
        for key, failures_max in self._keys(client, address)[: 1 if is_known else 2]:
            since_ns, count = self._entries.get(key, (now_ns, 0))
            left_ns = since_ns + self._window_ns - now_ns
            if count >= failures_max and left_ns > 0:
                retry_after_s = -(-left_ns // NS_PER_SECOND)
                raise RateLimitedError(
                    f"{count} logins failed", retry_after_s=retry_after_s, hint=f"try again in {retry_after_s} s"
                )

    def note(self, client: str, address: str, now_ns: int) -> None:
        for key, _ in self._keys(client, address):
            since_ns, count = self._entries.pop(key, (now_ns, 0))
            if since_ns + self._window_ns <= now_ns or since_ns > now_ns:
                since_ns, count = now_ns, 0
            self._entries[key] = (since_ns, count + 1)
        while len(self._entries) > self._limits.failure_entries_max:
            self._entries.popitem(last=False)

    def note_success(self, client: str, address: str, now_ns: int) -> None:
        self._successes_ns[client, address] = now_ns
        self._successes_ns.move_to_end((client, address))
        while len(self._successes_ns) > self._limits.failure_entries_max:
            self._successes_ns.popitem(last=False)

    def _keys(self, client: str, address: str) -> list[tuple[tuple[str, str], int]]:
        return [
            ((client, address), self._limits.failures_max),
            (("", address), self._limits.address_failures_max),
        ]
