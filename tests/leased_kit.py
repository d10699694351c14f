"""A pair of routers with automatic takeover, by hand: the two of paired_kit.py and a witness, under one clock."""

from typing import Any

from paired_kit import QUEUE, Router, exchange
from penstock.assured.config import EndpointConfig
from penstock.assured.core.lease.protocol import Heard, Keep, Kept, LeaseConfig, Memory, Message, Tell
from penstock.assured.core.lease.voter import LeaseVoter
from penstock.assured.core.pair.protocol import PeerClosed, PeerOpened
from penstock.base.clock import NS_PER_MS
from penstock.base.core import Tick

LEASE = LeaseConfig(routers=("a", "b"), witness="w", lease_ms=1_000)
STEP_NS = 20 * NS_PER_MS


class Leased(Router):
    """`said` has its messages for other voters, `kept` its promises on disk as a voter."""

    def __init__(
        self, name: str, *endpoints: EndpointConfig, pair: dict[str, Any], now_ns: int = 0, **options: Any
    ) -> None:
        self.said: list[tuple[str, Message]] = []
        self.now_ns = now_ns
        self.kept: Memory = options.get("memory") or Memory()
        super().__init__(name, *endpoints, pair={"lease": LEASE, **pair}, **options)

    def restart(self) -> "Leased":
        known = {"journal": self.journal, "memory": self.kept, "now_ns": self.now_ns}
        return Leased(self.name, *self.endpoints, pair=self.pair_options, **known, **self.options)

    def _carried_out(self, each: Any) -> list[Any]:
        match each:
            case Keep(memory):
                self.kept = memory
                return [Kept()]
            case Tell(to, message):
                self.said.append((to, message))
                return []
            case _:
                return super()._carried_out(each)


class LeasedPair:
    """`a` has the lease, and `b` has all messages; `second` are the options of the second; both have endpoint `q`."""

    def __init__(self, *first: EndpointConfig, second: tuple[EndpointConfig, ...] = (), **pair: Any) -> None:
        self.now_ns = 0
        self.one = Leased("a", QUEUE, *first, pair=pair)
        self.other = Leased("b", QUEUE, *second, pair=pair)
        self.witness = LeaseVoter(LEASE, Memory(), 0)
        self.down: set[str] = set()
        """Names of routers that neither send nor receive."""
        self._link = 0
        self.connect()
        self.run(3_000)
        assert self.one.pair.is_active
        assert self.other.pair.receiving is not None
        self.one.clients(10)
        self.settle()

    @property
    def routers(self) -> tuple[Leased, Leased]:
        return self.one, self.other

    def connect(self) -> None:
        self._link += 1
        for each in self.routers:
            each.frames.clear()
            each.tell(PeerOpened(self._link))
        self.settle()

    def disconnect(self) -> None:
        for each in self.routers:
            each.frames.clear()
            each.tell(PeerClosed(each.link))

    def kill(self, router: Leased) -> None:
        """Kill the router: it no longer answers, and its link ends."""
        self.down.add(router.name)
        self.disconnect()

    def settle(self) -> None:
        """Exchange frames until none is left."""
        while any(each.frames or each.said for each in self.routers if each.name not in self.down):
            for each in self.routers:
                said, each.said = each.said, []
                for to, message in said if each.name not in self.down else ():
                    self._vote(each.name, to, message)
            if not self.down:
                exchange(self.one, self.other)
        for each in self.routers:
            each.now_ns = self.now_ns = max(self.now_ns, each.now_ns)

    def _vote(self, sender: str, to: str, message: Message) -> None:
        if to in self.down:
            return
        for router in self.routers:
            if router.name == to:
                router.tell(Heard(sender, message))
        if to == LEASE.witness:
            told = self.witness.handle(Heard(sender, message), self.now_ns)
            while told:
                each = told.pop(0)
                if isinstance(each, Keep):
                    told += self.witness.handle(Kept(), self.now_ns)
                else:
                    self._vote(LEASE.witness, each.to, each.message)

    def run(self, milliseconds: int) -> None:
        until_ns = self.now_ns + milliseconds * NS_PER_MS
        while self.now_ns < until_ns:
            self.now_ns += STEP_NS
            for each in self.routers:
                each.now_ns = self.now_ns
                if each.name not in self.down:
                    each.tell(Tick())
            self.settle()
