"""The messages of the filter protocol: their encoding, and refusals."""

import re
from pathlib import Path

import msgspec
import pytest

from interop.control_decoder import message
from penstock.base.errors import RemoteProtocolError
from penstock.filter.core import control

SIZE_MAX = control.CONNECTION.message_size_max
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "protocol" / "filter-control.md"


@pytest.mark.spec("FILT-6")
def test_messages_are_maps_as_documented() -> None:
    wanting = control.Want(7, [control.Interests(["md.>", "!md.x"], where="a > 1")])
    # copied from the page: maps, in the order of the fields
    golden = (
        "84a474797065a477616e74a66e756d62657207a36164649184a6746f7069637392a46d642e3ea5216d642e78a57768657265a561203e2031"
        "a7636f6e74656e74c400a86368616e6e656c7390a672656d6f766590"
    )
    assert control.PROTOCOL.encode(wanting, SIZE_MAX).hex() == golden
    holds = message(control.PROTOCOL.encode(control.Holds(7), SIZE_MAX))
    assert holds == {"type": "holds", "number": 7}
    position = control.Position(2**64 - 1, 0xEFFF4A01, 3, 2**63 - 1, "10.0.0.1", 7401)
    assert message(control.PROTOCOL.encode(position, SIZE_MAX)) == {
        "type": "position",
        "publisher_id": 2**64 - 1,
        "group": 0xEFFF4A01,
        "epoch": 3,
        "next_sequence": 2**63 - 1,
        "host": "10.0.0.1",
        "port": 7401,
        "is_replay": False,
    }


@pytest.mark.parametrize(
    "said",
    [
        control.Register("app", 5_000, "ring", "10.0.0.1", 2**64 - 1, "token"),
        control.Want(1, [control.Interests(["a"], content=b"x", channels=["239.1.1.1:1"])], [control.Interests([])]),
        control.Models(2, ["id = 1"]),
        control.RenewToken(3, "t"),
        control.RestartRing(4),
        control.OfferRing(5, 1, "@ring", "packets", "127.0.0.1", 9),
        control.Registered("f", 1, "mask", "filter", "127.0.0.1", 1, "239.1.1.1", 2, 63),
        control.Registered("f", 1, "ring", "receivers", "127.0.0.1", 1, path="@f", segment="s"),
        control.Holds(2**32 - 1),
        control.Ended(1, 2, 3, 4, "expired"),
        control.Collided(1, 2, 3, "a:1", "b:2"),
        control.Restarted(1),
        control.Refused(control.RefusalCode.LIMIT, "too many", 8),
    ],
)
def test_messages_are_decoded_unchanged(said: control.ControlMessage) -> None:
    assert control.PROTOCOL.decode(control.PROTOCOL.encode(said, SIZE_MAX)) == said


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "register", "application": "../x", "port": 1},
        {"type": "register", "application": "x", "port": 0},
        {"type": "register", "application": "x", "port": 65_536},
        {"type": "register", "application": "x", "port": 1, "delivery": "pigeon"},
        {"type": "register", "application": "x", "port": 1, "application_id": -1},
        {"type": "register", "application": "x", "port": 1, "token": "t" * 65_537},
        {"type": "want", "add": []},
        {"type": "want", "number": -1},
        {"type": "want", "number": 1, "add": [{"topics": [""]}]},
        {"type": "want", "number": 1, "add": [{"topics": ["a" * 1_025]}]},
        {"type": "want", "number": 1, "add": [{"topics": ["a"] * (control.TOPICS_MAX + 1)}]},
        {"type": "want", "number": 1, "add": [{"topics": []}] * (control.CONDITIONS_MAX + 1)},
        {"type": "want", "number": 1, "add": [{"topics": [], "where": "x" * (control.CONDITION_SIZE_MAX + 1)}]},
        {"type": "models", "number": 1, "documents": [""] * (control.MODELS_MAX + 1)},
        {"type": "offer-ring", "number": 1, "publisher_id": 0, "path": "@", "segment": "s", "host": "", "port": 1},
        {
            "type": "offer-ring",
            "number": 1,
            "publisher_id": 1,
            "path": "p" * 108,
            "segment": "s",
            "host": "",
            "port": 1,
        },
    ],
)
def test_invalid_messages_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        control.PROTOCOL.decode(msgspec.msgpack.encode(bad))


def test_every_truncation_is_refused() -> None:
    data = control.PROTOCOL.encode(control.Want(1, [control.Interests(["a.b"])]), SIZE_MAX)
    for size in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            control.PROTOCOL.decode(data[:size])
    with pytest.raises(RemoteProtocolError):
        control.PROTOCOL.decode(data + b"\0")


def test_the_page_names_every_message_field_and_code() -> None:
    text = PAGE.read_text()
    kinds = msgspec.inspect.type_info(control.ControlMessage).types
    assert len(kinds) == 13
    for kind in kinds:
        (row,) = re.findall(rf"^\| `{kind.tag}` \|(.*)$", text, flags=re.MULTILINE)
        for field in kind.fields:
            assert f"`{field.encode_name}`" in row, (kind.tag, field.encode_name)
    for code in control.RefusalCode:
        assert f"| `{code}` |" in text
