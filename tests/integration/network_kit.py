"""Channels that no other test uses, and waiting for a condition instead of hoping."""

import random
import socket
import time
from collections.abc import Callable

from penstock.net.udp import Channel

_chance = random.SystemRandom()


def free_channel() -> Channel:
    """A group and a port of our own on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return Channel(group=f"239.255.{_chance.randrange(256)}.{_chance.randrange(1, 255)}", port=port)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.002)
