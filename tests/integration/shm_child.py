"""What the other processes of test_shared_memory.py do: `python shm_child.py ROLE PATH …`.

Payloads are one 64-bit number, repeated: a mixture of two payloads is detected.
"""

import json
import os
import signal
import struct
import sys
import time
from collections.abc import Callable

from penstock.base.errors import RecordUnavailableError
from penstock.net.live.handover import Handover, receive_segment
from penstock.shm import RegionReader, RegionWriter, RingReader, RingWriter

PAYLOAD_SIZE = 128
PART_SIZES = [48, 32, 48]
DIE_SIZE = 1 << 15  # writing takes so long that a kill nearly always interrupts a write
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


def write_partly(path: str) -> None:
    """Number alternate updates of bid and common, and of common and ask, until killed."""
    bid, common, ask = PART_SIZES
    with RegionWriter.create(1, PART_SIZES) as region, Handover(path) as handover:
        region.write(0, payload_of(1))
        handover.offer("region", region.segment)
        say("ready")
        number = 1
        while True:
            number += 1
            region.write(0, payload_of(number)[: bid + common])
            number += 1
            region.write(0, payload_of(number)[: common + ask], first_part=1)


def read_partly(path: str, reads: str) -> None:
    """Check that each part belongs to one update, and that the common part belongs to the newest update, like the side
    written with it."""
    torn = mixed = last = 0
    with receive_segment(path, "region") as segment, RegionReader(segment) as region:
        for _ in range(int(reads)):
            record = region.read(0, timeout_ns=10 * NS_PER_SECOND)
            assert record is not None
            newest = record.update_count
            sides = (newest, newest, newest - 1) if newest % 2 == 0 else (max(1, newest - 1), newest, newest)
            torn += record.payload != b"".join(
                struct.pack("<Q", number) * (size // 8)
                for number, size in zip(record.part_update_counts, PART_SIZES, strict=True)
            )
            mixed += record.part_update_counts != sides
            mixed += newest < last
            last = newest
    say(json.dumps({"torn": torn, "mixed": mixed, "last": last}))


def die_inside(path: str) -> None:
    """Write a region of two records: the first one whole, the second one until this process is killed inside."""
    with RegionWriter.create(2, [DIE_SIZE]) as region, Handover(path) as handover:
        region.write(0, bytes(DIE_SIZE))
        handover.offer("region", region.segment)
        say("ready")
        payload = bytes(DIE_SIZE)
        while True:
            region.write(1, payload)


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
    role.__name__: role
    for role in (
        write_ring,
        overrun_ring,
        write_region,
        read_region,
        write_partly,
        read_partly,
        die_inside,
        read_ring,
        repair_region,
    )
}

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background of a shell ignores SIGINT
    ROLES[sys.argv[1]](*sys.argv[2:])
