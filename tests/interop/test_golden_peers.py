"""Frames between the routers of a pair do not change; the decoder is written from protocol/assured.md alone."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from interop import assured_decoder, peer_decoder
from paired_kit import PUBLISHER, QUEUE, Router, connect, disconnect, exchange
from penstock.assured.core.pair.protocol import PeerFrame
from penstock.assured.core.pair.transaction_stream import HeldTransactions
from penstock.assured.core.router.events import Data, RequestReceived
from penstock.assured.wire.control import Begin, Commit
from penstock.assured.wire.frames import Published, encode_publish

FOLDER = Path(__file__).parent / "golden" / "assured_peers"
GOLDEN = {path.stem: bytes.fromhex(path.read_text()) for path in sorted(FOLDER.glob("*.hex"))}
LINK = 10
BASE = 1 << 40
CONTENT = bytes(range(64))


@cache
def said() -> dict[str, bytes]:
    """The first frame of each kind that two routers send: after a message and a transaction the link is lost, and
    reconnected without the messages published in between."""
    heard: list[bytes] = []

    class Listening(Router):
        def tell(self, event: Any) -> None:
            if isinstance(event, PeerFrame) and event.data[0] < 0x80:
                heard.append(event.data)
            super().tell(event)

    one, other = Listening("a", QUEUE), Listening("b")
    connect(one, other)
    one.clients(LINK)
    one.publish(1)
    exchange(one, other)
    one.tell(RequestReceived(LINK, Begin(3, 1, 1)))
    messages = [Published(b"a.x", CONTENT), Published(b"a.y", b"small")]
    one.tell(Data(LINK, encode_publish(1, 2, messages, transaction=1)))
    one.tell(RequestReceived(LINK, Commit(4, 1, 1)))
    exchange(one, other)
    forgotten = heard[-1]
    disconnect(one, other)
    one.publish(4)
    heard_before = len(heard)
    connect(one, other)
    found = {"forgotten": forgotten}
    for frame in (*heard[heard_before:], *heard[:heard_before]):
        found.setdefault(peer_decoder.KINDS[frame[0]], frame)
    return found


def test_every_kind_has_its_golden_bytes() -> None:
    assert sorted(GOLDEN) == sorted({*peer_decoder.KINDS.values(), "forgotten"})


@pytest.mark.parametrize("kind", GOLDEN)
def test_encoded_frames_equal_the_golden_ones(kind: str) -> None:
    assert said()[kind].hex() == GOLDEN[kind].hex()


def test_lists_have_the_documented_fields() -> None:
    ids = [BASE + each for each in (1, 2, 3, 4)]
    assert peer_decoder.decode(GOLDEN["live"]) == {"kind": "live", "flags": 0, "number": 2, "ids": ids}
    assert peer_decoder.decode(GOLDEN["missing"]) == {"kind": "missing", "flags": 1, "number": 2, "ids": ids[3:]}
    (publisher,) = peer_decoder.decode(GOLDEN["publishers"])["records"]
    assert (publisher["publisher"], publisher["highest"], publisher["transaction"]) == (PUBLISHER, 4, 1)
    records = peer_decoder.decode(GOLDEN["records"])
    assert (records["flags"], records["position"]) == (0, 1)
    (message,) = records["records"]
    assert (message["kind"], message["id"], message["flags"]) == ("message", ids[3], 0)
    assert message["destinations"] == [[2, 1, 0, 0]]  # its delivery has begun


@pytest.mark.spec("REPL-10")
def test_a_spliced_frame_has_the_documented_fields() -> None:
    together, forgotten, spliced = (peer_decoder.decode(GOLDEN[each]) for each in ("together", "forgotten", "spliced"))
    assert (together["flags"], together["number"]) == (0, 1)
    (published,) = assured_decoder.decode(len(together["data"]).to_bytes(4, "little") + together["data"])
    assert [each[:2] for each in published.parts] == [(b"a.x", CONTENT), (b"a.y", b"small")]
    assert (forgotten["flags"], forgotten["number"], forgotten["data"]) == (1, 1, b"")
    assert [piece[1:] for piece in spliced["pieces"]] == [(1, together["data"].index(b"a.x"), 67), (0, 0, 0)]
    joined = peer_decoder.join(spliced, {1: together["data"]})
    (transaction,) = peer_decoder.decode(joined)["records"]
    assert (transaction["kind"], transaction["publisher"], transaction["transaction"]) == ("transaction", PUBLISHER, 1)
    contents = [(each["topic"], each["payload"].encode()) for each in transaction["records"]]
    assert contents == [("a.x", CONTENT), ("a.y", b"small")]


@pytest.mark.spec("REPL-4")
def test_a_message_to_be_matched_has_the_digest_of_its_endpoint() -> None:
    together, spliced = peer_decoder.decode(GOLDEN["together"]), peer_decoder.decode(GOLDEN["spliced"])
    joined = peer_decoder.join(spliced, {1: together["data"]})
    (transaction,) = peer_decoder.decode(joined)["records"]
    assert [(each["flags"], each["destinations"]) for each in transaction["records"]] == [(64 + 128, [])] * 2
    assert int.from_bytes(joined[16 + 32 + 60 :][:4], "little") == peer_decoder.mark(2)


def test_golden_frames_of_a_transaction_are_decoded() -> None:
    held = HeldTransactions()
    held.together(GOLDEN["together"])
    together = peer_decoder.decode(GOLDEN["together"])
    assert held.joined(GOLDEN["spliced"]) == peer_decoder.join(
        peer_decoder.decode(GOLDEN["spliced"]), {1: together["data"]}
    )
    held.together(GOLDEN["forgotten"])
    assert len(held) == 0
