"""Control messages of a protocol do not change: golden bytes, decoded by code written from docs/reference/protocol
alone."""

from pathlib import Path
from typing import Any, get_args

from interop import control_decoder
from penstock.net.core.control import ControlProtocol
from penstock.net.core.framing import FrameDecoder, encode_frame


def check_golden(
    protocol: ControlProtocol[Any], kinds: Any, messages: dict[str, tuple[Any, dict[str, Any]]], golden: Path, size: int
) -> None:
    """`messages` has one of each kind, by its type: the message, and the fields that an independent reader finds in it.
    The file `golden` has a line for each: its type, and its frame in hexadecimal digits."""
    lines = (line.split() for line in golden.read_text().splitlines())
    frames = {name: bytes.fromhex(data) for name, data in lines}
    assert len(messages) == len(get_args(kinds)) == len({type(message) for message, _ in messages.values()})
    assert list(frames) == list(messages)
    for name, (message, says) in messages.items():
        assert encode_frame(protocol.encode(message, size)).hex() == frames[name].hex(), name
        (payload,) = control_decoder.frames(frames[name])
        assert payload[0] >= 0x80, "the first byte distinguishes it from a data frame"
        assert control_decoder.message(payload) == {"type": name, **says}
        (payload,) = FrameDecoder(size).feed(frames[name])
        assert protocol.decode(payload) == message, name
