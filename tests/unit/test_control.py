"""Control messages: accepted and refused input of a protocol."""

from typing import Any

import msgspec
import pytest

from penstock.base.errors import LocalProtocolError, RemoteProtocolError
from penstock.net import ControlProtocol, Version
from penstock.net.core.control import Goodbye, Ping, UnknownMessageError, decode_session
from unit.net_kit import ECHO, NEWER, Later, Number, Say

SIZE_MAX = 100


class Untagged(msgspec.Struct):
    text: str


class Arrayed(msgspec.Struct, tag="arrayed", array_like=True):
    text: str


class FalseHello(msgspec.Struct, tag="hello"):
    text: str


@pytest.mark.parametrize("message", [Say("x"), Number(-1, "note"), Number(2**63 - 1)])
def test_round_trip(message: Any) -> None:
    assert ECHO.decode(ECHO.encode(message, SIZE_MAX)) == message


def test_every_protocol_has_the_messages_of_sessions() -> None:
    assert ECHO.decode(msgspec.msgpack.encode(Ping(5))) == Ping(5)
    assert ECHO.decode(msgspec.msgpack.encode(Goodbye("done"))) == Goodbye("done")


def test_fields_of_a_later_minor_version_are_ignored_and_missing_ones_take_their_default() -> None:
    later = {"type": "number", "value": 1, "note": "n", "colour": "red"}
    assert ECHO.decode(msgspec.msgpack.encode(later)) == Number(1, "n")
    assert ECHO.decode(msgspec.msgpack.encode({"type": "number", "value": 1})) == Number(1, "")


def test_an_unknown_type_is_distinguished_from_invalid_bytes() -> None:
    with pytest.raises(UnknownMessageError, match=r"echo 1\.2 has no message 'later'"):
        ECHO.decode(NEWER.encode(Later("x"), SIZE_MAX))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x80",
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode({"type": 7}),
        msgspec.msgpack.encode({"type": "number"}),
        msgspec.msgpack.encode({"type": "number", "value": "one"}),
        msgspec.msgpack.encode({"type": "ping", "t1": 2**64 - 1}),
        msgspec.msgpack.encode({"type": "say", "text": "x"}) + b"\0",
        b"\x82\xa4type\xa3say\xa4text\xa2\xff\xfe",
        b"\x91" * 5_000,
        b"\x82\xa4type\xa3say\xa1x" + b"\x91" * 50_000,
    ],
)
def test_invalid_bytes_are_an_error_of_the_peer(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        ECHO.decode(payload)
    assert not isinstance(caught.value, UnknownMessageError)
    with pytest.raises(RemoteProtocolError):
        decode_session(payload)


def test_messages_that_a_protocol_cannot_send_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="Later is not a message"):
        ECHO.encode(Later("x"), SIZE_MAX)
    with pytest.raises(LocalProtocolError, match="limit is 100"):
        ECHO.encode(Say("x" * 100), SIZE_MAX)


@pytest.mark.parametrize("messages", [Untagged, int, Arrayed, Say | int, Say | FalseHello])
def test_a_protocol_consists_of_tagged_structs_with_distinct_names(messages: Any) -> None:
    with pytest.raises(LocalProtocolError):
        ControlProtocol("bad", Version(1, 0), messages)


@pytest.mark.parametrize("name", ["", "Echo", "a b", "a\n", "x" * 65])
def test_names_are_validated(name: str) -> None:
    with pytest.raises(LocalProtocolError):
        ControlProtocol(name, Version(1, 0), Say)
