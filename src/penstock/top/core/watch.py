"""From consecutive readings to a picture: the state of `penstock top`, without I/O."""

from collections.abc import Sequence

from penstock.base.clock import NS_PER_SECOND
from penstock.top.core.picture import ConsumerRow, EndpointRow, LossRow, NodeRow, Picture, State, StreamRow
from penstock.top.core.reading import Reading
from penstock.top.core.rows import NodeView, Rows

SLACK_SECONDS = 5.0
"""Maximum age of an answer on arrival; more than the time that nodes have to answer."""

_STATES = {"unreachable": State.UNREACHABLE, "garbled": State.GARBLED, "unknown": State.UNKNOWN}


class _Known:
    """The remembered state of a node."""

    def __init__(self) -> None:
        self.last: Reading | None = None
        """Time of its last answer."""
        self.restarts = 0
        self.garbled = 0


class Watch:
    """Call take() with readings of the same places repeatedly; rates cover the time between two answers of a node."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        """By name of the place, because a restarted node may have another address."""

    def take(self, readings: Sequence[Reading], now_ns: int) -> Picture:
        nodes: list[NodeRow] = []
        streams: list[StreamRow] = []
        losses: list[LossRow] = []
        consumers: list[ConsumerRow] = []
        endpoints: list[EndpointRow] = []
        for reading in readings:
            node, rows = self._take_one(reading, now_ns)
            nodes.append(node)
            if rows is not None:
                streams += rows.streams
                losses += rows.losses
                consumers += rows.consumers
                endpoints += rows.endpoints
        return Picture(nodes=nodes, streams=streams, losses=losses, consumers=consumers, endpoints=endpoints)

    def _take_one(self, reading: Reading, now_ns: int) -> tuple[NodeRow, Rows | None]:
        known = self._known.setdefault(reading.place.name, _Known())
        if reading.outcome != "answered":
            return self._silent(reading, known, now_ns)
        before = known.last
        if before is not None and _is_another_run(before, reading):
            known.restarts += 1
            before = None
        known.last = reading
        known.garbled += reading.garbled_lines
        view = NodeView(reading, before)
        rows = view.rows()
        facts = rows.node
        state = State.FAILED if not reading.is_healthy else State.DEGRADED if facts.troubles else State.UP
        failing = reading.place.failing
        missing = [each for each in facts.troubles if each not in reading.detail]
        node = NodeRow(
            node=reading.place.name,
            role=reading.role,
            state=State.FAILING if failing else state,
            detail="; ".join(each for each in (failing, reading.detail, *missing) if each),
            uptime_s=reading.uptime_s,
            in_per_s=facts.in_per_s,
            out_per_s=facts.out_per_s,
            latency_us=facts.latency_us,
            lost=view.lost(),
            consumers=facts.consumers,
            restarts=max(known.restarts, reading.place.restarts),
            garbled=known.garbled,
        )
        return node, rows

    def _silent(self, reading: Reading, known: _Known, now_ns: int) -> tuple[NodeRow, Rows | None]:
        """Build the row of a node without a usable answer: its last answer with its age."""
        known.garbled += reading.outcome == "garbled"
        last, place = known.last, reading.place
        age_s = None if last is None else max(0.0, (now_ns - last.at_ns) / NS_PER_SECOND)
        node = NodeRow(
            node=place.name,
            role=place.role if last is None else last.role,
            state=_silent_state(reading),
            detail=place.failing or reading.why,
            age_s=age_s,
            restarts=max(known.restarts, place.restarts),
            garbled=known.garbled,
        )
        return node, None if last is None else NodeView(last, None, age_s).rows()


def _silent_state(reading: Reading) -> State:
    if reading.place.failing:
        return State.FAILING
    return _STATES[reading.outcome] if reading.place.is_expected else State.PAGELESS


def _is_another_run(before: Reading, now: Reading) -> bool:
    """True if the node was restarted in between, so that its counters are not comparable."""
    if type(before.status) is not type(now.status) or _epoch(before) != _epoch(now):
        return True
    if before.uptime_s is None or now.uptime_s is None:
        return False
    elapsed_s = (now.at_ns - before.at_ns) / NS_PER_SECOND
    return now.uptime_s < before.uptime_s or now.uptime_s + SLACK_SECONDS < before.uptime_s + elapsed_s


def _epoch(reading: Reading) -> int:
    """Return the epoch of nodes that choose a new one at every start."""
    return getattr(reading.status, "epoch", 0)
