"""Data frames of assured messaging do not change; the decoder is written from docs/reference/protocol/assured.md
alone."""

from pathlib import Path
from typing import Any

import pytest

from interop import assured_decoder
from interop.assured_decoder import Decoded
from interop.golden_messages import check_golden
from penstock.assured import EndpointConfig, Want
from penstock.assured.wire import _layout
from penstock.assured.wire.control import (
    ASSURED,
    MESSAGE_SIZE_MAX,
    AlterEndpoint,
    Begin,
    CloseFlow,
    ClosePublisher,
    Commit,
    CreateEndpoint,
    Degrade,
    DeleteEndpoint,
    Done,
    EmptyEndpoint,
    Ended,
    EndpointInfo,
    EndpointNamed,
    Endpoints,
    FlowActive,
    FlowEnded,
    FlowOpened,
    ListEndpoints,
    Login,
    Message,
    OpenFlow,
    OpenPublisher,
    PublisherOpened,
    Refused,
    RenewToken,
    Rollback,
    SteppedDown,
    Switch,
    Welcome,
)
from penstock.assured.wire.frames import (
    Acknowledge,
    Credit,
    Deliver,
    Delivered,
    Frame,
    Publish,
    Published,
    Run,
    Settle,
    decode_frames,
    encode_acknowledge,
    encode_credit,
    encode_deliver,
    encode_publish,
    encode_settle,
)

GOLDEN = Path(__file__).parent / "golden" / "assured"
TIME_NS = 1_700_000_000_000_000_000
PUBLISHER = 0x0123456789ABCDEF

ORDERS = [
    Published(b"orders.new.AAPL", b"buy 100", 4, 1, 7, 2, 30_000),
    Published(b"orders.cancel.AAPL", b"", 9),
    Published(b"orders.new", bytes(range(17)), 0, 2),
]
DELIVERIES = [
    Delivered(3 << 40 | 41, b"orders.new.AAPL", b"buy 100", 4, 0, 7, 2, 0, TIME_NS, PUBLISHER, 5),
    Delivered(3 << 40 | 44, b"orders.cancel.AAPL", b"", 9, 1, 0, 0, 2, TIME_NS + 1, PUBLISHER, 6),
    Delivered(3 << 40 | 45, b"orders.new", b"late", 4, 1 + (3 << 4), 0, 0, 0, TIME_NS + 2, PUBLISHER, 7, 0x01020304),
]

FRAMES: dict[str, tuple[bytes, Frame, Decoded]] = {
    "publish": (
        encode_publish(2, 5, ORDERS, transaction=9),
        Publish(2, 9, 5, ORDERS),
        Decoded(1, (2, 9, 0, 5), [
            (b"orders.new.AAPL", b"buy 100", 4, 1, 7, 2, 30_000, 0),
            (b"orders.cancel.AAPL", b"", 9, 0, 0, 0, 0, 0),
            (b"orders.new", bytes(range(17)), 0, 2, 0, 0, 0, 0),
        ]),
    ),
    "acknowledge": (
        encode_acknowledge(2, [(5, 7, 3), (8, 8, 33, 2, 0x01020304)]),
        Acknowledge(2, [Run(5, 7, 3), Run(8, 8, 33, 2, 0x01020304)]),
        Decoded(2, (2,), [(5, 7, 3, 0, 0), (8, 8, 33, 2, 0x01020304)]),
    ),
    "deliver": (
        encode_deliver(4, DELIVERIES),
        Deliver(4, DELIVERIES),
        Decoded(3, (4,), [
            (b"orders.new.AAPL", b"buy 100", 4, 0, 7, 2, 0, 0, 3 << 40 | 41, TIME_NS, PUBLISHER, 5),
            (b"orders.cancel.AAPL", b"", 9, 1, 0, 0, 2, 0, 3 << 40 | 44, TIME_NS + 1, PUBLISHER, 6),
            (b"orders.new", b"late", 4, 49, 0, 0, 0, 0x01020304, 3 << 40 | 45, TIME_NS + 2, PUBLISHER, 7),
        ]),
    ),
    "settle": (
        encode_settle(4, [(3 << 40 | 41, 3 << 40 | 44, 1), (3 << 40 | 50, 3 << 40 | 50, 3)], transaction=9),
        Settle(4, 9, [Run(3 << 40 | 41, 3 << 40 | 44, 1), Run(3 << 40 | 50, 3 << 40 | 50, 3)]),
        Decoded(4, (4, 9, 0), [(3 << 40 | 41, 3 << 40 | 44, 1, 0, 0), (3 << 40 | 50, 3 << 40 | 50, 3, 0, 0)]),
    ),
    "credit": (encode_credit(4, 2**40), Credit(4, 2**40), Decoded(5, (4, 2**40), [])),
}  # fmt: skip


def golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())


@pytest.mark.parametrize("name", FRAMES)
def test_encoded_frames_equal_the_golden_ones(name: str) -> None:
    assert FRAMES[name][0].hex() == golden(name).hex()


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_has_the_documented_fields(name: str) -> None:
    assert assured_decoder.decode(golden(name)) == [FRAMES[name][2]]


@pytest.mark.parametrize("name", FRAMES)
def test_a_golden_frame_is_decoded(name: str) -> None:
    assert decode_frames(golden(name)) == [FRAMES[name][1]]


def test_the_structs_match_the_bytes() -> None:
    assert _layout.sizes() == {
        "publish": 24, "published": 24, "acknowledge": 8, "run": 24, "deliver": 8, "delivered": 56, "settle": 16,
        "credit": 16, "records": 16, "together": 8, "spliced": 8, "piece": 16,
    }  # fmt: skip


# Control messages

ENDPOINT = EndpointConfig(
    name="orders",
    wants=(Want(topics=("orders.>", "!orders.test.>"), where="price > 100"),),
    consumers="exclusive",
    replication="synchronous",
    messages_max=1_000,
    bytes_max=2**30,
    age_ms_max=60_000,
    when_full="dead",
    deliveries_max=5,
    dead_to="dead-orders",
)
ENDPOINT_SAYS = {
    "name": "orders",
    "wants": [{"topics": ["orders.>", "!orders.test.>"], "where": "price > 100"}],
    "consumers": "exclusive",
    "replication": "synchronous",
    "messages_max": 1_000,
    "bytes_max": 2**30,
    "age_ms_max": 60_000,
    "when_full": "dead",
    "deliveries_max": 5,
    "dead_to": "dead-orders",
}
MESSAGES: dict[str, tuple[Message, dict[str, Any]]] = {
    "login": (
        Login("app", "operator", "a token", 3),
        {"name": "app", "role": "operator", "token": "a token", "epoch": 3},
    ),
    "renew": (RenewToken("newer"), {"token": "newer"}),
    "open_publisher": (OpenPublisher(1, 2**63 + 5), {"number": 1, "publisher": 2**63 + 5}),
    "close_publisher": (ClosePublisher(2, 7), {"number": 2, "handle": 7}),
    "open_flow": (OpenFlow(3, "orders", 256), {"number": 3, "endpoint": "orders", "credit": 256}),
    "close_flow": (CloseFlow(4, 8, 3), {"number": 4, "handle": 8, "read": 3}),
    "begin": (Begin(5, 7, 2), {"number": 5, "handle": 7, "transaction": 2}),
    "commit": (Commit(6, 7, 2), {"number": 6, "handle": 7, "transaction": 2}),
    "rollback": (Rollback(7, 7, 2), {"number": 7, "handle": 7, "transaction": 2}),
    "create_endpoint": (
        CreateEndpoint(8, ENDPOINT, 2**40, 5),
        {"number": 8, "endpoint": ENDPOINT_SAYS, "from_id": 2**40, "from_time_ns": 5},
    ),
    "alter_endpoint": (AlterEndpoint(9, ENDPOINT), {"number": 9, "endpoint": ENDPOINT_SAYS}),
    "delete_endpoint": (DeleteEndpoint(10, "orders", True), {"number": 10, "name": "orders", "is_forced": True}),
    "empty_endpoint": (EmptyEndpoint(11, "orders"), {"number": 11, "name": "orders"}),
    "list_endpoints": (ListEndpoints(12, "orders"), {"number": 12, "name": "orders"}),
    "switch": (Switch(13, True, True), {"number": 13, "is_forced": True, "may_lose": True}),
    "degrade": (Degrade(14, False), {"number": 14, "is_ordered": False}),
    "welcome": (
        Welcome("r1", "active", 3, ("10.0.0.1:7460", "10.0.0.2:7460"), 1_048_576),
        {"router": "r1", "role": "active", "epoch": 3, "places": ["10.0.0.1:7460", "10.0.0.2:7460"],
         "message_bytes_max": 1_048_576},
    ),
    "publisher_opened": (
        PublisherOpened(1, 7, 2**40, 2), {"number": 1, "handle": 7, "highest": 2**40, "transaction": 2}
    ),
    "flow_opened": (FlowOpened(3, 8, False), {"number": 3, "handle": 8, "is_active": False}),
    "ended": (
        Ended(6, "committed", 3, "why"), {"number": 6, "outcome": "committed", "treatment": 3, "why": "why"}
    ),
    "done": (Done(8, {"local": 3}), {"number": 8, "left": {"local": 3}}),
    "endpoints": (
        Endpoints(12, (EndpointInfo(ENDPOINT, 5, 500, 2, 1, 11, 7, 6, 3),)),
        {"number": 12, "endpoints": [
            {"endpoint": ENDPOINT_SAYS, "messages": 5, "bytes": 500, "unsettled": 2, "flows": 1,
             "accepted": 11, "delivered": 7, "settled": 6, "given_up": 3}
        ]},
    ),
    "refused": (
        Refused("not_entitled", "no", 3, "ask", "10.0.0.2:7460"),
        {"code": "not_entitled", "reason": "no", "number": 3, "hint": "ask", "place": "10.0.0.2:7460"},
    ),
    "flow_active": (FlowActive(8), {"handle": 8}),
    "flow_ended": (FlowEnded(8, "gone", "deleted"), {"handle": 8, "code": "gone", "reason": "deleted"}),
    "endpoint_named": (
        EndpointNamed(3, "orders", 1_000, 2**20),
        {"endpoint": 3, "name": "orders", "messages_max": 1_000, "bytes_max": 2**20},
    ),
    "stepped_down": (SteppedDown(4, "10.0.0.2:7460"), {"epoch": 4, "place": "10.0.0.2:7460"}),
}  # fmt: skip
"""By type: the message, and the fields that an independent reader finds in it."""


def test_a_flow_can_be_closed_without_a_report_of_read_messages() -> None:
    said = bytes.fromhex("83a474797065aa636c6f73655f666c6f77a66e756d62657204a668616e646c6508")
    assert ASSURED.decode(said) == CloseFlow(4, 8)
    assert ASSURED.encode(CloseFlow(4, 8), MESSAGE_SIZE_MAX) == said


def test_control_messages_equal_the_golden_ones() -> None:
    check_golden(ASSURED, Message, MESSAGES, GOLDEN / "control.txt", MESSAGE_SIZE_MAX)
