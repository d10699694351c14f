"""A live agent: everything of it in one process, from its configuration to its end.

    agent = LiveAgent(config)
    await agent.node.start()
    await agent.node.run(stop)

The core, its links (links.py) and the disk's requests (journal_queue.py) are in the loop's thread; reading journals,
tokens and metrics have threads of their own.
"""

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from penstock.base.clock import SystemRandomness, random_bytes
from penstock.base.counters import Cause
from penstock.base.errors import PenstockError
from penstock.base.files import make_directory
from penstock.base.log import logger
from penstock.base.status_page import Health
from penstock.model import MessageModel
from penstock.model.library import shipped, shipped_names
from penstock.net.config import TlsConfig
from penstock.net.guard import Guard
from penstock.net.secret import read_secret
from penstock.net.tls import client_context, server_context
from penstock.runtime.accounts import UNWRITTEN_MAX, Account, add_accounts
from penstock.runtime.core_node import TOKEN_SECONDS, CoreNode
from penstock.runtime.node import Node
from penstock.security.core.brokering import Revoked
from penstock.security.live.own_token import OwnToken
from penstock.tree.config import AgentConfig
from penstock.tree.core.agent import DistributionAgent
from penstock.tree.core.control import Order, Ordered, Refused
from penstock.tree.core.events import (
    Append,
    Became,
    CheckToken,
    Close,
    Connect,
    Define,
    DefineStream,
    Event,
    GotToken,
    Informed,
    Instruction,
    Move,
    Noticed,
    Promote,
    ReadJournal,
    Renewed,
    Restore,
    Revoke,
    SendBack,
    Start,
    Stop,
)
from penstock.tree.core.status import AgentStatus, gauges_of, rows_of
from penstock.tree.live.access import REFUSALS, PartyAccess
from penstock.tree.live.account_rows import account_rows
from penstock.tree.live.journal_queue import JournalQueue
from penstock.tree.live.links import AgentLinks
from penstock.tree.live.load import watch_load
from penstock.tree.live.status_snapshot import observed
from penstock.tree.live.stream_store import StreamStore

PUBLISHERS_SECONDS = 10.0
STATUS_LINKS_MAX = 10_000
METRICS_LINKS_MAX = 512

log = logger("tree")


def event_of(order: Order) -> Event:
    match order.action:
        case "move":
            return Move(order.party, order.place, order.reason)
        case "return":
            return SendBack(order.party, order.reason)
        case "promote":
            return Promote()
        case "revoke":
            return Revoke(order.party, order.topics, order.reason)
        case "restore":
            return Restore(order.party)


class LiveAgent:
    """One agent. `node` starts and closes it; after the start `status()` describes it."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config = config.with_session_topics()
        self.node = node = Node(config)
        if config.admin.url and config.state_directory:
            make_directory(config.state_directory)
        tokens = node.watch_tokens(config.admin, config.state_directory, self._revoke)
        self._own_token = random_bytes(16).hex()
        models = [shipped(name) for name in shipped_names()] + [MessageModel.load(Path(name)) for name in config.models]
        self._core = DistributionAgent(config, SystemRandomness(), node.counters("tree"), models=models)
        self._running: CoreNode[Event, Instruction] = CoreNode(
            node, self._core, self._carry_out, log, after=lambda: self._links.pump_soon()
        )
        self._runner = self._running.runner
        secret = read_secret(Path(config.control.secret_file)) if config.control.secret_file else None
        upward = read_secret(Path(config.secret_file)) if config.secret_file else secret
        tls = TlsConfig(certificate="", private_key="", ca_file=config.ca_file) if config.ca_file else None
        verify = None if tokens is None else tokens.gate.verify
        self._access = PartyAccess(config.bearers, config.operators, verify, own_token=self._own_token)
        self._links = AgentLinks(
            config,
            self._core.fanout,
            self._access,
            self._tell,
            self._ordered,
            secret=secret,
            server_tls=server_context(config.control.tls),
            guard=Guard(upward, client_context(tls)),
            counters=node.counters("tree.links"),
        )
        self._journal_queue: JournalQueue | None = None
        self._found = Start()
        self._became: Became | None = None
        node.add_tokens()
        node.add("first tokens", start=self._await_tokens)
        node.add("store", start=self._open_store if config.role != "agent" else None, close=self._close_store)
        topic = f"penstock.tree.{config.name}.{{}}"
        add_accounts(node, config.accounts, "tree.accounts", topic, self._accounts, agent=config.name, tree=config.tree)
        if config.accounts.path:
            self._core.environment.accounts.keep(UNWRITTEN_MAX)
        node.add("core", close=self._stop_core)
        node.add("links", start=self._links.start, close=self._links.close)
        node.add("place in the tree", start=self._begin, close=self._end)
        self._running.watch_rights(
            self._access, lambda party, error: self._links.refuse(party.number, REFUSALS.of(error))
        )
        node.add_task(lambda: watch_load(self._tell))
        node.add_task(self._note_publishers)
        node.show(
            self.status,
            self._health,
            gauges=lambda: gauges_of(self.status(0)),
            rows=lambda: rows_of(self.status(METRICS_LINKS_MAX)),
        )

    # From start to shutdown

    async def _await_tokens(self) -> None:
        """Before the first login, if an administration server answers in time: who has no token, or comes to an agent
        that cannot check it, is refused, and would settle with whoever takes it first afterwards."""
        if self.node.tokens is not None and self.config.role != "root":
            own = OwnToken(self.config.admin, (">",))
            self.node.spawn(own.keep(self._renew_own))
            await own.wait(TOKEN_SECONDS)
        await self._running.await_tokens()

    async def _close_store(self) -> None:
        if self._journal_queue is not None:
            self._mark_publishers(self._journal_queue)
            await self._journal_queue.close()

    def _begin(self) -> None:
        self._runner.handle(msgspec.structs.replace(self._found, place=self.place, wall_ns=time.time_ns()))
        log.info("agent_started", name=self.config.name, role=self.config.role, port=self._links.port)

    def _end(self) -> None:
        if not self._running.has_failed:
            self._runner.handle(Stop("the agent ends"))

    def _stop_core(self) -> None:
        """Stop the core after the links: it handles their last notices first."""
        if not self._running.has_failed:
            self._runner.handle(Noticed())
        self._runner.stop()

    @property
    def control_port(self) -> int:
        return self._links.port

    @property
    def place(self) -> str:
        """The address where children connect."""
        return self.config.control.advertised or f"{self.config.control.host}:{self._links.port}"

    @property
    def own_token(self) -> str:
        """The token that admits publishers of this process; it stays in the process."""
        return self._own_token

    def reload(self, config: AgentConfig) -> None:
        """Take over what may change while the agent runs: its table, and the streams at the root."""
        config = config.with_session_topics()
        self._core.reconfigure(config)
        self._access.set_names(config.bearers, config.operators)
        for stream in config.streams:
            self._runner.handle(Define(stream.name, stream.topics))

    async def _open_store(self) -> None:
        config = self.config
        store = await asyncio.to_thread(
            StreamStore.open,
            Path(config.state_directory),
            config.tree,
            config.streams,
            config.journal,
            self.node.counters("tree.journal"),
            tail_half_size=config.tail_bytes // 2,
        )
        self._journal_queue = JournalQueue(
            store, config, self._runner.answer, self._hold_publishers, self._links.release_all, self.node.fail
        )
        self._core.sequencer.set_tail(store.tail)
        marks = store.publishers
        beyond = {publisher: sorted(numbers) for publisher, numbers in marks.beyond.items()}
        found = Start(store.recovered(), marks.through, beyond, store.term, store.is_root)
        self._found = msgspec.structs.replace(found, bearers=marks.bearers)

    # Operators

    def _ordered(self, order: Order) -> Ordered | Refused:
        log.warning("ordered", action=order.action, party=order.party, place=order.place, reason=order.reason)
        children = {each.party.name for each in self._core.children}
        if order.action in ("move", "return") and order.party not in children:
            return Refused("party", f"{order.party} is not below {self.config.name}", order.number)
        if order.action == "promote" and self._core.membership.role != "standby":
            return Refused("role", f"{self.config.name} is not a standby", order.number)
        self._tell(event_of(order))
        return Ordered(order.number)

    # The core

    def _tell(self, event: Event) -> None:
        self._running.tell(event)  # a party that makes a mistake is told by the core, and counted

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Connect(attempt, place):
                self._links.connect(attempt, place)
            case Close(link, cause, reason):
                say = log.debug if cause == Cause.CLOSED else log.info
                say("link_ends", link=link, cause=cause, reason=reason)
                self._links.end(link)
            case Append():
                self._open_journal_queue.append(instruction)
            case ReadJournal():
                self._open_journal_queue.read(instruction)
            case DefineStream(info):
                self._open_journal_queue.define(info)
            case CheckToken(link, token):
                self._check_token(link, token)
            case Informed():
                self._note(instruction)
            case Became():
                self._become(instruction)

    @property
    def _open_journal_queue(self) -> JournalQueue:
        assert self._journal_queue is not None, "only a root or a standby keeps streams"
        return self._journal_queue

    def _become(self, became: Became) -> None:
        self._became = became
        log.info("agent_became", **msgspec.to_builtins(became))
        if self._journal_queue is None:
            return
        store, is_root = self._journal_queue.store, became.role == "root"
        if became.term > store.term or is_root != store.is_root:
            store.begin_term(became.term, is_root=is_root)

    def _note(self, informed: Informed) -> None:
        info = informed.info
        if info.kind in ("through", "load"):
            return
        what = msgspec.to_builtins(info)
        self._running.note(info.kind, what, direction=informed.direction, party=informed.party)
        log.info("infostream", direction=informed.direction, party=informed.party, kind=info.kind, what=what)

    # Rights of parties

    def _revoke(self, event: Revoked) -> None:
        for party in self._access.bearers(event.subscription_id):
            self._end_operators(party.name, event.reason)
            self._tell(Revoke(party.name, (), event.reason, is_lasting=False))

    def _end_operators(self, name: str, reason: str) -> None:
        for link in self._access.operators(name):
            self._links.refuse(link, Refused("revoked", f"the authority of {name} was revoked: {reason}"[:256]))

    def _check_token(self, link: int, token: str) -> None:
        try:
            rights = self._access.renew(link, token, time.time_ns())
        except PenstockError as error:
            self._runner.give(Renewed(link, None, f"{REFUSALS.code_of(error)}: {error.what}"[:256]))
        else:
            self._runner.give(Renewed(link, rights.grants))

    async def _renew_own(self, token: str) -> None:
        self._tell(GotToken(token))

    # The disk

    def _hold_publishers(self) -> None:
        for link in self._core.fanout.links():
            if self._access.is_publisher(link):
                self._links.hold(link)

    async def _note_publishers(self) -> None:
        while True:
            await asyncio.sleep(PUBLISHERS_SECONDS)
            if self._journal_queue is not None:
                self._mark_publishers(self._journal_queue)

    def _mark_publishers(self, journal_queue: JournalQueue) -> None:
        for child in self._core.children:
            self._core.sequencer.note_bearer(child.party)
        if journal_queue.is_storing:
            journal_queue.store.note_publishers(self._core.sequencer.replica.publishers)

    # Status

    def status(self, links_max: int = STATUS_LINKS_MAX) -> AgentStatus:
        """Return the status with at most `links_max` links. May be called in any thread."""
        return observed(
            self._core,
            links_max,
            control_port=self._links.port,
            is_in_touch=self.node.is_in_touch,
            is_storing=self._journal_queue is None or self._journal_queue.is_storing,
            happenings=self._running.happenings(),
        )

    def _health(self) -> Health:
        status = self.status(0)
        detail = f"{status.state}, term {status.term}, {status.child_count} children"
        if not status.is_rooted:
            detail += "; no way to the root"
            detail += f" ({status.why_alone})" if status.why_alone else ""
        if trouble := self.node.token_trouble:
            detail += f"; {trouble}"
        if not status.is_storing:
            detail += "; the disk accepts no data"
        if status.is_degraded:
            detail += "; degraded: no standby has what is acknowledged"
        return Health(status.is_storing, detail)

    async def _accounts(self) -> Iterable[Account]:
        return list(account_rows(self._core, [self._core.environment.counters, self._links.counters]))
