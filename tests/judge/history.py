"""The calls of clients and their results, one line each, in the order of events.

A line is written before a client's call, and another when the client knows the result: without the second line (the
link was lost, the client was killed) the call may or may not have taken effect. Times are of the machine's monotonic
clock, so that those of several processes can be ordered.
"""

import threading
import time
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

Wanted: TypeAlias = Literal["none", "asynchronous", "synchronous"]
What: TypeAlias = Literal["ack", "nack", "reject"]


class Line(msgspec.Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    at: int = 0


class Published(Line, frozen=True):
    """A message is passed to the client. Numbers of a publisher rise in the order of these calls."""

    key: str
    publisher: str
    number: int
    topic: str
    wanted: Wanted = "none"
    transaction: str = ""


class Acknowledged(Line, frozen=True):
    key: str
    outcome: str
    """The result of publish(); "acknowledged" if no more is known, "refused" if the router refused the message."""


class Delivered(Line, frozen=True):
    """A message was delivered to a consumer; the consumer checks that it matches its key."""

    delivery: str
    endpoint: str
    flow: str
    """One opening of a flow: deliveries on another opening use another link."""

    key: str
    id: int = 0
    """The router's id: a message that was sent again to another router may have two copies."""

    is_redelivered: bool = False


class Settled(Line, frozen=True):
    delivery: str
    what: What
    transaction: str = ""
    is_late: bool = False
    """A second line: the message was delivered on a lost link; its settlement has no effect, and it is redelivered."""


class Ending(Line, frozen=True):
    """A commit or rollback is requested."""

    transaction: str
    is_commit: bool


class Ended(Line, frozen=True):
    transaction: str
    outcome: Literal["committed", "rolled back"]
    treatment: str = ""


class Fault(Line, frozen=True):
    """For a human reader."""

    what: str


AnyLine: TypeAlias = Published | Acknowledged | Delivered | Settled | Ending | Ended | Fault


class History:
    """A file that is written line by line; a killed process leaves all lines written before."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()

    def write(self, line: AnyLine) -> None:
        with self._lock:
            stamped = msgspec.structs.replace(line, at=time.monotonic_ns())
            self._file.write(self._encoder.encode(stamped) + b"\n")

    def close(self) -> None:
        self._file.close()


def read_history(*paths: Path) -> list[AnyLine]:
    """The lines of all files, in order. The last line of a file may be incomplete: its writer was killed."""
    decoder = msgspec.json.Decoder(AnyLine)
    found: list[AnyLine] = []
    for path in paths:
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        found += [decoder.decode(line) for line in whole.splitlines()]
    return sorted(found, key=lambda line: line.at)
