"""The demo's assured messages: trades of a few symbols go through a message router, from booking to clearing, and none
that was acknowledged is lost, whatever becomes of the router."""

import time

import msgspec

from penstock.demo.layout import BOOKING, CLEARING, ENDPOINT, MUX, PREFIX, Layout
from penstock.demo.reports import BookingReport, BookingTask, ClearingReport, ClearingTask, Subscribed
from penstock.node.member import Member
from penstock.node.running import NodeProcess
from penstock.node.supervisor import Supervisor


class Bookings:
    """The two processes and the router between them, as the plant sees them."""

    def __init__(self, layout: Layout, router: NodeProcess) -> None:
        self.router = router
        self.booked = BookingReport()
        self.cleared = ClearingReport()
        self.members: list[Member] = []
        self._layout = layout
        self._ready = 0
        self._killed_ns: list[int] = []

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

    def note_kill(self) -> None:
        self._killed_ns.append(time.monotonic_ns())

    @property
    def is_ready(self) -> bool:
        return self._ready == len(self.members)

    @property
    def is_recovering(self) -> bool:
        """Whether the router was killed and has delivered nothing since."""
        return bool(self._killed_ns) and not (
            self.router.starts > len(self._killed_ns) and self.cleared.latest_ns > self._killed_ns[-1]
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
        if self.router.member is None:
            return [f"[red]{self.router.name}[/red]", "[red]down[/red]"]
        acknowledged = f"acknowledged {self.booked.acknowledged:,}"
        return [self.router.name, acknowledged, "", f"{self.cleared.delivered:,}"]

    def lines(self) -> list[str]:
        """What became of them, for the summary."""
        booked, cleared = self.booked, self.cleared
        refused = f"[red]{booked.refused:,} refused[/red]" if booked.refused else "0 refused"
        lost = f"[red]{self.lost:,} lost[/red]" if self.lost else "0 lost"
        if self._killed_ns and not self.lost:
            lost += ", though the router was killed"
        return [
            f"Through the message router, each trade of {len(self._layout.booked)} symbols as an assured message:",
            (
                f"  {BOOKING}: {booked.published:,} published, {booked.acknowledged:,} acknowledged when they were "
                f"on the router's disk; {refused}"
            ),
            (
                f"  {CLEARING}: {cleared.distinct:,} trades came and were acknowledged, in {cleared.delivered:,} "
                f"deliveries, {cleared.redelivered:,} of them marked as redelivered; {lost}"
            ),
        ]
