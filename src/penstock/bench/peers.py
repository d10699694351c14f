"""What others do for the same job, measured the same way in the same run. `make bench` installs them."""

import importlib.util
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from penstock.bench.pair import PAYLOAD_SIZE, Report, latency_ns, percentiles_ns, reading, send_paced


def is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def zmq_latency(endpoint: str, count: int, rate: float) -> Any:
    """Median and 99th percentile of pyzmq, one way, PUSH to PULL; `endpoint` is tcp://127.0.0.1 or an ipc:// path."""
    return _zmq(_read_zmq_latencies, endpoint, count, lambda send: send_paced(send, count, rate))


def zmq_rate(endpoint: str, count: int) -> float:
    """Messages a second of pyzmq, flat out."""

    def flat_out(send: Callable[[bytes], None]) -> None:
        payload = bytes(PAYLOAD_SIZE)
        for _ in range(count):
            send(payload)

    rate: float = _zmq(_read_zmq_rate, endpoint, count, flat_out)
    return rate


def _zmq(reader: Any, endpoint: str, count: int, write: Callable[[Callable[[bytes], None]], None]) -> Any:
    import zmq

    with reading(reader, (endpoint, count)) as process, zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.connect(process.report())
        write(socket.send)
        return process.report()


def _zmq_reader(endpoint: str, report: Report) -> Any:
    import zmq

    socket: Any = zmq.Context.instance().socket(zmq.PULL)
    socket.setsockopt(zmq.RCVHWM, 0)
    if endpoint.startswith("tcp"):
        report(f"{endpoint}:{socket.bind_to_random_port(endpoint)}")
    else:
        socket.bind(endpoint)
        report(endpoint)
    return socket


def _read_zmq_latencies(report: Report, argument: tuple[str, int]) -> Any:
    endpoint, count = argument
    with closing(_zmq_reader(endpoint, report)) as socket:
        return percentiles_ns([latency_ns(socket.recv()) for _ in range(count)])


def _read_zmq_rate(report: Report, argument: tuple[str, int]) -> float:
    endpoint, count = argument
    with closing(_zmq_reader(endpoint, report)) as socket:
        socket.recv()
        started = time.perf_counter()
        for _ in range(count - 1):
            socket.recv()
        return (count - 1) / (time.perf_counter() - started)
