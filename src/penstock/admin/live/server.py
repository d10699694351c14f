"""AdminService: makes the decisions of the core durable, and keeps the role of this server in its pair.

Everything here runs in the thread of the server's loop. An answer is sent only after its changes are on the disk. When
the disk fails, the service stops for ever (`failed`), because the state in memory may be ahead of the disk.
"""

import asyncio
import contextlib
import hashlib
import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from penstock.admin.config import AdminConfig
from penstock.admin.core.administration import ITSELF, Caller, StreamAdministration
from penstock.admin.core.logins import LoginChallenges
from penstock.admin.core.models import ModelCatalogue
from penstock.admin.core.records import PolicyText
from penstock.admin.core.refusals import Refusals
from penstock.admin.core.state import Stored
from penstock.admin.live.store import Store
from penstock.base.clock import Clock, random_bytes
from penstock.base.errors import ConfigurationError, LocalProtocolError, PenstockError, RateLimitedError, StandbyError
from penstock.base.limits import DOCUMENT_SIZE_MAX
from penstock.base.log import logger
from penstock.security import Policy, PrivateKey
from penstock.security.core import operating as o
from penstock.security.core.brokering import LoginRequest, Session
from penstock.security.core.proof import UNBOUND
from penstock.security.live.http import certificate_digest

SIGNING_KEY_NAME = "signing.pem"
HISTORY_SIZE = 16
CHANGES_PAGE = 2_000
ADVANCE_S = 0.01
"""Time from the first confirmation of a stream key until the core checks all confirmations."""
ROLE, HISTORY, POLICY_FILE = "role", "history_id", "policy_file_sha256"

ServerRole: TypeAlias = Literal["primary", "standby"]
A = TypeVar("A")
log = logger("admin")
audit_log = logger("admin.audit")


class AdminService:
    def __init__(self, config: AdminConfig, clock: Clock) -> None:
        self.config = config
        self._clock = clock
        self.models = ModelCatalogue(Path(config.models) if config.models else None)
        self._store = Store(Path(config.directory), changes_kept=config.limits.changes_kept)
        self.failed: sqlite3.Error | None = None
        self._changed = asyncio.Event()
        self._refusals = Refusals()
        self._advancing: asyncio.TimerHandle | None = None
        try:
            self.role: ServerRole = "standby" if (self._store.local(ROLE) or config.role) == "standby" else "primary"
            self._key = signing_key(config, self.role)
            self.challenges = LoginChallenges(config.limits, self._key, random_bytes, _binding(config))
            self._core = self._restored()
            self._is_stale = False
            self._followed_generation = self._core.state.meta.generation
            if self.role == "primary":
                self._begin()
        except BaseException:
            self._store.close()
            raise
        log.info("started", node=config.node, role=self.role, generation=self.generation)

    def close(self) -> None:
        if self._advancing is not None:
            self._advancing.cancel()
        self._store.close()

    # Decisions

    @property
    def core(self) -> StreamAdministration:
        if self._is_stale:
            self._core, self._is_stale = self._restored(), False
        return self._core

    @property
    def generation(self) -> int:
        return self._core.state.meta.generation if self.role == "primary" else self._followed_generation

    @property
    def token_key_id(self) -> str:
        return self._key.public.id

    @property
    def now_ns(self) -> int:
        return self._clock.wall_ns()

    def decide(self, decision: Callable[[int], A]) -> A:
        """Make a decision at the current time, and make it durable."""
        answer = decision(self.now_ns)
        self._commit()
        return answer

    def refuse(self, caller: Caller, action: str, error: PenstockError) -> None:
        """Log a refusal: in the audit log if the client has logged in or tried to log in. Other refusals, and those
        of clients with too many attempts, are only in the log: they must not fill the disk. Repetitions within a
        second are counted."""
        if self._refusals.is_first(caller, action, error, self.now_ns):
            self._write_refusal(caller, action, error)

    def _write_refusal(self, caller: Caller, action: str, error: PenstockError, detail: str = "") -> None:
        if not caller.client or isinstance(error, RateLimitedError) or self.failed is not None:
            audit_log.warning(action, client=caller.client, address=caller.address, outcome="refused", code=error.code,
                              detail=f"{detail}{error}")  # fmt: skip
            return
        self.core.audit(caller, action, self.now_ns, error=error, detail=detail)
        self._commit()

    def login(self, request: LoginRequest, address: str) -> Session:
        client, proof = self.challenges.login(self.core.policy, request, address, self.now_ns)
        return self.decide(lambda now_ns: self.core.open_session(client, address, now_ns, proof))

    def set_policy(self, caller: Caller, text: str | None) -> o.PolicyAnswer:
        """Set a new policy, or read it from the file; a policy with errors changes nothing."""
        if self.role == "standby":
            raise StandbyError("a standby uses its primary's policy")

        def decision(now_ns: int) -> o.PolicyAnswer:
            policy = self._policy_file() if text is None else Policy.parse(text)
            return self.core.set_policy(caller, policy, now_ns)

        return self.decide(decision)

    def status(self) -> o.ServerStatus:
        core = self.core
        return o.ServerStatus(
            node=self.config.node,
            role=self.role,
            generation=self.generation,
            generation_since_ns=core.state.meta.generation_since_ns,
            change_number=self._store.number,
            token_key_id=self.token_key_id,
            adapters=core.adapter_statuses(),
            subscriptions=len(core.state.subscriptions),
            denials=len(core.state.denials),
            policy_sha256=core.policy_sha256,
        )

    def audit_after(self, number: int) -> o.AuditEntries:
        entries = self._store.audit_after(number)
        return o.AuditEntries(entries=entries, next_after=entries[-1].number if entries else number)

    def tick(self) -> None:
        for each in self._refusals.take_due(self.now_ns):
            self._write_refusal(each.caller, each.action, each.error, f"{each.repeats} more, the last: ")
        if self.role == "primary" and self.failed is None:
            self.core.tick(self.now_ns)
            self._commit()

    def advance_keys_soon(self) -> None:
        """An adapter or a holder may have confirmed a stream key. The confirmations of many are checked together."""
        if self._advancing is None and self.core.feeds.is_replacing_keys:
            self._advancing = asyncio.get_running_loop().call_later(ADVANCE_S, self._advance_keys)

    def _advance_keys(self) -> None:
        self._advancing = None
        if self.role == "primary" and self.failed is None:
            self.core.advance_keys(self.now_ns)
            with contextlib.suppress(LocalProtocolError):  # logged, and the server ends
                self._commit()

    async def wait_for_change(self, timeout_s: float) -> None:
        """Wait until a change was committed, or the time is over."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except TimeoutError:
            return

    def wake(self) -> None:
        """Wake all waiting requests."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _commit(self, local: dict[str, str] | None = None) -> None:
        if self.failed is not None:
            raise LocalProtocolError(
                "the server's disk has failed", hint="restart the server when the disk works again"
            )
        changes, audits = self.core.state.take_changes(), self.core.take_audits()
        if self.role == "primary" and (changes or audits or local):
            try:
                self._store.commit(changes, audits, local)
            except sqlite3.Error as error:
                self.failed = error
                log.error("store_failed", reason=str(error))
                raise LocalProtocolError("the server's disk has failed") from None
            self.wake()
        for line in audits:
            fields = line._asdict()
            del fields["time_ns"]
            write = audit_log.info if line.outcome == "done" else audit_log.warning
            write(fields.pop("action"), **fields)

    # The pair

    def changes(self, after: int, history_id: str) -> o.Changes:
        """The changes after a number of this history, or the whole state; for the other server."""
        found = self._store.changes_after(after, CHANGES_PAGE) if history_id == self.history_id and after else None
        is_whole = found is None
        changes = self._store.everything() if found is None else found
        next_after = self._store.number if is_whole or not changes else changes[-1].number
        return o.Changes(
            generation=self.generation,
            role=self.role,
            history_id=self.history_id,
            token_key_id=self.token_key_id,
            is_whole=is_whole,
            changes=changes,
            next_after=next_after,
            is_end=next_after == self._store.number,
        )

    @property
    def history_id(self) -> str:
        return self._store.local(HISTORY) or ""

    @property
    def change_number(self) -> int:
        return self._store.number

    def follow(self, answer: o.Changes) -> None:
        """Apply changes of the primary."""
        if self.role == "primary":
            return  # promoted meanwhile
        local = {HISTORY: answer.history_id, ROLE: "standby"}
        if answer.is_whole:
            log.info("copied", records=len(answer.changes), generation=answer.generation)
            self._store.replace(answer.changes, answer.next_after, local)
        elif answer.changes:
            self._store.follow(answer.changes, local)
        self._followed_generation = answer.generation
        self._is_stale = self._is_stale or bool(answer.changes)

    def promote(self, reason: str) -> o.ServerStatus:
        """Become the primary, with a new generation and history. A primary may be promoted as well, which ends a
        conflict
        of two primaries."""
        if not self.history_id:
            raise LocalProtocolError(
                "this standby has never received the state of a primary", hint="its state is empty"
            )
        self._core, self._is_stale = self._restored(), False
        self.role = "primary"
        self._core.promote(reason, self.now_ns)
        self._commit({ROLE: "primary", HISTORY: random_bytes(HISTORY_SIZE).hex()})
        log.warning("promoted", generation=self.generation, reason=reason)
        return self.status()

    def step_down(self, generation: int) -> None:
        """Become the standby of the other server, which took over."""
        if self.role == "primary":
            log.warning("stepped_down", generation=self.generation, replaced_by=generation)
            self._store.commit((), (), {ROLE: "standby"})
            self._followed_generation = self.generation
            self.role = "standby"
            self.wake()

    # Starting

    def _restored(self) -> StreamAdministration:
        records: list[Stored] = self._store.records()
        text = next((each.record.text for each in records if isinstance(each.record, PolicyText)), "")
        policy = Policy.parse(text) if text else self._policy_file()
        config = self.config
        return StreamAdministration(
            policy, self._key, config.limits, random_bytes, records, self.now_ns, config.publishing
        )

    def _begin(self) -> None:
        """True at the first start of a primary, or if the policy file has changed since it was last read."""
        local = {ROLE: "primary"}
        if not self.history_id:
            local[HISTORY] = random_bytes(HISTORY_SIZE).hex()
        policy = self._policy_file()
        digest = hashlib.sha256(policy.text.encode()).hexdigest()
        if digest != self._store.local(POLICY_FILE):
            self._core.set_policy(ITSELF, policy, self.now_ns)
            local[POLICY_FILE] = digest
        self._core.begin(self.now_ns)
        self._commit(local)

    def _policy_file(self) -> Policy:
        path = Path(self.config.policy)
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                text = file.read(DOCUMENT_SIZE_MAX + 1).decode()
        except OSError as error:
            raise ConfigurationError(f"cannot be read: {error.strerror}", where=str(path)) from None
        except UnicodeDecodeError:
            raise ConfigurationError("is not UTF-8 text", where=str(path)) from None
        if mode & stat.S_IROTH:
            log.warning("policy_readable_by_others", path=str(path), mode=f"{mode:o}", hint="chmod 600")
        return Policy.parse(text, where=str(path))


def _binding(config: AdminConfig) -> bytes:
    """The channel binding of logins: the certificate that clients see."""
    return certificate_digest(Path(config.certificate)) if config.certificate else UNBOUND


def signing_key(config: AdminConfig, role: ServerRole) -> PrivateKey:
    """Load the key that signs tokens. A primary without a key creates one."""
    path = Path(config.signing_key or Path(config.directory) / SIGNING_KEY_NAME)
    if not path.exists():
        if role == "standby":
            raise ConfigurationError("is not there", where=str(path), hint="copy the primary's signing key")
        PrivateKey(random_bytes(32)).write(path)
        log.info("signing_key_made", path=str(path))
    return PrivateKey.read(path)
