"""What clients did and what they were told, one line each, in the order in which it happened.

A line is written before a client calls something, and another when it knows what came of it: where the second is
missing (the link was lost, the client was killed) it may have happened or not. Times are of the machine's monotonic
clock, so that those of several processes can be put in one order.
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
    """A message is handed over. Numbers of a publisher rise in the order in which it did that."""

    key: str
    publisher: str
    number: int
    topic: str
    wanted: Wanted = "none"
    transaction: str = ""


class Acknowledged(Line, frozen=True):
    key: str
    outcome: str
    """As publish() says it; "acknowledged" where only that much is known, "refused" if the router did not take it."""


class Delivered(Line, frozen=True):
    """A message came to a consumer; the consumer checks that it is what its key says."""

    delivery: str
    endpoint: str
    flow: str
    """One opening of a flow: what comes on another one comes over another link."""

    key: str
    id: int = 0
    """The router's: of one that was sent again to another router there may be two copies."""

    is_redelivered: bool = False


class Settled(Line, frozen=True):
    delivery: str
    what: What
    transaction: str = ""
    is_late: bool = False
    """A second line: the message had come on a link that is lost; this does nothing, and it comes again."""


class Ending(Line, frozen=True):
    """A transaction's end is asked for."""

    transaction: str
    is_commit: bool


class Ended(Line, frozen=True):
    transaction: str
    outcome: Literal["committed", "rolled back"]
    treatment: str = ""


class Fault(Line, frozen=True):
    """For whoever reads it."""

    what: str


AnyLine: TypeAlias = Published | Acknowledged | Delivered | Settled | Ending | Ended | Fault


class History:
    """A file that is written line by line; a process that is killed leaves what it wrote."""

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
