"""The stream protocol's messages: their encoding, and refusals."""

import re
from pathlib import Path

import msgspec
import pytest

from interop.control_decoder import message
from penstock.base.errors import RemoteProtocolError
from penstock.middleware import unicast

SIZE_MAX = unicast.CONNECTION.message_size_max


def test_messages_are_maps_as_documented() -> None:
    opening = unicast.OpenStream("t", ["md.>"], image=True)
    encoded = unicast.PROTOCOL.encode(opening, SIZE_MAX)
    # copied from the page: a map of seven, in the order of the fields
    golden = (
        "87a474797065a46f70656ea5746f6b656ea174a6746f7069637391a46d642e3ea46c697665c3a5696d616765c3a766726f6d5f6e7300"
        "a764656c61795f73c0"
    )
    assert encoded.hex() == golden
    refused = message(unicast.PROTOCOL.encode(unicast.StreamRefused("revoked", "no longer a customer"), SIZE_MAX))
    assert refused == {"type": "refused", "code": "revoked", "reason": "no longer a customer"}


@pytest.mark.parametrize(
    "said",
    [
        unicast.OpenStream("token", ["md.>", "!md.x"], live=False, from_ns=7),
        unicast.ModifyStream([]),
        unicast.Contribute("derived", 1, [unicast.Contribution("x.y", 1, 2, b"abc")]),
        unicast.RenewToken("t"),
        unicast.CloseStream(),
        unicast.StreamOpened("a-1", 2**64 - 1, 257, [1, 2]),
        unicast.Packets([b"x" * 65_507]),
        unicast.ImageBegin([unicast.Position(1, 257, 2**64 - 1)]),
        unicast.ImageEnd([]),
        unicast.Contributed("derived", 2),
    ],
)
def test_messages_are_decoded_unchanged(said: unicast.UnicastMessage) -> None:
    assert unicast.PROTOCOL.decode(unicast.PROTOCOL.encode(said, SIZE_MAX)) == said


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "open", "token": "t" * (unicast.TOKEN_SIZE_MAX + 1), "topics": []},
        {"type": "open", "token": "", "topics": ["a"] * (unicast.TOPICS_MAX + 1)},
        {"type": "open", "token": "", "topics": [""]},
        {"type": "open", "token": "", "topics": ["a"], "from_ns": -1},
        {"type": "open", "topics": ["a"]},
        {"type": "contribute", "stream": "../x", "first_sequence": 1, "messages": []},
        {"type": "contribute", "stream": "x", "first_sequence": 0, "messages": []},
        {"type": "contribute", "stream": "x", "first_sequence": 1, "messages": [{"topic": "a"}]},
        {"type": "packets", "packets": [b"x" * 65_508]},
        {"type": "opened", "adapter": "a", "publisher_id": 0, "term": 1, "streams": []},
    ],
)
def test_values_out_of_bounds_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        unicast.PROTOCOL.decode(msgspec.msgpack.encode(bad))


def test_every_code_and_message_is_documented(project: Path) -> None:
    page = (project / "docs" / "reference" / "protocol" / "unicast.md").read_text()
    documented = set(re.findall(r"^\| `([a-z-]+)` \|", page, flags=re.MULTILINE))
    kinds = {kind.__struct_config__.tag for kind in unicast.UnicastMessage.__args__}
    assert documented == {code.value for code in unicast.RefusalCode} | kinds
