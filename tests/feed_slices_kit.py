"""Recorded feeds to be sliced, and the messages that a converter makes of the whole file."""

import gzip
from collections.abc import Iterable
from pathlib import Path

from penstock.capture.core.rows import MessageRows
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.feed.formats.mold import encode_end, encode_packet
from penstock.middleware.core.batch import Packable
from penstock.spark.feedslices import Conversion, FeedConverter, FeedOptions, FeedReader, FeedSlice, open_as_told

DAY = "2024-01-02"
ITCH = Conversion("itch", trading_date=DAY)

Message = tuple[str, bytes, int, bytes]
"""Topic, ORIGIN, model id, record: every byte of a message."""


def write_day(path: Path, messages: int = 5_000, seed: int = 3, symbols: int = 20) -> bytes:
    """A generated day of ITCH."""
    generator = ItchGenerator(GeneratorConfig(seed=seed, symbols=symbols, messages=messages))
    data = b""
    while blocks := bytes(generator.blocks()):
        data += blocks
    opener = gzip.compress(data) if path.suffix == ".gz" else data
    path.write_bytes(opener)
    return data


def blocks_of(data: bytes) -> list[bytes]:
    messages = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        messages.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    return messages


def pcap_of(datagrams: Iterable[tuple[int, int, bytes]]) -> bytes:
    """A capture with (time in ns, line, datagram) of each frame, to 239.1.1.1 or .2, port 5000."""
    made = [bytes.fromhex("4d3cb2a1") + (2).to_bytes(2, "little") + (4).to_bytes(2, "little") + bytes(8)]
    made.append((65_535).to_bytes(4, "little") + (101).to_bytes(4, "little"))
    for time_ns, line, data in datagrams:
        udp = (6_000).to_bytes(2, "big") + (5_000).to_bytes(2, "big") + (8 + len(data)).to_bytes(2, "big") + bytes(2)
        size = 20 + len(udp) + len(data)
        ip = (
            b"\x45\0"
            + size.to_bytes(2, "big")
            + bytes(5)
            + b"\x11"
            + bytes(2)
            + bytes([10, 0, 0, 1, 239, 1, 1, 1 + line])
        )
        frame = ip + udp + data
        seconds, fraction = divmod(time_ns, 10**9)
        made += [each.to_bytes(4, "little") for each in (seconds, fraction, len(frame), len(frame))] + [frame]
    return b"".join(made)


def mold_day(messages: list[bytes], session: str = "DAY", first: int = 1, per_datagram: int = 7) -> list[bytes]:
    starts = range(0, len(messages), per_datagram)
    datagrams = [encode_packet(session, first + at, messages[at : at + per_datagram]) for at in starts]
    return [*datagrams, encode_end(session, first + len(messages))]


PLACES = ["topic_offset", "topic_size", "extensions_offset", "extensions_size", "payload_offset", "payload_size"]


def messages_of(made: Packable | MessageRows) -> list[Message]:
    topics, payloads = bytes(made.topic_data), bytes(made.payloads)
    return [
        (topics[t : t + t_size].decode(), payloads[o : o + o_size], model_id, payloads[p : p + p_size])
        for t, t_size, o, o_size, p, p_size, model_id in made.rows[[*PLACES, "model_id"]].tolist()
    ]


def converted_whole(path: Path, conversion: Conversion = ITCH, options: FeedOptions | None = None) -> list[Message]:
    """The messages that one converter makes of the file, from the first to the last."""
    feed = FeedConverter(conversion.load()[1], conversion)
    made = []
    with open_as_told(path, options or FeedOptions()) as source:
        for event in source:
            for batch in feed.take(event):
                made += messages_of(feed.converter.convert(batch))
    return made


def converted_slices(slices: Iterable[FeedSlice], models: list[str] | None = None) -> list[Message]:
    made = []
    for piece in slices:
        reader = FeedReader(piece, models)
        for rows in reader:
            made += messages_of(rows)
        assert reader.account.is_balanced, reader.account
        assert piece.messages in (-1, reader.account.taken)
    return made
