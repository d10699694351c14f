"""A source stream of a live adapter: its sockets, its arbiter and its converter."""

import socket
from datetime import date
from pathlib import Path

from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError
from penstock.base.metrics import Metrics
from penstock.convert import Converter, ConverterTable, Plan
from penstock.feed.adapter_config import AdapterConfig, AddressConfig, LineAddress, SourceStreamConfig
from penstock.feed.core.contribution import TABLE as CONTRIBUTION_TABLE
from penstock.feed.core.events import RequestSource
from penstock.feed.core.lines.arbiter import LineArbiter
from penstock.feed.core.session_dates import SessionDates
from penstock.feed.formats import datagram_format
from penstock.feed.recorded.dates import replay_date
from penstock.feed.recorded.files import open_source
from penstock.middleware.live.receiver import note_unsent
from penstock.net.udp import Channel, Inlet, Outlet, address_key, group_socket, host_socket
from penstock.security.core.brokering import ModelReference
from penstock.wire import DatagramBatch

BATCH_DATAGRAMS = 64
REQUESTS_PER_TURN = 2
"""Number of repair requests answered before data is handled again."""
ERROR_COUNTERS = ("source_messages_malformed", "source_messages_lost", "packets_dropped", "datagrams_overflowed")


class DatagramSource:
    """A source stream with lines of datagrams. `inlet.batch.socket(n)` is the line of datagram n; the number after
    the last line stands for answers to requests."""

    def __init__(self, config: SourceStreamConfig, converter: Converter, counters: Counters) -> None:
        self.stream_id = config.id
        self.converter = converter
        self._format = datagram_format(config.framing)
        self._counters = counters
        self.arbiter = LineArbiter(config.arbitration, self._format, lines=len(config.lines), counters=counters)
        self._server = None if config.request is None else _key_of(config.request)
        self._sockets: list[socket.socket] = []
        try:
            for line in config.lines:
                self._sockets.append(_line_socket(line))
            self._sockets.append(host_socket(config.lines[0].interface))
        except BaseException:
            self._close_sockets()
            raise
        self.fds = [each.fileno() for each in self._sockets]
        self.inlet = Inlet(self.fds, DatagramBatch(BATCH_DATAGRAMS))
        self._outlet = Outlet(self.fds[-1])
        inlet = self.inlet
        counters.watch("datagrams_overflowed", lambda: inlet.overflows)

    def request(self, wish: RequestSource) -> None:
        """Send a request to the request server, if there is one."""
        data = self._format.encode_request(wish.session, wish.first, wish.count)
        if self._server is not None and data and (error := self._outlet.send(self._server, data)):
            note_unsent(self._counters, 1, error)

    def close(self) -> None:
        self.inlet.close()
        self._outlet.close()
        self._close_sockets()

    def _close_sockets(self) -> None:
        for each in self._sockets:
            each.close()


class SourceStreams:
    """All source streams of an adapter."""

    def __init__(self, config: AdapterConfig, metrics: Metrics) -> None:
        self._config = config
        self.datagram_sources: list[DatagramSource] = []
        self.converters: dict[int, Converter] = {}
        self._counters: list[Counters] = []
        plan = config.load()
        self.dates: dict[int, SessionDates] = {}
        """Of each source stream with sessions of the venue; contributions have one endless session."""
        interval = config.sync.checkpoint_interval
        try:
            for stream in config.streams:
                counters = Counters("feed.source", adapter=config.name, stream=stream.name)
                is_contributed = stream.framing == "contribution"
                used = ConverterTable.load(CONTRIBUTION_TABLE).compile() if is_contributed else plan
                day = None if is_contributed else _first_date(config, stream, plan)
                if not is_contributed:
                    self.dates[stream.id] = SessionDates.of_plan(plan, day)
                converter = Converter(used, stream.id, trading_date=day, checkpoint_interval=interval)
                self.converters[stream.id] = converter
                for each in (counters, converter.counters):
                    self._counters.append(each)
                    metrics.register(each)
                if stream.lines:
                    self.datagram_sources.append(DatagramSource(stream, converter, counters))
        except BaseException:
            self.close()
            raise
        self.models = list(dict.fromkeys(output.model for output in plan.outputs))
        """The models of the table's outputs, each version once."""

    @property
    def live_ids(self) -> list[int]:
        """Source streams whose receive times are of this host's clock, and that have sessions of the venue."""
        return [each.id for each in self._config.streams if each.framing not in ("file", "contribution")]

    @property
    def arbiters(self) -> dict[int, LineArbiter]:
        return {source.stream_id: source.arbiter for source in self.datagram_sources}

    def model_references(self) -> list[ModelReference]:
        return [ModelReference(id=each.id, version=each.version, name=each.name) for each in self.models]

    def errors(self) -> int:
        """The number of errors in all source streams."""
        return sum(counters[name] for counters in self._counters for name in ERROR_COUNTERS)

    def close(self) -> None:
        for source in self.datagram_sources:
            source.close()


class RepairSocket:
    """The publisher's own socket, which sends packets and receives repair requests."""

    def __init__(self, channel: Channel) -> None:
        self._socket = host_socket(channel.interface, multicast_hops=channel.hops)
        self._inlet = Inlet([self._socket.fileno()], DatagramBatch(REQUESTS_PER_TURN))
        self.outlet = Outlet(self._socket.fileno())

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def receive(self) -> DatagramBatch:
        """Return the waiting requests; valid until the next call."""
        self._inlet.receive(0)
        return self._inlet.batch

    def close(self) -> None:
        self._inlet.close()
        self.outlet.close()
        self._socket.close()


def _first_date(config: AdapterConfig, stream: SourceStreamConfig, plan: Plan) -> date | None:
    """The configured trading date, or the date in the name of a replayed file if the feed's times need a date; None:
    the date of each session follows from its receive time."""
    day = config.trading_day()
    if stream.framing != "file" or day is not None or not plan.counts_from_midnight:
        return day
    path = Path(stream.url)
    open_source(path).close()  # a file that is not a feed is refused as such
    return replay_date(path, plan, hint=f'set trading_date of the adapter {config.name}, like "2019-01-30"')


def _line_socket(line: LineAddress) -> socket.socket:
    if line.group:
        return group_socket(Channel(group=line.group, port=line.port, interface=line.interface))
    return host_socket(line.interface, port=line.port)


def _key_of(address: AddressConfig) -> int:
    try:
        host = socket.gethostbyname(address.host)
    except OSError as error:
        raise ConfigurationError(f"{address.host!r} is not known: {error.strerror}", where="request") from None
    return address_key((host, address.port))
