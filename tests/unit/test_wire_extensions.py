"""The bodies of extensions: invalid ones are errors of the peer, invalid values errors of the caller."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.base.counters import Cause
from penstock.base.errors import LocalProtocolError, PacketError
from penstock.wire import extensions as ext


@pytest.mark.parametrize(
    ("decode", "body"),
    [
        (ext.decode_origin, bytes(27)),
        (ext.decode_origin, bytes(29)),
        (ext.decode_hops, bytes(15)),
        (ext.decode_seal, bytes(17)),
        (ext.decode_interest_mask, bytes(9)),
        (ext.decode_interest_mask, b""),
        (ext.decode_destination, b""),
        (ext.decode_tags, b"\xff"),
        (ext.decode_tags, b"a\0\0b"),
        (ext.decode_tags, b"\0"),
    ],
)
@pytest.mark.spec("FILT-14")
def test_impossible_bodies_are_refused(decode: Callable[[bytes], Any], body: bytes) -> None:
    with pytest.raises(PacketError, match="extension") as caught:
        decode(body)
    assert caught.value.cause == Cause.LENGTH


@pytest.mark.parametrize(
    "encode",
    [
        lambda: ext.encode_origin(ext.Origin(2**32, 0, 0, 0, 0, 0)),
        lambda: ext.encode_hops([ext.Hop(1, 2**63)]),
        lambda: ext.encode_seal(ext.Seal(1, bytes(11))),
        lambda: ext.encode_seal(ext.Seal(2**32, bytes(12))),
        lambda: ext.encode_interest_mask(-1),
        lambda: ext.encode_destination(-1),
        lambda: ext.encode_tags([""]),
        lambda: ext.encode_tags(["a\0b"]),
        lambda: ext.encode_tags(["\ud800"]),
        lambda: ext.encode_extensions({65_536: b""}),
        lambda: ext.encode_extensions({1: bytes(65_536)}),
    ],
)
def test_unsendable_values_are_refused(encode: Callable[[], bytes]) -> None:
    with pytest.raises(LocalProtocolError):
        encode()


def test_an_empty_body_is_valid() -> None:
    assert ext.decode_tags(ext.encode_tags([])) == []
    assert ext.decode_hops(ext.encode_hops([])) == []
    assert ext.decode_interest_mask(ext.encode_interest_mask(0)) == 0
    assert len(ext.encode_interest_mask(2**64)) == 16
    assert ext.encode_extensions({}) == b""
