"""Frames of a WebSocket, in both flavours."""

import json
import struct

import msgspec
import pytest

from penstock.base.errors import RemoteProtocolError
from penstock.engine import control
from penstock.engine.core.kernel._event import EventKind, ReceiptCause, TransmissionClass, make_event
from penstock.model import MessageModel
from penstock.model.library import shipped
from penstock.plant.core.websocket_codec import BinaryCodec, JsonCodec

QUOTE = shipped("quote")
TOPIC = b"md.us.eq.AAPL.quote"


def known(model_id: int, version: int) -> MessageModel | None:
    return QUOTE if (model_id, version) == (QUOTE.id, QUOTE.version) else None


def event(kind: EventKind, **fields: object) -> bytes:
    model = {"model_id": QUOTE.id, "model_version": QUOTE.version}
    return make_event(kind, **{"item": 7, **model, **fields})  # type: ignore[arg-type]


DEFINE = event(EventKind.DEFINE, body=TOPIC)


@pytest.mark.parametrize("flavour", [BinaryCodec(), JsonCodec(known)])
def test_control_messages_are_text_frames(flavour: BinaryCodec) -> None:
    login = control.Login("screen", token="t")
    assert flavour.decode(msgspec.json.encode(login).decode()) == login
    assert json.loads(flavour.encode(control.Held(3))) == {"type": "held", "number": 3, "per_second": 0.0}


@pytest.mark.parametrize(
    "message",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"type":"held","number":1}',
        '{"type":"login","name":"no name"}',
        "[" * 100_000,
        b"\0" * 48,
    ],
)
def test_other_frames_are_refused(message: str | bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        BinaryCodec().decode(message)


def test_events_are_sent_unchanged_in_the_binary_flavour() -> None:
    assert BinaryCodec().encode(control.Events(DEFINE)) == DEFINE


@pytest.mark.spec("EDGE-1")
def test_events_are_objects_in_the_json_flavour() -> None:
    flavour = JsonCodec(known)
    record = bytes(memoryview(QUOTE.new(symbol="AAPL", bid_price="12.5", bid_size=300)))
    receipt = struct.pack("<QQB7x", 4, 9, ReceiptCause.SLOW)
    data = b"".join(
        (
            DEFINE,
            event(EventKind.REFRESH, body=record, cls=TransmissionClass.METERED, version=41),
            event(EventKind.LIVE, item=0, body=struct.pack("<II", 5, 0)),
            event(EventKind.UPDATE, body=record, cls=TransmissionClass.CRITICAL, version=44, merged=3),
            event(EventKind.RECEIPT, item=0xFFFFFFFF, body=receipt),
            event(EventKind.REMOVE),
        )
    )
    refresh, live, update, lost, removed = json.loads(flavour.encode(control.Events(data)))
    assert refresh["topic"] == update["topic"] == removed["topic"] == TOPIC.decode()
    assert (refresh["kind"], refresh["class"], refresh["version"]) == ("refresh", "metered", 41)
    assert (refresh["record"]["symbol"], refresh["record"]["bid_price"]) == ("AAPL", 12.5)
    assert live == {"kind": "live", "subscription": 5}
    assert (update["class"], update["merged"]) == ("critical", 3)
    assert lost == {"kind": "receipt", "first": 4, "last": 9, "cause": "slow"}
    assert removed["kind"] == "remove"


def test_an_undecodable_record_has_no_fields() -> None:
    flavour = JsonCodec(known)
    data = DEFINE + event(EventKind.UPDATE, body=b"\0" * 8, cls=TransmissionClass.METERED)
    (shown,) = json.loads(flavour.encode(control.Events(data)))
    assert shown["record"] is None
    unknown = event(EventKind.DEFINE, body=TOPIC, model_version=99) + event(EventKind.UPDATE, cls=1, model_version=99)
    assert json.loads(flavour.encode(control.Events(unknown)))[0]["record"] is None


def test_a_snapshot_has_its_records_as_objects() -> None:
    shown = json.loads(JsonCodec(known).encode(control.Records(2, DEFINE + event(EventKind.REFRESH), True)))
    assert shown["records"][0]["topic"] == TOPIC.decode()
    assert shown["is_last"] is True
