"""The frames between the routers of a pair and their witness do not change; they are decoded here from
docs/reference/protocol/assured.md and docs/reference/protocol/lease.md alone."""

from pathlib import Path

from interop.golden_messages import check_golden
from penstock.assured.core.lease import protocol as lease_protocol
from penstock.assured.core.lease.protocol import LEASE, Ask, Denied, Granted, LeaseTerms, Released
from penstock.assured.core.pair import protocol as pair_protocol
from penstock.assured.core.pair.protocol import (
    PAIR,
    Defined,
    Lacking,
    Listed,
    Resync,
    Standing,
    StoredTo,
    Switch,
    Whole,
    Yielded,
)

GOLDEN = Path(__file__).parent / "golden" / "assured"

PAIR_MESSAGES = {
    "standing": (
        Standing("orders-1", "standby", 3, True, True, True, False, True),
        {
            "name": "orders-1",
            "role": "standby",
            "epoch": 3,
            "is_willing": True,
            "is_voting": True,
            "is_matching": True,
            "is_storing": False,
            "is_degraded": True,
        },
    ),
    "resync": (Resync(7, 5, 4, 2**42), {"stream": 7, "epoch": 5, "since_epoch": 4, "since_id": 2**42}),
    "defined": (
        Defined(2, b'{"name":"orders"}', True),
        {"number": 2, "definition": b'{"name":"orders"}', "is_deleted": True},
    ),
    "listed": (Listed(5 << 40 | 7), {"id_highest": 5 << 40 | 7}),
    "lacking": (Lacking(7, [2, 70_000]), {"stream": 7, "numbers": [2, 70_000]}),
    "whole": (Whole(5), {"epoch": 5}),
    "stored_to": (StoredTo(7, 1_000_000), {"stream": 7, "position": 1_000_000}),
    "switch": (Switch(), {}),
    "yielded": (Yielded(5, {"local": 3}), {"epoch": 5, "left": {"local": 3}}),
}

LEASE_MESSAGES = {
    "terms": (
        LeaseTerms(("orders-1", "orders-2"), "witness", 3_000, 10_000),
        {"routers": ["orders-1", "orders-2"], "witness": "witness", "lease_ms": 3_000, "drift_ppm": 10_000},
    ),
    "ask": (
        Ask(4, 19, 1, True, True),
        {"epoch": 4, "round": 19, "note": 1, "is_alone": True, "is_forced": True},
    ),
    "granted": (Granted(4, 19, 1, True), {"epoch": 4, "round": 19, "note": 1, "is_alone": True}),
    "denied": (Denied(5, 19, "held"), {"epoch": 5, "round": 19, "reason": "held"}),
    "released": (Released(4), {"epoch": 4}),
}


def test_messages_of_a_pair_equal_the_golden_ones() -> None:
    check_golden(PAIR, pair_protocol.Message, PAIR_MESSAGES, GOLDEN / "pair.txt", pair_protocol.MESSAGE_SIZE_MAX)


def test_messages_of_voters_equal_the_golden_ones() -> None:
    check_golden(LEASE, lease_protocol.Message | LeaseTerms, LEASE_MESSAGES, GOLDEN / "lease.txt", 1_024)
