"""Random bytes, and valid input with damage, for every decoder of feeds: refused with an error of its own, or read."""

import contextlib
import gzip
import io
import random

from penstock.base.clock import NS_PER_MS
from penstock.base.core import Tick
from penstock.base.errors import FrameError, PacketError, RemoteProtocolError
from penstock.feed.config import LineConfig
from penstock.feed.core.lines.arbiter import LineArbiter, LineDatagrams, SourceLost, SourceReady
from penstock.feed.core.soup_session import SoupClientSession, SoupServerSession
from penstock.feed.formats import DATAGRAM_FORMATS
from penstock.feed.formats.csvticks import CsvTicks
from penstock.feed.formats.iextp import DEEP_1_0, IexStream, encode_segment
from penstock.feed.formats.itchfile import ItchFile
from penstock.feed.formats.mold import decode_request, encode_end, encode_packet
from penstock.feed.formats.pcap import CaptureReader
from penstock.feed.formats.soup import SoupAccepted, SoupFrames, SoupLogin, encode_accepted, encode_login, encode_soup
from penstock.feed.formats.stream import ByteStream
from penstock.feed.recorded.inspect import inspect
from penstock.net.core.events import BytesReceived, Connected, Disconnect, Received
from penstock.wire import DatagramBatch
from unit.test_feed_files import frame, pcap, pcapng

MESSAGES = [b"one", b"", b"three" * 9]
GOOD = [
    encode_packet("s", 1, MESSAGES),
    encode_packet("s", 4, []),
    encode_end("s", 4),
    encode_segment(IexStream(DEEP_1_0, 1, 2), 1, MESSAGES),
    encode_segment(IexStream(DEEP_1_0, 1, 2), 4, []),
]


def broken(chance: random.Random, data: bytes) -> bytes:
    """The data truncated, extended, or with some bytes changed."""
    content = bytearray(data)
    for _ in range(chance.randrange(4)):
        if content:
            content[chance.randrange(len(content))] = chance.choice([0, 1, 255, chance.randrange(256)])
    if chance.random() < 0.3:
        del content[chance.randrange(len(content) + 1) :]
    if chance.random() < 0.2:
        content += chance.randbytes(chance.randrange(40))
    return bytes(content)


def test_datagrams(soak: bool) -> None:
    chance = random.Random(11)
    refused = 0
    for _ in range(200_000 if soak else 5_000):
        data = chance.choice([broken(chance, chance.choice(GOOD)), chance.randbytes(chance.randrange(80))])
        for framing in DATAGRAM_FORMATS.values():
            try:
                segment = framing.decode(data)
            except PacketError:
                refused += 1
                continue
            assert sum(len(message) + 2 for message in segment.messages) < len(data)
        try:
            request = decode_request(data)
            assert request.count > 0
        except PacketError:
            refused += 1
    assert refused > 1_000


def test_line_arbitration_keeps_the_order_for_any_datagrams(soak: bool) -> None:
    chance = random.Random(12)
    for _ in range(2_000 if soak else 100):
        arbiter = LineArbiter(LineConfig(window_messages_max=64), DATAGRAM_FORMATS["moldudp64"])
        batch = DatagramBatch(16)
        now_ns, expected = 0, None
        for _ in range(40):
            batch.clear()
            for _ in range(chance.randrange(1, 16)):
                first = chance.choice([chance.randrange(1, 30), chance.randrange(200), 2**63 - 1])
                session = chance.choice(["s", "s", "s", "t", "u"])
                good = encode_packet(session, first, [b"x"] * chance.randrange(5))
                data = broken(chance, good) if chance.random() < 0.2 else good
                batch.append(data, ("anybody", 1), 0, chance.randrange(3))
            now_ns += chance.randrange(50 * NS_PER_MS)
            for event in arbiter.handle(LineDatagrams(batch), now_ns) + arbiter.handle(Tick(), now_ns):
                match event:
                    case SourceReady():
                        for sequence, _ in event.batch:
                            assert expected in (None, sequence)
                            expected = sequence + 1
                    case SourceLost():
                        assert expected in (None, event.first)
                        expected = event.last + 1
                    case _ if type(event).__name__.startswith("Session"):
                        expected = None


def test_files_and_captures(soak: bool) -> None:
    chance = random.Random(13)
    frames = [frame(data) for data in GOOD] + [frame(b"x", vlans=2)]
    wholes = [pcap(frames), pcap(frames, ">", 0xA1B23C4D), pcapng(frames), pcapng(frames, ">")]
    for _ in range(20_000 if soak else 600):
        data = broken(chance, chance.choice(wholes))
        if chance.random() < 0.3:
            data = broken(chance, gzip.compress(data, 1))
        if data[:2] != b"\x1f\x8b" and chance.random() < 0.9:
            data = chance.choice(wholes)[:4] + data[4:]
        try:
            list(CaptureReader(ByteStream(io.BytesIO(data))))
            inspect(ByteStream(io.BytesIO(data)), "capture")
        except RemoteProtocolError:
            pass_for_no_capture = ByteStream(io.BytesIO(data)).peek(4)
            assert pass_for_no_capture not in {whole[:4] for whole in wholes}
        for reader in (ItchFile, CsvTicks):
            file = reader(ByteStream(io.BytesIO(data)))
            assert sum(len(batch) for batch in file) < file.next_sequence


def conversation(chance: random.Random) -> bytes:
    parts = [
        encode_login(SoupLogin("me", "secret")),
        encode_accepted(SoupAccepted("s", 1)),
        *(encode_soup(kind, chance.randbytes(chance.randrange(60))) for kind in (b"S", b"S", b"H", b"U", b"+", b"J")),
        encode_soup(b"Z"),
    ]
    chance.shuffle(parts)
    return broken(chance, b"".join(parts))


def test_soup_gives_the_same_messages_for_any_division(soak: bool) -> None:
    chance = random.Random(14)

    def admit(login: SoupLogin) -> SoupAccepted | str:
        return SoupAccepted("s", 1) if login.user == "me" else "A"

    for _ in range(20_000 if soak else 500):
        data = conversation(chance)
        cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(5)))
        for make in (lambda: SoupServerSession(admit), lambda: SoupClientSession(SoupLogin("me", "secret"))):
            stories = []
            for pieces in ([data], [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]):
                session = make()
                session.handle(Connected(), 0)
                told: list[object] = []
                for piece in pieces:
                    for each in session.handle(BytesReceived(piece), 0):
                        told += list(each.message) if isinstance(each, Received) else [each]
                stories.append([each.cause if isinstance(each, Disconnect) else each for each in told])
            assert stories[0] == stories[1], data.hex()
        with contextlib.suppress(FrameError):
            assert sum(len(content) + 3 for _, content in SoupFrames().packets(data)) <= len(data)
