"""Capture records, and their replay."""

import pytest

from penstock.base import SystemRandomness
from penstock.base.counters import Cause
from penstock.base.errors import PacketError
from penstock.capture import replay
from penstock.journal import Record
from penstock.middleware import DatagramsReceived, Deliver, DeliverBatch, LossReceipt, Receiver, ReceiverConfig
from penstock.wire import DatagramBatch, Packer, encode_gone, encode_nack

GROUP = 0xEF010101


def packets(packer: Packer, *payloads: bytes) -> list[bytes]:
    """The packets of these messages, each message flushed separately."""
    made = []
    for payload in payloads:
        made += packer.add("a.b", payload)
        rest = packer.flush()
        if rest is not None:
            made.append(rest)
    return made


def story(contents: list[bytes]) -> list[Deliver | LossReceipt]:
    return [each for _, each in replay(Record(number, number, data) for number, data in enumerate(contents, 1))]


def delivered(answers: list[Deliver | LossReceipt]) -> list[bytes]:
    return [bytes(message.payload) for each in answers if isinstance(each, Deliver) for message in each.messages]


def test_a_loss_is_reported_in_its_position() -> None:
    one, _, three = packets(Packer(7, GROUP, 1), b"1", b"2", b"3")
    answers = story([one, encode_gone(7, GROUP, 1, [(2, 2)]), three])
    assert [type(each) for each in answers] == [Deliver, LossReceipt, Deliver]
    assert isinstance(answers[1], LossReceipt)
    assert (answers[1].first, answers[1].last, answers[1].cause) == (2, 2, Cause.GONE)
    assert delivered(answers) == [b"1", b"3"]


def test_fragments_are_reassembled() -> None:
    whole = packets(Packer(7, GROUP, 1), b"x" * 5_000, b"y")
    assert len(whole) > 3
    assert delivered(story(whole)) == [b"x" * 5_000, b"y"]


def test_a_message_with_a_lost_fragment_is_reported_and_not_delivered() -> None:
    whole = packets(Packer(7, GROUP, 1), b"a", b"x" * 5_000, b"y")
    answers = story([whole[0], whole[1], encode_gone(7, GROUP, 1, [(3, 3)]), *whole[3:]])
    assert delivered(answers) == [b"a", b"y"]
    losses = [each for each in answers if isinstance(each, LossReceipt)]
    assert [each.cause for each in losses][:2] == [Cause.GONE, Cause.FRAGMENT]
    assert losses[1].topic == "a.b"


def test_streams_and_epochs_are_kept_apart() -> None:
    first, second, again = Packer(7, GROUP, 1), Packer(8, GROUP, 1), Packer(7, GROUP, 2)
    mixed = [
        part for pair in zip(packets(first, b"x" * 4_000), packets(second, b"y" * 4_000), strict=True) for part in pair
    ]
    answers = story([*mixed, *packets(again, b"z")])
    assert delivered(answers) == [b"x" * 4_000, b"y" * 4_000, b"z"]
    assert [each.epoch for each in answers if each.stream.publisher_id == 7][-1] == 2


@pytest.mark.parametrize("content", [b"", b"not a packet" * 10, encode_nack(7, GROUP, 1, [(1, 1)])])
def test_a_journal_with_other_content_is_refused(content: bytes) -> None:
    with pytest.raises(PacketError) as error:
        story([*packets(Packer(7, GROUP, 1), b"1"), content])
    assert error.value.where == "record 2"


def test_a_receiver_captures_every_packet_unchanged() -> None:
    """In order, too early, and fragmented: on every path, the bytes and the receive time are recorded."""
    whole = packets(Packer(7, GROUP, 1), b"1", b"2", b"3", b"4", b"x" * 5_000, b"5", b"6", b"7")
    order = [0, 1, 2, 4, 3, *range(5, len(whole))]
    receiver = Receiver(ReceiverConfig(), SystemRandomness())
    kept: list[bytes] = []
    arrivals: list[int] = []
    for index in range(0, len(order), 3):
        batch = DatagramBatch(3)
        for number in order[index : index + 3]:
            batch.append(whole[number], ("10.0.0.1", 4000), arrival_ns=1_000 + number)
        for answer in receiver.handle(DatagramsReceived(batch), 0):
            if isinstance(answer, Deliver):
                kept.append(bytes(answer.data))
            elif isinstance(answer, DeliverBatch):
                kept += [bytes(each.data) for each in answer.one_by_one()]
                arrivals += answer.messages.packet_arrivals_ns().tolist()
    assert kept == whole
    assert {1_001, 1_002} <= set(arrivals)
    assert set(arrivals) <= {1_000 + number for number in order}
    assert delivered(story(kept)) == [b"1", b"2", b"3", b"4", b"x" * 5_000, b"5", b"6", b"7"]
