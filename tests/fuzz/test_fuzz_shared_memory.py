"""Damaged segments: the written data or an error of Penstock; never another result, and never a crash."""

import mmap
import random

import numpy as np
import pytest

from oracles.segments import contents, forged
from penstock.base.errors import OverrunError, RecordUnavailableError, RingClosedError, SharedMemoryError
from penstock.net.core.handover_protocol import decode_answer, decode_request
from penstock.shm import RegionReader, RegionWriter, RingReader, RingWriter

ROUNDS = 1_500
ROUNDS_SOAK = 300_000
PAYLOADS = [bytes([number]) * (number * 11 % 65) for number in range(40)]


@pytest.fixture
def rounds(soak: bool) -> int:
    return ROUNDS_SOAK if soak else ROUNDS


def damage(source: random.Random, memory: mmap.mmap) -> None:
    """A few bits, a stretch of noise, of zeros or of all ones, or a stretch copied from elsewhere."""
    at = source.randrange(len(memory))
    size = min(source.choice((1, 4, 8, 16, 64, 500)), len(memory) - at)
    kind = source.randrange(5)
    if kind == 0:
        memory[at] ^= 1 << source.randrange(8)
    elif kind == 1:
        memory[at : at + size] = source.randbytes(size)
    elif kind == 2:
        memory[at : at + size] = source.choice((b"\0", b"\xff")) * size
    else:
        origin = source.randrange(len(memory) - size + 1)
        memory[at : at + size] = memory[origin : origin + size]


@pytest.mark.spec("CRIT-3")
def test_a_damaged_ring_gives_the_written_events_or_an_error(rounds: int) -> None:
    source = random.Random(1)
    refused = 0
    with RingWriter.create(4_096, 64) as writer:
        writer.write_many(PAYLOADS)
        ring, doorbell = contents(writer.segment)
        with forged("ring", ring, doorbell) as (segment, maps):
            for _ in range(rounds):
                maps[0][:] = ring
                with RingReader(segment) as reader:
                    for _ in range(source.randrange(1, 4)):
                        damage(source, maps[0])
                    refused += check_ring(reader)
                try:
                    with RingReader(segment) as reader:
                        check_ring(reader)
                except SharedMemoryError:
                    refused += 1
    assert refused > rounds // 2


def check_ring(reader: RingReader) -> bool:
    """True if the reader met the damage."""
    for expected in PAYLOADS:
        try:
            payload = reader.read(0)
        except (OverrunError, RingClosedError):
            with pytest.raises((OverrunError, RingClosedError)):
                reader.read_batch(np.zeros((10, 64), np.uint8), timeout_ns=0)
            return True
        if payload is None:
            return True
        assert payload == expected
    return False


@pytest.mark.spec("ADPT-4")
def test_a_damaged_region_gives_the_written_records_or_an_error(rounds: int) -> None:
    source = random.Random(2)
    unavailable = 0
    payloads = [bytes([index + 1]) * 160 for index in range(8)]
    with RegionWriter.create(8, [64, 96]) as writer:
        for index, payload in enumerate(payloads):
            writer.write(index, payload)
        (region,) = contents(writer.segment)
        with forged("region", region) as (segment, maps):
            for _ in range(rounds):
                maps[0][:] = region
                with RegionReader(segment) as reader:
                    damage(source, maps[0])
                    for index in source.sample(range(8), 2):
                        unavailable += check_record(reader, index, payloads)
                try:
                    RegionReader(segment).close()
                except SharedMemoryError:
                    unavailable += 1
    assert unavailable > rounds // 20


def check_record(reader: RegionReader, index: int, payloads: list[bytes]) -> bool:
    """True if the reader met the damage. A whole record in another's place does not count, because it is consistent."""
    try:
        record = reader.read(index)
    except RecordUnavailableError:
        return True
    if record is None:
        return True
    assert record.payload in payloads
    return False


@pytest.mark.spec("OPS-2")
def test_the_handshake_raises_nothing_but_value_errors(rounds: int) -> None:
    source = random.Random(3)
    nonce = "A" * 43 + "="
    whole = [
        f'{{"type":"request","name":"events","nonce":"{nonce}","proof":""}}'.encode(),
        f'{{"type":"challenge","version":1,"nonce":"{nonce}","needs_secret":true}}'.encode(),
        f'{{"type":"grant","kind":"ring","fd_count":2,"proof":"{nonce}"}}'.encode(),
        b'{"type":"refusal","cause":"silent"}',
    ]
    understood = 0
    for _ in range(rounds):
        data = bytearray(source.choice(whole))
        for _ in range(source.randrange(4)):
            at = source.randrange(len(data))
            data[at : at + source.randrange(3)] = source.randbytes(source.randrange(3))
        for decode in (decode_request, decode_answer):
            try:
                understood += decode(bytes(data)) is not None
            except (ValueError, RecursionError):
                continue
    assert 0 < understood < 2 * rounds
