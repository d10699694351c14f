"""The bytes of frames, handshakes and clock packets do not change; an independent decoder reads them too."""

from pathlib import Path
from typing import Any

import pytest

from interop import control_decoder
from penstock.filter.core.control import PROTOCOL, Registered
from penstock.net.core.clock import ClockPacket, ClockPacketKind, decode_clock_packet, encode_clock_packet
from penstock.net.core.control import Goodbye, encode_session
from penstock.net.core.events import BytesReceived, Close, Connected, Opened
from penstock.net.core.framing import FrameDecoder, encode_frame
from penstock.net.secret import Secret
from unit.net_kit import converse, of, sent, session

GOLDEN = Path(__file__).parent / "golden_control"
KEY = b"sixteen bytes or more"
REQUEST = ClockPacket(ClockPacketKind.REQUEST, 0x0123456789ABCDEF, 1_700_000_000_000_000_000)
RESPONSE = ClockPacket(
    ClockPacketKind.RESPONSE, REQUEST.cookie, REQUEST.t1, 1_700_000_000_000_123_456, 1_700_000_000_000_123_999
)

REGISTERED = Registered(
    "beside", 7, "mask", "filter", "10.0.0.9", 7_000, "239.255.75.1", 7_403, 3, key=b"k" * 16, group_key=b"g" * 16
)


def golden(name: str) -> list[bytes]:
    blocks = (GOLDEN / f"{name}.hex").read_text().split("\n\n")
    return [bytes.fromhex("".join(line for line in block.splitlines() if line[:1] != "#")) for block in blocks]


def handshake() -> list[bytes]:
    """The client's hello, the server's hello, the client's proof, the server's proof."""
    client, server = session("client", secret=Secret(KEY)), session("server", secret=Secret(KEY))
    client_said, server_said = converse(client, server)
    assert of(Opened, client_said)
    c, s = FrameDecoder(2**20).feed(sent(client_said)), FrameDecoder(2**20).feed(sent(server_said))
    return [encode_frame(payload) for payload in (c[0], s[0], c[1], s[1])]


def clock() -> list[bytes]:
    return [encode_clock_packet(packet) for packet in (REQUEST, RESPONSE)]


def framed() -> list[bytes]:
    return [encode_frame(payload) for payload in (b"", b"abc", encode_session(Goodbye("done")))]


def filter_registered() -> list[bytes]:
    return [encode_frame(PROTOCOL.encode(REGISTERED, 2**16))]


MADE: dict[str, Any] = {
    "control_handshake": handshake,
    "clock_packets": clock,
    "filter_registered": filter_registered,
    "frames": framed,
}


def test_every_golden_file_has_a_generator() -> None:
    assert {path.stem for path in GOLDEN.glob("*.hex")} == set(MADE)


@pytest.mark.parametrize("name", MADE)
def test_encoded_frames_equal_the_golden_ones(name: str) -> None:
    assert [data.hex() for data in MADE[name]()] == [data.hex() for data in golden(name)]


@pytest.mark.spec("OPS-2")
def test_the_golden_handshake_has_the_expected_fields() -> None:
    frames = golden("control_handshake")
    hello, answer, client_proof, server_proof = (
        control_decoder.message(control_decoder.frames(frame)[0]) for frame in frames
    )
    expected = {"type": "hello", "protocol": "echo", "major": 1, "minor": 2, "wants_proof": True}
    assert hello == {**expected, "node": "the-client", "nonce": b"c" * 32}
    assert answer == {**expected, "node": "the-server", "nonce": b"s" * 32}
    for side, message in (("client", client_proof), ("server", server_proof)):
        assert message == {"type": "proof", "proof": control_decoder.proof(KEY, side, frames[0], frames[1])}


@pytest.mark.spec("AUTH-1")
def test_the_golden_registration_has_the_keys_of_its_datagrams() -> None:
    (frame,) = golden("filter_registered")
    message = control_decoder.message(control_decoder.frames(frame)[0])
    assert (message["type"], message["key"], message["group_key"]) == ("registered", b"k" * 16, b"g" * 16)
    assert PROTOCOL.version == (2, 0)


def test_the_golden_handshake_opens_a_session_of_the_current_version() -> None:
    """The bytes of the previous version are accepted; they are replaced only with a new major version."""
    hello, _, proof, _ = golden("control_handshake")
    server = session("server", secret=Secret(KEY))
    server.handle(Connected(), 0)
    server.handle(BytesReceived(hello), 0)
    assert of(Opened, server.handle(BytesReceived(proof), 0))
    goodbye = golden("frames")[2]
    assert server.handle(BytesReceived(goodbye), 0)[0].error is None  # type: ignore[union-attr]
    assert server.handle(Close(), 0) == []


def test_the_golden_frames_and_clock_packets_have_the_expected_fields() -> None:
    empty, abc, goodbye = (control_decoder.frames(data)[0] for data in golden("frames"))
    assert (empty, abc) == (b"", b"abc")
    assert control_decoder.message(goodbye) == {"type": "goodbye", "reason": "done"}
    request, response = golden("clock_packets")
    times = {"cookie": REQUEST.cookie, "t1": REQUEST.t1}
    assert control_decoder.clock_packet(request) == {"kind": 1, **times, "t2": 0, "t3": 0}
    assert control_decoder.clock_packet(response) == {"kind": 2, **times, "t2": RESPONSE.t2, "t3": RESPONSE.t3}
    assert [decode_clock_packet(data) for data in (request, response)] == [REQUEST, RESPONSE]
