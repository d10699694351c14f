"""Tapes with bytes changed: read to their end, or refused."""

import random

from penstock.base.errors import RemoteProtocolError
from penstock.convert import SourceBatch
from penstock.feed.core.lines.events import SessionStarted, SourceLost, SourceReady
from penstock.feed.recorded.tape import encode, read_tape


def test_changed_tapes(soak: bool) -> None:
    source = random.Random(4)
    batch = SourceBatch.from_messages([source.randbytes(source.randrange(40)) for _ in range(30)], 5, 77)
    events = (SessionStarted("day", 5), SourceReady(batch), SourceLost(35, 40, "window"), SourceReady(batch))
    tape = b"".join(encode(event) for event in events)
    read = refused = 0
    for _ in range(50_000 if soak else 500):
        changed = bytearray(tape[: source.choice([len(tape), source.randrange(len(tape))])])
        for _ in range(source.randrange(4)):
            if changed:
                changed[source.randrange(len(changed))] = source.randrange(256)
        try:
            for event in read_tape(changed):
                read += len(list(event.batch)) if isinstance(event, SourceReady) else 1
        except RemoteProtocolError:
            refused += 1
    assert read
    assert refused
