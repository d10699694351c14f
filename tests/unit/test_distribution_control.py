"""The distribution protocol's messages: their encoding, and refusals."""

import re
from pathlib import Path

import msgspec
import pytest

from interop.control_decoder import message
from penstock.base.errors import RemoteProtocolError
from penstock.engine import control

SIZE_MAX = control.CONNECTION.message_size_max
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "protocol" / "distribution-control.md"


def test_messages_are_maps_as_documented() -> None:
    # copied from the page: maps, in the order of the fields
    golden = (
        "87a474797065a9737562736372696265a66e756d62657207a6746f7069637391a46d642e3ea3636c73a76d657465726564"
        "aa7065725f7365636f6e64cb4010000000000000a5616674657200a565706f636800"
    )
    wanting = control.Subscribe(7, ["md.>"], "metered", 4.0)
    assert control.PROTOCOL.encode(wanting, SIZE_MAX).hex() == golden
    held = message(control.PROTOCOL.encode(control.Held(7, 0.0), SIZE_MAX))
    assert held == {"type": "held", "number": 7, "per_second": 0.0}


@pytest.mark.parametrize("size", [0, 8, 300, 70_000])
def test_events_begin_with_the_documented_bytes(size: int) -> None:
    """Sessions write events without msgpack; the bytes are read as an Events message."""
    written = bytes.fromhex("82a474797065a66576656e7473a464617461c6") + size.to_bytes(4, "big") + bytes(size)
    assert control.PROTOCOL.decode(written) == control.Events(bytes(size))


@pytest.mark.parametrize(
    "said",
    [
        control.Login("app", "local", "token", classes=["critical", "adaptive"]),
        control.Login("mux", "datagram", is_node=True, host="10.0.0.1", port=9),
        control.Subscribe(1, ["md.>", "a"], "auto", 0.0, 5, 2**64 - 1),
        control.Modify(2, 1, 1e12),
        control.Unsubscribe(3, 1),
        control.Snapshot(4, ["md.>"]),
        control.Overrun(5, 2**64 - 1, "notices"),
        control.Missed(1, 2),
        control.AskModel(6, 30, 1),
        control.RenewToken(7, "t"),
        control.Vouch(8, "app", "t", ["md.>"]),
        control.Welcome("mux", 1, 2, ["critical"], 4.0, ["md.>", "!md.x"], "@p", "r", "n", 3, "10.0.0.1", 4),
        control.OpenRegion(20, 1, "s", "m", 128, 1_000, [0, 64], is_shared=True),
        control.Restarted(1),
        control.Records(2, b"\0" * 48, is_last=True),
        control.ModelDocument(3, "id = 1"),
        control.Vouched(4, "alice", "s1", 5, ["md.>"]),
        control.Withdrawn("s1", "left"),
        control.Refused(control.RefusalCode.RATE, "too many", 8),
    ],
)
def test_messages_are_decoded_unchanged(said: control.ControlMessage) -> None:
    assert control.PROTOCOL.decode(control.PROTOCOL.encode(said, SIZE_MAX)) == said


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "login", "name": "../x"},
        {"type": "login", "name": "x", "transport": "pigeon"},
        {"type": "login", "name": "x", "classes": ["first"]},
        {"type": "login", "name": "x", "token": "t" * 65_537},
        {"type": "subscribe", "number": 1, "topics": []},
        {"type": "subscribe", "number": 1, "topics": [""]},
        {"type": "subscribe", "number": 1, "topics": ["a"] * (control.TOPICS_MAX + 1)},
        {"type": "subscribe", "number": 2**32, "topics": ["a"]},
        {"type": "subscribe", "number": 1, "topics": ["a"], "per_second": -1},
        {"type": "subscribe", "number": 1, "topics": ["a"], "per_second": float("nan")},
        {"type": "subscribe", "number": 1, "topics": ["a"], "per_second": 1e13},
        {"type": "overrun", "number": 1, "last_number": -1},
        {"type": "events", "data": bytes(control.EVENTS_SIZE_MAX + 1)},
        {"type": "events"},
        {"type": "who-is-there"},
    ],
)
def test_invalid_messages_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        control.PROTOCOL.decode(msgspec.msgpack.encode(bad))


def test_the_page_has_every_message_and_every_refusal() -> None:
    text = PAGE.read_text()
    kinds = [*control.ConsumerMessage.__args__, *control.NodeMessage.__args__]
    for kind in kinds:
        (row,) = re.findall(rf"^\| `{kind.__struct_config__.tag}` \| (.*?) \|", text, flags=re.MULTILINE)
        assert re.findall(r"`(\w+)`", row) == list(kind.__struct_fields__)
    for code in control.RefusalCode:
        assert re.search(rf"^\| `{code}` \|", text, flags=re.MULTILINE)
