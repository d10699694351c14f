"""The demo's assured messages: trades of a few symbols pass a pair of message routers, from booking to clearing. No
acknowledged trade is lost, even if the active router is killed.
"""

import time

import msgspec

from penstock.demo.layout import BOOKING, CLEARING, ENDPOINT, MUX, PREFIX, Layout
from penstock.demo.reports import BookingReport, BookingTask, ClearingReport, ClearingTask, Subscribed
from penstock.node.member import Member
from penstock.node.running import NodeProcess
from penstock.node.supervisor import Supervisor


class Bookings:
    """The demo plant's handle to the two processes and the routers."""

    def __init__(self, layout: Layout, routers: list[NodeProcess]) -> None:
        self._routers = routers
        self.booked = BookingReport()
        self.cleared = ClearingReport()
        self.members: list[Member] = []
        self.active: NodeProcess | None = None
        """The router that most recently became active, in this epoch; it may be down."""
        self.epoch = 0
        self._layout = layout
        self._ready = 0
        self._killed: list[tuple[NodeProcess, int]] = []
        """The killed routers, with the times of the kills."""

    def start(self, supervisor: Supervisor) -> None:
        layout = self._layout
        directory = layout.plant.parent
        topics = [f"md.us.eq.{symbol}.trade" for symbol in layout.booked]
        booking = BookingTask(
            layout.url, str(directory / f"{BOOKING}.toml"), layout.nodes[MUX], topics, layout.router, PREFIX
        )
        clearing = ClearingTask(layout.url, str(directory / f"{CLEARING}.toml"), layout.router, ENDPOINT)
        self.members = [
            supervisor.start(name, f"penstock.demo.booking:{what}", [msgspec.json.encode(task).decode()], take)
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
        """Update the active router from the routers' latest reports; if both report to be active, the newer one
        counts.
        """
        for each in self._routers:
            if each.router is not None and each.router.role == "active" and each.router.epoch > self.epoch:
                self.active, self.epoch = each, each.router.epoch

    @property
    def is_ready(self) -> bool:
        return self._ready == len(self.members)

    @property
    def is_recovering(self) -> bool:
        """True if a killed router has not returned yet, or if no message has been delivered since."""
        return any(
            router.starts < 2 or router.router is None or self.cleared.latest_ns < killed_ns
            for router, killed_ns in self._killed
        )

    @property
    def faults(self) -> list[str]:
        return [each.fault for each in self.members if each.fault]

    @property
    def lost(self) -> int:
        """Number of acknowledged trades that were not delivered."""
        return max(0, self.booked.acknowledged - self.cleared.distinct)

    @property
    def has_all(self) -> bool:
        """True if every trade was acknowledged and delivered."""
        booked = self.booked
        return booked.published == booked.acknowledged == self.cleared.distinct and not self.faults

    def row(self) -> list[str]:
        """Return the row for the table: delivered and missing messages."""
        if (active := self.active) is None or active.member is None:
            return ["[red]message routers[/red]", "[red]none is active[/red]"]
        acknowledged = f"acknowledged {self.booked.acknowledged:,}"
        return [active.name, acknowledged, "", f"{self.cleared.delivered:,}"]

    def summary(self) -> str:
        """Return the line for the summary."""
        lost = f"[red]{self.lost:,} lost[/red]" if self.lost else "0 lost"
        return (
            f"{BOOKING} → {CLEARING} (assured, by a pair of routers): {self.booked.acknowledged:,} of "
            f"{self.booked.published:,} trades acknowledged, {self.cleared.distinct:,} received; {lost}"
        )

    def lines(self) -> list[str]:
        """Return the lines for the summary."""
        booked, cleared = self.booked, self.cleared
        refused = f"[red]{booked.refused:,} refused[/red]" if booked.refused else "0 refused"
        lost = f"[red]{self.lost:,} lost[/red]" if self.lost else "0 lost"
        if self._killed and not self.lost:
            lost += ", although the active router was killed"
        return [
            f"Through a pair of message routers, trades of {len(self._layout.booked)} symbols as assured messages:",
            (
                f"  {BOOKING}: {booked.published:,} published, {booked.acknowledged:,} acknowledged when stored "
                f"on both routers' disks, or on the disk of the remaining one; {refused}"
            ),
            (
                f"  {CLEARING}: {cleared.distinct:,} trades received and acknowledged, in {cleared.delivered:,} "
                f"deliveries, {cleared.redelivered:,} of them marked as redelivered; {lost}"
            ),
        ]
