"""The role and the term of one adapter: how it claims one, follows another, and leaves service.

A claim takes two steps, because a term must be on the disk before it is used: PersistTerm, and when TermPersisted
comes, the role, unless a higher term was heard of meanwhile.
"""

from collections.abc import Mapping

import msgspec

from penstock.base.clock import NS_PER_MS
from penstock.base.counters import Counters
from penstock.feed.config import SynchroniserConfig
from penstock.feed.events import (
    Announce,
    PersistTerm,
    Reason,
    Role,
    RoleChanged,
    ServiceChanged,
    SyncInstruction,
)
from penstock.feed.sync.announcement import announcement_body, announcement_message
from penstock.feed.sync.election import Peers, claim_delay_ns, goes_offline
from penstock.feed.sync.flow import Mode
from penstock.feed.sync.follower import StreamFollower
from penstock.feed.sync.health import Health
from penstock.feed.sync.messages import AdapterState, Announced, TakeOver
from penstock.middleware.sourcestream import DiscontinuityNote
from penstock.wire.term import Term, term_after_break, term_after_takeover


class _Claim(msgspec.Struct):
    """A term that is on its way to the disk."""

    term: int
    is_seamless: bool
    reason: Reason


class Membership:
    """What this adapter is among the adapters of its feed."""

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
        self.role: Role = "backup"
        self.term = term
        self.persisted = term
        self.is_online = True
        self.score = Health().score()
        self.due_ns: int | None = now_ns + config.startup_ms * NS_PER_MS
        """When elect() wants to be called."""
        self._config = config
        self._streams = streams
        self._peers = peers
        self._counters = counters
        self._start_ns = now_ns + config.startup_ms * NS_PER_MS
        self._claim: _Claim | None = None
        self._lost_ns: int | None = None
        self._take_over: TakeOver | None = None
        for follower in streams.values():
            follower.term = term
            follower.flow.stamp(term, is_synchronised=False)

    @property
    def is_claiming(self) -> bool:
        return self._claim is not None

    @property
    def is_asked_to_take_over(self) -> bool:
        return self._take_over is not None

    def state(self, now_ns: int) -> AdapterState:
        """What the other adapters are told of this one."""
        is_active = self.role == "active"
        return AdapterState(
            index=self._config.index,
            term=self.term,
            is_active=is_active,
            is_online=self.is_online,
            is_synchronised=is_active or all(each.is_synchronised for each in self._streams.values()),
            hears_active=is_active or self._peers.hears_active(self.term, now_ns),
            health=self.score,
        )

    # Claiming a term

    def claim_break(self, reason: Reason) -> list[SyncInstruction]:
        """Become the active adapter, or stay it, with an announced discontinuity."""
        if self._claim is not None and not self._claim.is_seamless:
            return []
        self._claim = _Claim(term_after_break(self.term, self._config.index), False, reason)
        return [PersistTerm(self._claim.term)]

    def _claim_seamless(self) -> list[SyncInstruction]:
        term = term_after_takeover(self.term, self._config.index)
        if term is None:
            return self.claim_break("promotion")
        self._claim = _Claim(term, True, "promotion")
        return [PersistTerm(term)]

    def persist_done(self, term: int, now_ns: int) -> list[SyncInstruction]:
        self.persisted = max(self.persisted, term)
        claim = self._claim
        if claim is not None and claim.term == term:
            self._claim = None
            is_sound = not claim.is_seamless or self.state(now_ns).is_synchronised
            return self._become_active(claim) if is_sound else []
        if self.role == "backup" and term == self.term:
            for follower in self._streams.values():
                if follower.is_synchronised:
                    follower.flow.stamp(term, is_synchronised=True)
        return []

    def _become_active(self, claim: _Claim) -> list[SyncInstruction]:
        self.role, self.term = "active", claim.term
        self._take_over = self._lost_ns = self.due_ns = None
        self._counters.add("terms_claimed", cause="takeover" if claim.is_seamless else claim.reason)
        why = "goes on seamlessly" if claim.is_seamless else f"discontinuity: {claim.reason}"
        instructions: list[SyncInstruction] = [RoleChanged("active", self.term, why)]
        for follower in self._streams.values():
            follower.lead(self.term)
            if not claim.is_seamless:
                instructions += self._announce(follower, claim.reason)
        return instructions

    def _announce(self, follower: StreamFollower, reason: Reason) -> list[SyncInstruction]:
        """Say where the stream goes on, and go on."""
        flow = follower.flow
        is_affected = flow.mode in (Mode.BROKEN, Mode.AWAITING) or reason == "promotion"
        lost = list(flow.lost) if is_affected else []
        flow.flow()
        flow.forget_checkpoints()
        flow.lost.clear()
        flow.is_damaged = False
        body = announcement_body(DiscontinuityNote(reason, lost, flow.session or "", flow.trading_date))
        number = flow.converter.next_message_sequence - 1
        follower.announced = Announced(self.term, flow.stream_id, number, flow.position, body)
        message = announcement_message(follower.announced, self.term, flow.flags, is_repeated=False)
        return [Announce(flow.stream_id, message), *flow.drain()]

    # Following another

    def follow(self, term: int) -> list[SyncInstruction]:
        """There is a higher term than any known here."""
        instructions: list[SyncInstruction] = []
        was_active, self.role, self.term = self.role == "active", "backup", term
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
        if self.role == "active" or self._claim is not None or not self.is_online:
            self.due_ns = None
            return []
        if now_ns < self._start_ns:
            self.due_ns = self._start_ns
            return []
        hears_active = self._peers.hears_active(self.term, now_ns)
        if hears_active and not self._can_take_over(now_ns):
            self._lost_ns = self._lost_ns if self._take_over else None
            self.due_ns = self._peers.silence_ns(Term.of(self.term).claimant)
            return []
        others = [each for each in self._peers.online(now_ns) if not each.is_active]
        self.due_ns = None
        if not hears_active and any(each.hears_active and each.term == self.term for each in others):
            return []  # the channel is lost, not the active adapter
        self._lost_ns = now_ns if self._lost_ns is None else self._lost_ns
        return self._claim_in_turn(others, now_ns)

    def _can_take_over(self, now_ns: int) -> bool:
        """Whether the active adapter wants this one to, which has what that one lost."""
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
            self.due_ns = self._lost_ns + delay_ns
            return []
        if not mine.term:
            return self.claim_break("start")
        return self._claim_seamless() if mine.is_synchronised else self.claim_break(self._why_break())

    def _why_break(self) -> Reason:
        """`session` if a new session is the only reason why this adapter's streams are not in sync."""
        return "session" if self._has_whole_session() else "promotion"

    def _has_whole_session(self) -> bool:
        """Whether every source stream is synchronised, or begins a session of which nothing is lost here."""
        return all(each.is_synchronised or each.is_awaiting for each in self._streams.values())

    def promote(self, now_ns: int) -> list[SyncInstruction]:
        """The operator wants it."""
        instructions = self.return_to_service()
        if self.role == "active" or self._claim is not None:
            return instructions
        is_seamless = self.term > 0 and self.state(now_ns).is_synchronised
        return instructions + (self._claim_seamless() if is_seamless else self.claim_break(self._why_break()))

    # Service

    def consider_leaving(self, now_ns: int) -> list[SyncInstruction]:
        """A backup that cannot synchronise goes off-line, unless others are worse (SYNC-6)."""
        failures = max((each.failures for each in self._streams.values()), default=0)
        if self.role == "active" or not self.is_online or failures < self._config.unsynchronised_max:
            return []
        for follower in self._streams.values():
            follower.failures = 0
        if not goes_offline(self.state(now_ns), self._peers.online(now_ns), self._config):
            return []
        self.is_online, self._claim = False, None
        instructions: list[SyncInstruction] = [
            ServiceChanged(False, f"unsynchronised {failures} times in a row, with a health of {self.score}")
        ]
        for follower in self._streams.values():
            instructions += follower.leave()
        return instructions

    def return_to_service(self) -> list[SyncInstruction]:
        if self.is_online:
            return []
        self.is_online = True
        for follower in self._streams.values():
            follower.flow.is_sending = True
        return [ServiceChanged(True, "the operator wanted it")]
