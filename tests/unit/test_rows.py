"""Messages as rows: from packets in journal records, and from a converter."""

import random
from datetime import date
from typing import Any

import numpy
import pytest

from penstock.base.crc32c import crc32c
from penstock.base.errors import LocalProtocolError
from penstock.capture import replay
from penstock.capture.core.rows import MessageRows, PacketRows, rows_of_converted
from penstock.convert import Converter, ConverterTable
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.journal import Record
from penstock.middleware import Deliver
from penstock.model import MessageModel, shipped
from penstock.wire import (
    Extension,
    MessageFlag,
    Origin,
    Packer,
    decode_origin,
    encode_extensions,
    encode_gone,
    encode_nack,
    encode_origin,
)
from unit.rows_kit import batch_of

GROUP = 0xEF010101

OLD = MessageModel.parse(
    'id = 900\nname = "sample"\nversion = 1\n'
    'field = [{ name = "number", type = "i32" }, { name = "small", type = "u8" }]'
)
NEW = MessageModel.parse(
    'id = 900\nname = "sample"\nversion = 2\n'
    'field = [{ name = "number", type = "i32" }, { name = "small", type = "u8" },'
    ' { name = "inside", type = "u16", since = 2, optional = true },'
    ' { name = "count", type = "u32", since = 2 },'
    ' { name = "price", type = "price", decimals = 2, optional = true, since = 2 }]'
)


def extensions(number: int) -> bytes:
    origin = Origin(7, 1 << 14, number % 3, 1, number // 2, number)
    return encode_extensions({Extension.HOPS: b"\1" * 16, Extension.ORIGIN: encode_origin(origin)})


def flat(rows: MessageRows) -> list[tuple[Any, ...]]:
    topics = rows.topics().to_pylist()
    places = rows.places
    assert places is not None
    return [
        (
            int(places[index]["record"]),
            int(places[index]["publisher"]),
            int(places[index]["epoch"]),
            topics[index],
            int(rows.rows[index]["model_id"]),
            rows.payload(index),
            *rows.origins[index].tolist(),
        )
        for index in range(len(rows))
    ]


def replayed(contents: list[bytes]) -> list[tuple[Any, ...]]:
    """The same rows as read by the subscriber's capture tools."""
    made = []
    for record, each in replay(Record(number, number, data) for number, data in enumerate(contents, 1)):
        for message in each.messages if isinstance(each, Deliver) else []:
            body = message.extensions.get(Extension.ORIGIN)
            origin = decode_origin(body) if body else Origin(0, 0, 0, 0, 0, 0)
            row = (origin.stream_id, origin.message_index, origin.flags, origin.term)
            made.append(
                (
                    record,
                    each.stream.publisher_id,
                    each.epoch,
                    message.topic,
                    message.model_id,
                    bytes(message.payload),
                    *row,
                    origin.source_sequence,
                    origin.message_sequence,
                )
            )
    return made


def made_up_records(seed: int) -> list[bytes]:
    """Streams of several publishers, mixed: short and long messages, keep-alives, losses, restarts."""
    chance = random.Random(seed)
    epochs = [1, 1, 1]
    packers = [Packer(publisher, GROUP + publisher % 2, 1) for publisher in (3, 4, 5)]
    queues: list[list[bytes]] = [[] for _ in packers]
    for index in range(len(packers)):
        for number in range(chance.randrange(1, 40)):
            size = chance.choice([0, 1, 8, 100, 1_400, 5_000, 20_000])
            payload = chance.randbytes(size)
            added = extensions(number) if chance.random() < 0.7 else b""
            topic = chance.choice(["a.b", "md.x.é", "q"])
            queues[index] += packers[index].add(topic, payload, model_id=chance.randrange(3), extensions=added)
            if chance.random() < 0.4 and (rest := packers[index].flush()) is not None:
                queues[index].append(rest)
            if chance.random() < 0.05:
                epochs[index] += 1
                packers[index] = Packer(index + 3, GROUP + (index + 3) % 2, epochs[index])
        rest = packers[index].flush()
        queues[index] += [rest] if rest is not None else []
    contents = []
    while any(queues):
        queue = chance.choice([each for each in queues if each])
        if chance.random() < 0.05:
            lost = queue.pop(0)
            publisher, group, epoch = (int.from_bytes(lost[a:b], "little") for a, b in ((16, 24), (24, 28), (28, 32)))
            sequence = int.from_bytes(lost[32:40], "little")
            contents.append(encode_gone(publisher, group, epoch, [(sequence, sequence)]))
        else:
            contents.append(queue.pop(0))
    return contents


@pytest.mark.spec("PIPE-1")
@pytest.mark.parametrize("seed", range(40))
def test_rows_are_the_delivered_messages_for_any_division(seed: int) -> None:
    contents = made_up_records(seed)
    chance = random.Random(seed)
    reader, found, at = PacketRows(), [], 0
    while at < len(contents):
        count = chance.randrange(1, 30)
        found += flat(reader.take(batch_of(contents[at : at + count], at + 1, prefix=b"x" * chance.randrange(9))))
        at += count
    assert found == replayed(contents)
    assert sum(reader.streams["packets"]) + sum(reader.streams["packets_lost"]) == len(contents)


def test_losses_are_reported() -> None:
    packer = Packer(7, GROUP, 1)
    whole = [*packer.add("a", b"x" * 4_000), packer.flush() or b""]
    contents = [whole[0], encode_gone(7, GROUP, 1, [(2, 2)]), *whole[2:]]
    reader = PacketRows()
    rows = reader.take(batch_of(contents))
    assert [(each.record, each.first, each.last) for each in reader.lost] == [(2, 2, 2)]
    assert len(rows) == 0
    assert {each.code for each in reader.bad} == {"fragment"}
    stream = reader.streams[0]
    assert (stream["packets"], stream["packets_lost"], stream["first_packet"], stream["last_packet"]) == (2, 1, 1, 3)


def test_damaged_records_are_reported_with_their_place_and_the_rest_is_read() -> None:
    packer = Packer(7, GROUP, 1)
    packer.add("a", b"1", extensions=encode_extensions({Extension.ORIGIN: b"short"}))
    packer.add("a", b"2")
    mixed = packer.flush() or b""
    packer.add("a", b"3")
    damaged = bytearray(packer.flush() or b"")
    damaged[-1] ^= 1
    reader = PacketRows()
    rows = reader.take(batch_of([b"", b"garbage" * 20, encode_nack(7, GROUP, 1, [(1, 1)]), bytes(damaged), mixed]))
    assert [rows.payload(index) for index in range(len(rows))] == [b"2"]
    told = sorted((each.record, each.code, each.excerpt[:7]) for each in reader.bad)
    assert [each[:2] for each in told] == [
        (1, "foreign"),
        (2, "foreign"),
        (3, "unexpected"),
        (4, "checksum"),
        (5, "value"),
    ]
    assert told[1][2] == b"garbage"
    assert reader.take(batch_of([])).kinds() == set()
    assert not reader.bad


def test_repeated_and_late_packets_are_counted() -> None:
    packer = Packer(7, GROUP, 1)
    packets = []
    for number in range(6):
        packer.add("a", bytes([number]))
        packets.append(packer.flush() or b"")
    reader = PacketRows()
    reader.take(batch_of([packets[index] for index in (0, 1, 3, 2, 2, 0, 5)]))
    stream = reader.streams[0]
    assert stream["packets_reordered"] == 1
    assert stream["packets_repeated"] == 2
    assert stream["packets_leapt"] == 2  # one of which was late


def test_many_streams_are_kept_apart() -> None:
    contents = []
    for publisher in range(1, 500):
        packer = Packer(publisher, GROUP, publisher % 5)
        packer.add("a", b"1")
        contents.append(packer.flush() or b"")
    reader = PacketRows()
    reader.take(batch_of(contents * 2))
    assert reader.streams["publisher"].tolist() == list(range(1, 500))
    assert set(reader.streams["packets_repeated"].tolist()) == {1}


def packet_of(*messages: tuple[MessageModel, bytes, int]) -> bytes:
    packer = Packer(7, GROUP, 1, packet_size_max=9_000)
    for model, record, flags in messages:
        packer.add("a", record, model_id=model.id, model_version=model.version, flags=flags)
    return packer.flush() or b""


def test_records_of_older_versions_are_widened() -> None:
    old = bytearray(bytes(OLD.new(number=-1, small=9)))
    old[5:] = b"\xff" * (len(old) - 5)  # space that version 1 does not use
    new = bytes(NEW.new(number=5, small=1, inside=7, count=3, price=1))
    content = packet_of(
        (OLD, bytes(old), 0), (NEW, new + b"later", 0), (NEW, new[:-1], 0), (NEW, new, 4), (OLD, b"", 0)
    )
    rows = PacketRows().take(batch_of([content]))
    assert rows.kinds() == {(900, 1), (900, 2)}
    assert rows.sound(NEW).tolist() == [True, True, False, False, False]
    assert rows.sound(OLD).tolist() == [True, True, True, False, False]
    assert not rows.sound(shipped("trade")).any()
    records = rows.select(rows.sound(NEW)).records(NEW)
    assert records["number"].tolist() == [-1, 5]
    assert records["inside"].tolist() == [2**16 - 1, 7]
    assert records["count"].tolist() == [0, 3]
    assert records["price"].tolist() == [-(2**63), 100]
    assert rows.select(rows.sound(OLD)).records(OLD)["small"].tolist() == [9, 1, 1]
    assert MessageFlag.SEALED == 4


def test_fields_are_those_of_the_records_in_any_layout() -> None:
    made = [bytes(NEW.new(number=number, small=number % 200, count=3 * number)) for number in range(150)]
    older = bytes(OLD.new(number=1_000, small=1)) + b"\xff" * 40  # space that version 1 does not use
    even = [packet_of(*((NEW, record, 0) for record in made))]
    uneven = [packet_of(*((NEW, record, 0) for record in made[at : at + 9])) for at in range(0, 150, 9)]
    longer = [packet_of(*((NEW, record + bytes(number % 2 * 8), 0) for number, record in enumerate(made)))]
    mixed = [*uneven, packet_of((OLD, older, 0), (NEW, made[1], 0))]
    for contents, count in ((even, 150), (uneven, 150), (longer, 150), (mixed, 152), (uneven[:0], 0), ([mixed[-1]], 2)):
        rows = PacketRows().take(batch_of(contents))
        assert len(rows) == count
        for names in (["number"], ["count"], ["number", "small"], ["number", "price", "count"]):
            fields, records = rows.fields(NEW, names), rows.records(NEW)
            assert [fields[name].tolist() for name in names] == [records[name].tolist() for name in names]


def test_topics_are_utf8_to_their_last_byte() -> None:
    for size in range(1, 20):
        for at in range(size):
            topic = "a" * at + "é" + "b" * (size - at - 1)
            packer = Packer(7, GROUP, 1)
            packer.add(topic, b"1")
            content = packer.flush() or b""
            reader = PacketRows()
            assert reader.take(batch_of([content])).topics().to_pylist() == [topic]
            bad = bytearray(content)
            bad[bad.index(topic.encode()) + at] = 0xFF
            bad[12:16] = crc32c(bad[16:], crc32c(bad[:12])).to_bytes(4, "little")
            assert not len(reader.take(batch_of([bytes(bad)])))
            assert [each.code for each in reader.bad] == ["length"]


@pytest.mark.spec("PIPE-1", "PIPE-4")
def test_messages_of_a_converter_are_the_same_rows() -> None:
    converter = Converter(ConverterTable.load("itch").compile(), 7, trading_date=date(2019, 1, 30))
    converted = converter.convert(ItchGenerator(GeneratorConfig(messages=3_000, seed=3)).take(3_000))
    rows = rows_of_converted(converted)
    topics = rows.topics().to_pylist()
    told = [
        (topics[i], *rows.origins[i][["stream_id", "seq", "source_seq", "part"]].tolist(), rows.payload(i))
        for i in range(len(rows))
    ]
    expected = [
        (topic, origin.stream_id, origin.message_sequence, origin.source_sequence, origin.message_index, record)
        for topic, origin, _, record in converted
    ]
    assert told == expected
    assert len(told) > 1_000
    assert rows.places is None
    trade = shipped("trade")
    trades = rows.select(rows.sound(trade))
    assert trades.records(trade).tobytes() == b"".join(trades.payload(i) for i in range(len(trades)))


def test_rows_from_other_sources_are_checked() -> None:
    rows = PacketRows().take(batch_of([packet_of((OLD, bytes(OLD.new(number=1)), 0))]))
    short = numpy.zeros(4, numpy.uint8)
    outside = MessageRows(short, short, rows.rows)
    for read in (lambda: outside.topics(), lambda: outside.records(OLD), lambda: outside.fields(OLD, ["small"])):
        with pytest.raises(LocalProtocolError):
            read()
