"""The sockets of a source stream: one for each line, and one on which answers to requests come in."""

import socket

from penstock.base.errors import ConfigurationError
from penstock.feed.adapter_config import AddressConfig, LineAddress, SourceStreamConfig
from penstock.net.udp import Channel, Inlet, Outlet, address_key, group_socket, host_socket
from penstock.wire import DatagramBatch

BATCH_DATAGRAMS = 64


class SourceSockets:
    """`inlet.batch.socket(n)` is the line of datagram n; the number after the last line is that of the answers."""

    def __init__(self, config: SourceStreamConfig) -> None:
        self.stream_id = config.id
        self._sockets: list[socket.socket] = []
        try:
            for line in config.lines:
                self._sockets.append(_line_socket(line))
            interface = config.lines[0].interface
            self._sockets.append(host_socket(interface))
        except BaseException:
            self.close()
            raise
        self.fds = [each.fileno() for each in self._sockets]
        self.inlet = Inlet(self.fds, DatagramBatch(BATCH_DATAGRAMS))
        self._outlet = Outlet(self.fds[-1])
        self._server = _server_key(config.request)

    def request(self, data: bytes) -> int:
        """Ask the request server; 0, or the number of the error that kept it from being sent."""
        if self._server is None or not data:
            return 0
        return self._outlet.send(self._server, data)

    def close(self) -> None:
        if hasattr(self, "inlet"):
            self.inlet.close()
            self._outlet.close()
        for each in self._sockets:
            each.close()


def _line_socket(line: LineAddress) -> socket.socket:
    if line.group:
        return group_socket(Channel(group=line.group, port=line.port, interface=line.interface))
    return host_socket(line.interface, port=line.port)


def _server_key(address: AddressConfig | None) -> int | None:
    if address is None:
        return None
    try:
        host = socket.gethostbyname(address.host)
    except OSError as error:
        raise ConfigurationError(f"{address.host!r} is not known: {error.strerror}", where="request") from None
    return address_key((host, address.port))
