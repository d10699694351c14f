"""The demo's assured messages: trades of a few symbols go through a pair of message routers, from booking to clearing,
and none that was acknowledged is lost, whatever becomes of the active one."""

import time

import msgspec

from penstock.demo.layout import BOOKING, CLEARING, ENDPOINT, MUX, PREFIX, Layout
from penstock.demo.reports import BookingReport, BookingTask, ClearingReport, ClearingTask, Subscribed
from penstock.node.member import Member
from penstock.node.running import NodeProcess
from penstock.node.supervisor import Supervisor


class Bookings:
    """The two processes and the routers between them, as the plant sees them."""

    def __init__(self, layout: Layout, routers: list[NodeProcess]) -> None:
        self._routers = routers
        self.booked = BookingReport()
        self.cleared = ClearingReport()
        self.members: list[Member] = []
        self.active: NodeProcess | None = None
        """The router that last became the active one, in this epoch; it may be down."""
        self.epoch = 0
        self._layout = layout
        self._ready = 0
        self._killed: list[tuple[NodeProcess, int]] = []
        """Which router, and when."""

    def start(self, supervisor: Supervisor) -> None:
        layout = self._layout
        directory = layout.plant.parent
        topics = [f"md.us.eq.{symbol}.trade" for symbol in layout.booked]
        booking = BookingTask(
            layout.url, str(directory / f"{BOOKING}.toml"), layout.nodes[MUX], topics, layout.router, PREFIX
        )
        clearing = ClearingTask(layout.url, str(directory / f"{CLEARING}.toml"), layout.router, ENDPOINT)
        self.members = [
            supervisor.add(Member(name, f"penstock.demo.booking:{what}", [msgspec.json.encode(task).decode()], take))
            for name, what, task, take in (
                (BOOKING, "book", booking, self._take_booked),
                (CLEARING, "clear", clearing, self._take_cleared),
            )
        ]

    def _take_booked(self, line: bytes) -> None:
        told = msgspec.json.decode(line, type=Subscribed | BookingReport)
        if isinstance(told, Subscribed):
            self._ready += 1
        else:
            self.booked = told

    def _take_cleared(self, line: bytes) -> None:
        told = msgspec.json.decode(line, type=Subscribed | ClearingReport)
        if isinstance(told, Subscribed):
            self._ready += 1
        else:
            self.cleared = told

    def note_kill(self, router: NodeProcess) -> None:
        self._killed.append((router, time.monotonic_ns()))

    def look(self) -> None:
        """Which router is the active one now, by what they said last; the newest if both say so."""
        for each in self._routers:
            if each.router is not None and each.router.role == "active" and each.router.epoch > self.epoch:
                self.active, self.epoch = each, each.router.epoch

    @property
    def is_ready(self) -> bool:
        return self._ready == len(self.members)

    @property
    def is_recovering(self) -> bool:
        """Whether a router was killed, and is not back yet or nothing has been delivered since."""
        return any(
            router.starts < 2 or router.router is None or self.cleared.latest_ns < killed_ns
            for router, killed_ns in self._killed
        )

    @property
    def faults(self) -> list[str]:
        return [each.fault for each in self.members if each.fault]

    @property
    def lost(self) -> int:
        """Trades that were acknowledged to the one and did not come to the other."""
        return max(0, self.booked.acknowledged - self.cleared.distinct)

    @property
    def has_all(self) -> bool:
        """Whether every trade is acknowledged and has come."""
        booked = self.booked
        return booked.published == booked.acknowledged == self.cleared.distinct and not self.faults

    def row(self) -> list[str]:
        """How it goes, for the table: what is delivered in all, and what is missing."""
        if (active := self.active) is None or active.member is None:
            return ["[red]message routers[/red]", "[red]none is active[/red]"]
        acknowledged = f"acknowledged {self.booked.acknowledged:,}"
        return [active.name, acknowledged, "", f"{self.cleared.delivered:,}"]

    def lines(self) -> list[str]:
        """What became of them, for the summary."""
        booked, cleared = self.booked, self.cleared
        refused = f"[red]{booked.refused:,} refused[/red]" if booked.refused else "0 refused"
        lost = f"[red]{self.lost:,} lost[/red]" if self.lost else "0 lost"
        if self._killed and not self.lost:
            lost += ", though the active router was killed"
        return [
            f"Through a pair of message routers, trades of {len(self._layout.booked)} symbols as assured messages:",
            (
                f"  {BOOKING}: {booked.published:,} published, {booked.acknowledged:,} acknowledged when they were "
                f"on both routers' disks, or on that of the one that was left; {refused}"
            ),
            (
                f"  {CLEARING}: {cleared.distinct:,} trades came and were acknowledged, in {cleared.delivered:,} "
                f"deliveries, {cleared.redelivered:,} of them marked as redelivered; {lost}"
            ),
        ]
