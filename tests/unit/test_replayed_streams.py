"""The mark REPLAY: every packet of a replay has it, and a receiver accepts only the configured kind."""

from typing import Any

import pytest

from penstock.base.core import Tick
from penstock.base.counters import Cause
from penstock.base.errors import ConfigurationError
from penstock.middleware import (
    Close,
    DatagramReceived,
    DatagramsReceived,
    Deliver,
    DeliverBatch,
    Multicast,
    MulticastStored,
    OutgoingBatch,
    OutgoingMessage,
    Publish,
    PublishBatch,
    ReceiverConfig,
    StreamStarted,
    TopicList,
)
from penstock.middleware.live.merging_receiver import MergingReceiver
from penstock.net.udp import free_channel
from penstock.wire import DatagramBatch, PacketFlag, decode, encode_nack
from unit.middleware_kit import GROUP, KEY, MS, PUBLISHER_ID, SOURCE, contents, of, packets, publisher, receiver, take

REPLAY = PacketFlag.REPLAY


def sent_by(core: Any, event: Any, now_ns: int = 0) -> list[bytes]:
    found = []
    for each in core.handle(event, now_ns):
        if isinstance(each, MulticastStored):
            found += [each.store.get(number) for number in range(each.first, each.last + 1)]
        elif hasattr(each, "data"):
            found.append(each.data)
    return found


@pytest.mark.spec("PIPE-9")
@pytest.mark.parametrize("is_replay", [True, False])
def test_every_packet_of_a_replay_has_the_mark(numbers: Any, is_replay: bool) -> None:
    core = publisher(is_replay=is_replay, keep_alive_packets=2)
    sent = sent_by(core, Publish(GROUP, [OutgoingMessage("t", b"x" * 5_000)]))  # fragments
    sent += sent_by(core, PublishBatch(GROUP, OutgoingBatch(TopicList(["t"]), [0] * 200, numbers)))
    assert core.stream(GROUP, 0).publish_one("t", b"x", 0, 0, 0)
    sent.append(core.kept(GROUP).get(core.next_sequence(GROUP) - 1))
    sent += sent_by(core, Tick(), 10_000 * MS)  # a keep-alive
    sent += sent_by(core, DatagramReceived(encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 2)]), SOURCE))
    sent += sent_by(core, Close())
    flags = [decode(each).flags for each in sent]
    assert len(flags) > 12
    assert {bool(each & REPLAY) for each in flags} == {is_replay}
    for mark in (PacketFlag.KEEP_ALIVE, PacketFlag.GOODBYE, PacketFlag.REPAIR):
        assert any(each & mark for each in flags)
        assert not all(each & mark for each in flags)


@pytest.fixture
def numbers() -> Any:
    import numpy

    return numpy.arange(200, dtype="<u8")


@pytest.mark.spec("PIPE-9")
@pytest.mark.parametrize(("accept", "expected"), [("live", "live"), ("replay", "replay"), ("both", "both")])
def test_a_receiver_accepts_the_configured_kind(accept: str, expected: str) -> None:
    live, old = packets(3), packets(3, publisher_id=7, flags=REPLAY)
    core = receiver(accept=accept)
    answers = take(core, [packet for pair in zip(live, old, strict=True) for packet in pair])
    started = {each.stream.publisher_id: each.is_replay for each in of(StreamStarted, answers)}
    assert started == {"live": {42: False}, "replay": {7: True}, "both": {42: False, 7: True}}[expected]
    assert len(contents(answers)) == 3 * len(started)
    dropped = core.counters.by_cause("packets_dropped")
    assert dropped == ({} if expected == "both" else {Cause.REPLAY: 3})


def test_a_refused_replay_is_skipped_in_batches() -> None:
    """Without a Python object per packet; live packets in between stay in order."""
    batch = DatagramBatch(64)
    live, old = packets(20), packets(40, publisher_id=7, flags=REPLAY)
    order = [old[0], live[0], *old[1:20], *live[1:10], b"garbage", *old[20:], *live[10:]]
    core = receiver()
    delivered: list[str] = []
    for part in (order[:50], order[50:]):
        batch.clear()
        for packet in part:
            batch.append(packet, SOURCE)
        for answer in core.handle(DatagramsReceived(batch), 0):
            if isinstance(answer, Deliver | DeliverBatch):
                delivered += [bytes(each.payload).decode() for each in answer.messages]
    assert delivered == [str(number) for number in range(1, 21)]
    assert core.counters.by_cause("packets_dropped") == {Cause.REPLAY: 40, Cause.FOREIGN: 1}


def test_a_stream_does_not_change_between_live_and_replay() -> None:
    """A packet whose mark differs from its stream's would present old data as new."""
    core = receiver(accept="both")
    take(core, packets(3))
    assert contents(take(core, packets(1, first=4, flags=REPLAY))) == []
    assert contents(take(core, packets(1, first=4))) == ["4"]
    assert core.counters.by_cause("packets_dropped") == {Cause.REPLAY: 1}
    batch = DatagramBatch(8)
    for packet in [*packets(1, first=5), *packets(1, first=6, flags=REPLAY)]:
        batch.append(packet, SOURCE)
    core.handle(DatagramsReceived(batch), 0)
    assert core.counters.by_cause("packets_dropped") == {Cause.REPLAY: 2}
    assert [each.key for each in core.streams()] == [KEY]
    assert not any(isinstance(each, Multicast) for each in core.handle(Tick(), MS))


def test_live_and_replay_are_not_merged() -> None:
    with pytest.raises(ConfigurationError, match="cannot be merged"):
        MergingReceiver.on([free_channel()], config=ReceiverConfig(accept="both"))
