"""What the other processes of test_shared_memory.py do: `python shm_child.py ROLE PATH …`.

Payloads are one 64-bit number, repeated: a mixture of two would show.
"""

import json
import os
import signal
import struct
import sys
import time
from collections.abc import Callable

from penstock.base.errors import RecordUnavailableError
from penstock.net.handover import Handover, receive_segment
from penstock.shm import RegionReader, RegionWriter, RingReader, RingWriter

PAYLOAD_SIZE = 128
PART_SIZES = [48, 32, 48]
NS_PER_SECOND = 1_000_000_000
RING_CAPACITY = 1 << 26


def payload_of(number: int) -> bytes:
    return struct.pack("<Q", number) * (PAYLOAD_SIZE // 8)


def is_whole(payload: bytes) -> bool:
    return payload == payload[:8] * (PAYLOAD_SIZE // 8)


def write_ring(path: str) -> None:
    """Number events until killed."""
    with RingWriter.create(RING_CAPACITY, PAYLOAD_SIZE) as ring, Handover(path) as handover:
        handover.offer("ring", ring.segment)
        say("ready")
        while not handover.consumers():
            time.sleep(0.001)
        number = 0
        while True:
            number += 1
            ring.write(payload_of(number))


def overrun_ring(path: str) -> None:
    """Number events in a small ring, lap after lap, and start it again now and then, until killed."""
    with RingWriter.create(1 << 16, PAYLOAD_SIZE) as ring, Handover(path) as handover:
        handover.offer("ring", ring.segment)
        say("ready")
        while True:
            while ring.next_sequence < 3_000:
                ring.write(payload_of(ring.next_sequence))
            ring.restart()


def write_region(path: str) -> None:
    """Number the updates of one record until killed."""
    with RegionWriter.create(1, PART_SIZES) as region, Handover(path) as handover:
        region.write(0, payload_of(0))
        handover.offer("region", region.segment)
        say("ready")
        number = 0
        while True:
            number += 1
            region.write(0, payload_of(number))


def read_region(path: str, reads: str) -> None:
    torn = backwards = unavailable = last = 0
    with receive_segment(path, "region") as segment, RegionReader(segment) as region:
        for _ in range(int(reads)):
            try:
                record = region.read(0, timeout_ns=10 * NS_PER_SECOND)
            except RecordUnavailableError:
                unavailable += 1
                continue
            assert record is not None
            number = int.from_bytes(record.payload[:8], "little")
            torn += not is_whole(record.payload) or record.update_count != number + 1
            backwards += number < last
            last = number
    say(json.dumps({"torn": torn, "backwards": backwards, "unavailable": unavailable, "last": last}))


def read_ring(path: str, wait: str) -> None:
    """Read until killed or interrupted."""
    with receive_segment(path, "ring") as segment, RingReader(segment, wait=wait) as ring:  # type: ignore[arg-type]
        try:
            say("ready")
            for _ in ring:
                pass
        except KeyboardInterrupt:
            say("interrupted")


def repair_region(deaths: str) -> None:
    """Kill writers of one region until so many died inside a write; repair it each time."""
    rounds = inside = torn = 0
    with RegionWriter.create(1, PART_SIZES) as region, RegionReader(region.segment) as reader:
        region.write(0, payload_of(0))
        while inside < int(deaths) and rounds < 5_000:
            rounds += 1
            child = os.fork()
            if child == 0:
                write_for_ever(region)
            number = region_number(reader)
            while region_number(reader) == number:
                pass
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            try:
                record = reader.read(0)
                torn += record is None or not is_whole(record.payload)
            except RecordUnavailableError:
                inside += 1
            region.write(0, payload_of(rounds))
            record = reader.read(0)
            assert record is not None
            assert record.payload == payload_of(rounds)
    say(json.dumps({"inside": inside, "torn": torn}))


def write_for_ever(region: RegionWriter) -> None:
    number = 0
    while True:
        number += 1
        region.write(0, payload_of(number))


def region_number(reader: RegionReader) -> int:
    record = reader.read(0, timeout_ns=10 * NS_PER_SECOND)
    assert record is not None
    return record.update_count


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


ROLES: dict[str, Callable[..., None]] = {
    role.__name__: role for role in (write_ring, overrun_ring, write_region, read_region, read_ring, repair_region)
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
