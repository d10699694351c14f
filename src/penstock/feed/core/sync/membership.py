"""The role and the term of one adapter: how it claims a term, follows a higher one, and leaves service.

A claim takes two steps, because a term must be on the disk before it is used: PersistTerm, and after TermPersisted the
role, unless a higher term has become known.
"""

from collections.abc import Mapping

import msgspec

from penstock.base.clock import NS_PER_MS
from penstock.base.counters import Counters
from penstock.feed.config import SynchroniserConfig
from penstock.feed.core.events import (
    PersistTerm,
    Reason,
    Role,
    RoleChanged,
    ServiceChanged,
    SyncInstruction,
)
from penstock.feed.core.sync.election import Peers, claim_delay_ns, goes_offline
from penstock.feed.core.sync.follower import StreamFollower
from penstock.feed.core.sync.health import Health
from penstock.feed.core.sync.messages import AdapterState, TakeOver
from penstock.wire.term import Term, term_after_break, term_after_takeover


class _Claim(msgspec.Struct):
    """A term that is being written to the disk."""

    term: int
    is_seamless: bool
    reason: Reason


class Membership:
    """Owns the role and the term of this adapter among the adapters of its feed."""

    def __init__(
        self,
        config: SynchroniserConfig,
        streams: Mapping[int, StreamFollower],
        peers: Peers,
        counters: Counters,
        *,
        term: int,
        now_ns: int,
    ) -> None:
        self._role: Role = "backup"
        self._term = term
        self._persisted = term
        self._is_online = True
        self._score = Health().score()
        self._due_ns: int | None = now_ns + config.startup_ms * NS_PER_MS
        self._config = config
        self._streams = streams
        self._peers = peers
        self._counters = counters
        self._start_ns = now_ns + config.startup_ms * NS_PER_MS
        self._claim: _Claim | None = None
        self._lost_ns: int | None = None
        self._take_over: TakeOver | None = None

    @property
    def role(self) -> Role:
        return self._role

    @property
    def term(self) -> int:
        """The highest term that this adapter knows of."""
        return self._term

    @property
    def is_online(self) -> bool:
        return self._is_online

    @property
    def is_term_persisted(self) -> bool:
        return self._persisted >= self._term

    @property
    def due_ns(self) -> int | None:
        """The time for the next call of elect()."""
        return self._due_ns

    @property
    def is_claiming(self) -> bool:
        return self._claim is not None

    @property
    def is_asked_to_take_over(self) -> bool:
        return self._take_over is not None

    def state(self, now_ns: int) -> AdapterState:
        """The state that is sent to the other adapters."""
        is_active = self._role == "active"
        return AdapterState(
            index=self._config.index,
            term=self._term,
            is_active=is_active,
            is_online=self._is_online,
            is_synchronised=is_active or all(each.is_synchronised for each in self._streams.values()),
            hears_active=is_active or self._peers.hears_active(self._term, now_ns),
            health=self._score,
        )

    def note_health(self, health: Health) -> None:
        self._score = health.score()

    # Claiming a term

    def claim_break(self, reason: Reason) -> list[SyncInstruction]:
        """Become or remain the active adapter, with an announced discontinuity."""
        if self._claim is not None and not self._claim.is_seamless:
            return []
        self._claim = _Claim(term_after_break(self._term, self._config.index), False, reason)
        return [PersistTerm(self._claim.term)]

    def _claim_seamless(self) -> list[SyncInstruction]:
        term = term_after_takeover(self._term, self._config.index)
        if term is None:
            return self.claim_break("promotion")
        self._claim = _Claim(term, True, "promotion")
        return [PersistTerm(term)]

    def persist_done(self, term: int, now_ns: int) -> list[SyncInstruction]:
        self._persisted = max(self._persisted, term)
        claim = self._claim
        if claim is not None and claim.term == term:
            self._claim = None
            is_sound = not claim.is_seamless or self.state(now_ns).is_synchronised
            return self._become_active(claim) if is_sound else []
        if self._role == "backup" and term == self._term:
            for follower in self._streams.values():
                follower.confirm_term()
        return []

    def _become_active(self, claim: _Claim) -> list[SyncInstruction]:
        self._role, self._term = "active", claim.term
        self._take_over = self._lost_ns = self._due_ns = None
        self._counters.add("terms_claimed", cause="takeover" if claim.is_seamless else claim.reason)
        why = "goes on seamlessly" if claim.is_seamless else f"discontinuity: {claim.reason}"
        instructions: list[SyncInstruction] = [RoleChanged("active", self._term, why)]
        for follower in self._streams.values():
            follower.lead(self._term)
            if not claim.is_seamless:
                instructions += follower.begin_lineage(claim.reason)
        return instructions

    # Following another

    def follow(self, term: int) -> list[SyncInstruction]:
        """Follow a term that is higher than the known one."""
        instructions: list[SyncInstruction] = []
        was_active, self._role, self._term = self._role == "active", "backup", term
        self._claim = self._take_over = self._lost_ns = None
        for follower in self._streams.values():
            instructions += follower.step_down() if was_active else []
            instructions += follower.follow(term)
        why = "steps down" if was_active else "follows"
        return [RoleChanged("backup", term, why), PersistTerm(term), *instructions]

    def ask_to_take_over(self, request: TakeOver, now_ns: int) -> None:
        self._take_over, self._lost_ns = request, now_ns

    # Taking over

    def elect(self, now_ns: int) -> list[SyncInstruction]:
        """Take over if it is this adapter's turn."""
        if self._role == "active" or self._claim is not None or not self._is_online:
            self._due_ns = None
            return []
        if now_ns < self._start_ns:
            self._due_ns = self._start_ns
            return []
        hears_active = self._peers.hears_active(self._term, now_ns)
        if hears_active and not self._can_take_over(now_ns):
            self._lost_ns = self._lost_ns if self._take_over else None
            self._due_ns = self._peers.silence_ns(Term.of(self._term).claimant)
            return []
        others = [each for each in self._peers.online(now_ns) if not each.is_active]
        self._due_ns = None
        if not hears_active and any(each.hears_active and each.term == self._term for each in others):
            return []  # the channel is lost, not the active adapter
        if not self.state(now_ns).is_synchronised and (due_ns := self._peers.introduction_ns(now_ns)) is not None:
            self._due_ns = due_ns  # one of them may be active: a claim now would break its stream
            return []
        self._lost_ns = now_ns if self._lost_ns is None else self._lost_ns
        return self._claim_in_turn(others, now_ns)

    def _can_take_over(self, now_ns: int) -> bool:
        """True if the active adapter asks this one to take over, and this one has the messages that it lost."""
        request = self._take_over
        if request is None or not self.state(now_ns).is_synchronised:
            return False
        return self._streams[request.stream_id].flow.position >= request.source_sequence

    def _claim_in_turn(self, others: list[AdapterState], now_ns: int) -> list[SyncInstruction]:
        mine = self.state(now_ns)
        delay_ns = claim_delay_ns(mine, others, self._config, is_whole=self._has_whole_session())
        if delay_ns is None:
            return []
        assert self._lost_ns is not None
        if now_ns < self._lost_ns + delay_ns:
            self._due_ns = self._lost_ns + delay_ns
            return []
        if not mine.term:
            return self.claim_break("start")
        return self._claim_seamless() if mine.is_synchronised else self.claim_break(self._why_break())

    def _why_break(self) -> Reason:
        """`session` if a new session is the only reason why this adapter's streams are not in sync."""
        return "session" if self._has_whole_session() else "promotion"

    def _has_whole_session(self) -> bool:
        """True if every source stream is synchronised, or begins a session without losses."""
        return all(each.is_synchronised or each.is_awaiting for each in self._streams.values())

    def promote(self, now_ns: int) -> list[SyncInstruction]:
        """Take over on the operator's order."""
        instructions = self.return_to_service()
        if self._role == "active" or self._claim is not None:
            return instructions
        is_seamless = self._term > 0 and self.state(now_ns).is_synchronised
        return instructions + (self._claim_seamless() if is_seamless else self.claim_break(self._why_break()))

    # Service

    def consider_leaving(self, now_ns: int) -> list[SyncInstruction]:
        """A backup that cannot synchronise goes off-line, unless others are worse (SYNC-6)."""
        failures = max((each.failures for each in self._streams.values()), default=0)
        if self._role == "active" or not self._is_online or failures < self._config.unsynchronised_max:
            return []
        for follower in self._streams.values():
            follower.reset_failures()
        if not goes_offline(self.state(now_ns), self._peers.online(now_ns), self._config):
            return []
        self._is_online, self._claim = False, None
        instructions: list[SyncInstruction] = [
            ServiceChanged(False, f"unsynchronised {failures} times in a row, with a health of {self._score}")
        ]
        for follower in self._streams.values():
            instructions += follower.leave()
        return instructions

    def return_to_service(self) -> list[SyncInstruction]:
        if self._is_online:
            return []
        self._is_online = True
        for follower in self._streams.values():
            follower.return_to_service()
        return [ServiceChanged(True, "ordered by the operator")]
