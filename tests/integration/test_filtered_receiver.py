"""An application behind a stand-in of a filter module, which follows the orders of the test."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from filter_stand_in import StandInFilter, position
from penstock.base.counters import Cause
from penstock.base.errors import ConfigurationError, LocalProtocolError, RefusedError, TopicError, UnreachableError
from penstock.filter.client import FilteredReceiver
from penstock.filter.core.control import (
    Collided,
    ControlMessage,
    Ended,
    Models,
    Refused,
    Register,
    RenewToken,
    RestartRing,
    Want,
)
from penstock.middleware import Collision, Deliver, DeliverBatch, LossReceipt, ReceiverConfig, StreamEnded
from penstock.middleware.live.receiver import Received
from penstock.model import shipped
from penstock.net.udp import free_ports
from penstock.wire import (
    Extension,
    MessageFlag,
    Packer,
    PacketFlag,
    decode,
    encode_destination,
    encode_extensions,
    encode_gone,
    encode_interest_mask,
    restamp,
)
from unit.middleware_kit import GROUP, KEY, PUBLISHER_ID, packets
from waiting import wait_until

QUICK = ReceiverConfig(nack_delay_us=1_000, nack_retry_ms=20)
WORD = position(publisher_id=PUBLISHER_ID, group=GROUP)


@pytest.fixture
def module() -> Iterator[StandInFilter]:
    with StandInFilter() as module:
        module.before_holds = [WORD]
        yield module


def application(module: StandInFilter, *topics: str, **options: Any) -> FilteredReceiver:
    return FilteredReceiver(module.place, topics or ("t",), **{"config": QUICK, **options})


def payloads(received: list[Received]) -> list[str]:
    deliveries = [each for each in received if isinstance(each, Deliver | DeliverBatch)]
    return [bytes(message.payload).decode(errors="replace") for each in deliveries for message in each.messages]


def receive(receiver: FilteredReceiver, count: int) -> list[Received]:
    """Receive until this number of messages has arrived."""
    received: list[Received] = []
    deadline = time.monotonic() + 30
    while len(payloads(received)) < count:
        assert time.monotonic() < deadline, f"only {payloads(received)} came"
        received += [part for each in receiver.receive(0.05) for part in kept(each)]
    return received


def kept(each: Received) -> list[Any]:
    """Copy the messages, because a batch is valid only until the next call."""
    return list(each.one_by_one()) if isinstance(each, DeliverBatch) else [each]


@pytest.mark.spec("FILT-6", "FILT-7")
def test_an_application_says_what_it_wants_and_gets_what_the_filter_sends(module: StandInFilter) -> None:
    with application(module, "md.>", "!md.zz.>", where="bid_price > 1", channels=["239.1.1.1:7000"]) as receiver:
        (wanted,) = module.wanted
        assert wanted.topics == ["!md.zz.>", "md.>"]  # unwanted messages come first
        assert (wanted.where, wanted.channels) == ("bid_price > 1", ["239.1.1.1:7000"])
        assert module.application.application_id == receiver.address > 0
        assert receiver.is_attached
        module.send(*packets(3))
        assert payloads(receive(receiver, 3)) == ["1", "2", "3"]
        receiver.want("more")
        receiver.unwant("md.>", where="bid_price > 1")
        assert [each.topics for each in module.said(Want)[-1].remove] == [["md.>"]]
        receiver.renew("a newer token")
        receiver.learn([shipped("quote")])
        wait_until(lambda: module.said(RenewToken), "the token")
        assert module.said(Models)[0].documents == [shipped("quote").text]


@pytest.mark.spec("FILT-4")
def test_loss_between_filter_and_application_is_asked_for_at_the_filter(module: StandInFilter) -> None:
    sent = packets(5)
    with application(module) as receiver:
        module.send(sent[1], restamp(sent[4], gap=1))  # 1 and 3 are lost, 4 was removed
        asked: list[bytes] = []
        while sum(last - first + 1 for data in asked for first, last in decode(data).ranges) < 2:
            assert payloads(receiver.receive(0.05)) == []
            asked += module.requests()
        repair = [restamp(each, set_flags=PacketFlag.REPAIR) for each in (sent[0], sent[2])]
        module.send(*repair)
        assert payloads(receive(receiver, 4)) == ["1", "2", "3", "5"]
        module.send(restamp(packets(1, first=9)[0], gap=1))
        receiver.receive(0.05)
        module.send(encode_gone(PUBLISHER_ID, GROUP, 1, [(6, 7)]))
        received = receive(receiver, 1)
        assert [(each.first, each.last) for each in received if isinstance(each, LossReceipt)] == [(6, 7)]


def test_a_first_packet_that_overtakes_the_filters_word_waits_for_it(module: StandInFilter) -> None:
    module.before_holds = []
    with application(module) as receiver:
        module.send(*packets(2, first=3))
        timer = threading.Timer(0.03, lambda: module.say(position(2, publisher_id=PUBLISHER_ID, group=GROUP)))
        timer.start()
        assert payloads(receiver.receive(0.2)) == []  # 2 is missing, which only the Position message shows
        timer.join()
        module.send(*packets(1, first=2))
        assert payloads(receive(receiver, 3)) == ["2", "3", "4"]


def test_packets_that_the_filter_does_not_send_or_tell_of_are_dropped(module: StandInFilter) -> None:
    with application(module) as receiver, StandInFilter() as stranger:
        stranger.send_to(module.application.port, *packets(2), b"", b"garbage")
        module.send(*packets(1, publisher_id=7), *packets(1))
        assert payloads(receive(receiver, 1)) == ["1"]
        assert receiver.counters.by_cause("packets_dropped").keys() == {
            Cause.ID_COLLISION, Cause.FOREIGN, Cause.UNKNOWN_STREAM
        }  # fmt: skip


@pytest.mark.spec("FILT-10")
def test_repairs_straight_from_the_publisher_are_judged_here() -> None:
    with StandInFilter(repair="receivers") as module, StandInFilter() as publisher:
        module.before_holds = [position(publisher_id=PUBLISHER_ID, group=GROUP, source=publisher.address)]
        with application(module, "wanted.*", where="bid_price > 100") as receiver:
            quote = shipped("quote")
            packer = Packer(PUBLISHER_ID, GROUP, 1)
            for topic, price in (("wanted.a", 101), ("wanted.b", 99), ("other", 200)):
                model = {"model_id": quote.id, "model_version": quote.version}
                packer.add(topic, bytes(quote.new(bid_price=price)), **model)
            repair = restamp(packer.flush() or b"", set_flags=PacketFlag.REPAIR)
            module.send(*packets(1, first=2))
            asked: list[bytes] = []
            while not asked:
                assert payloads(receiver.receive(0.05)) == []
                asked = publisher.requests()
            assert decode(asked[0]).ranges == [(1, 1)]
            publisher.send_to(module.application.port, repair)
            first, second = receive(receiver, 2)[-2:]
            assert isinstance(first, Deliver)
            assert [message.topic for message in first.messages] == ["wanted.a"]
            assert isinstance(second, Deliver | DeliverBatch)
            assert module.requests() == []


@pytest.mark.spec("FILT-8")
@pytest.mark.parametrize("delivery", ["mask", "residual"])
def test_of_a_shared_copy_an_application_takes_its_own(delivery: str) -> None:
    group = f"239.255.77.{1 + free_ports(1)[0] % 250}"
    (port,) = free_ports(1)
    with StandInFilter(delivery=delivery, group=group, group_port=port, bit=65) as module:
        module.before_holds = [WORD]
        with application(module, "mine", delivery="shared") as receiver:
            assert module.application.delivery == "shared"
            packer, made = Packer(PUBLISHER_ID, GROUP, 1), []
            for number in range(8):
                is_mine = number % 2 == 0
                bodies = {}
                if delivery == "mask" and number < 6:  # the last messages have no mask
                    bodies[int(Extension.INTEREST_MASK)] = encode_interest_mask((1 << 65 if is_mine else 0) | 1)
                extensions = encode_extensions(bodies)
                packer.add("mine" if is_mine else "other", str(number).encode(), extensions=extensions)
                if number != 2:
                    made.append(packer.flush() or b"")
            module._outlet.send(int.from_bytes(bytes(map(int, group.split("."))), "big") << 16 | port, made[0])
            assert payloads(receive(receiver, 1)) == ["0"]
            for packet in made[1:]:
                module._outlet.send(int.from_bytes(bytes(map(int, group.split("."))), "big") << 16 | port, packet)
            assert payloads(receive(receiver, 3)) == ["2", "4", "6"]


@pytest.mark.spec("FILT-11")
@pytest.mark.parametrize("spin", [True, False])
def test_packets_come_in_a_ring_and_a_slow_reader_finds_its_way_back(spin: bool) -> None:
    with StandInFilter(delivery="ring") as module:
        module.before_holds = [WORD]
        with application(module, delivery="ring", spin=spin) as receiver:
            module.send(*packets(3))
            assert payloads(receive(receiver, 3)) == ["1", "2", "3"]
            lost = 2_000
            module.send(*packets(lost, first=4))  # several times the ring
            wait_until(lambda: (receiver.receive(0.01), module.said(RestartRing))[1], "a restart of the ring")
            wait_until(lambda: (receiver.receive(0.01), receiver._ring)[1] is not None, "the ring")
            module.send(*packets(1, first=4 + lost))
            wait_until(lambda: (receiver.receive(0.01), module.requests())[1], "a request for what was lost")
            module.send_to(module.application.port, encode_gone(PUBLISHER_ID, GROUP, 1, [(4, 3 + lost)]))
            assert payloads(receive(receiver, 1)) == [str(4 + lost)]
            assert receiver.counters["rings_overrun"] == 1
            assert receiver.counters.by_cause("packets_lost") == {Cause.GONE: lost}


@pytest.mark.parametrize("delivery", ["unicast", "ring"])
@pytest.mark.parametrize("spin", [True, False])
def test_messages_are_iterated_one_by_one_whether_they_come_in_order_or_not(delivery: str, spin: bool) -> None:
    with StandInFilter(delivery=delivery) as module:
        module.before_holds = [WORD]
        with application(module, delivery=delivery, spin=spin) as receiver:
            messages = iter(receiver)
            for sent, expected in (
                (packets(1), ["1"]),
                (packets(3, first=2), ["2", "3", "4"]),
                ([*packets(1, first=6), *packets(1, first=5)], ["5", "6"]),
                (packets(1, first=7), ["7"]),
            ):
                module.send(*sent)
                assert [bytes(next(messages).payload).decode() for _ in expected] == expected


@pytest.mark.parametrize("delivery", ["unicast", "ring"])
def test_when_the_filter_is_replaced_streams_go_on_and_what_is_gone_is_reported(delivery: str) -> None:
    with StandInFilter(delivery=delivery) as first:
        first.before_holds = [WORD]
        receiver = application(first, "t", "!u", delivery=delivery)
        receiver.want("v", channels=["239.1.1.1:7000"])
        first.send(*packets(2))
        assert payloads(receive(receiver, 2)) == ["1", "2"]
    with receiver:
        wait_until(lambda: (receiver.receive(0.01), receiver.is_attached)[1] is False, "the loss of the filter")
        assert receiver.want("while-it-is-gone") is False
        assert receiver.detached_s > 0
        with StandInFilter(first.port, delivery=delivery) as second:
            second.before_holds = [position(5, publisher_id=PUBLISHER_ID, group=GROUP)]
            wait_until(lambda: (receiver.receive(0.01), receiver.is_attached)[1], "the next filter")
            assert [(each.topics, each.channels) for each in second.wanted] == [
                (["!u", "t", "while-it-is-gone"], []),
                (["v"], ["239.1.1.1:7000"]),
            ]
            assert second.application.application_id == receiver.address
            second.send(*packets(1, first=5))
            wait_until(lambda: (receiver.receive(0.01), second.requests())[1], "a request for what was missed")
            second.send_to(second.application.port, encode_gone(PUBLISHER_ID, GROUP, 1, [(3, 4)]))
            received = receive(receiver, 1)
            assert [(each.first, each.last) for each in received if isinstance(each, LossReceipt)] == [(3, 4)]
            assert payloads(received) == ["5"]


def test_a_filter_that_never_comes_back_loses_nothing_silently() -> None:
    with StandInFilter() as module:
        module.before_holds = [WORD]
        config = ReceiverConfig(publisher_expiry_ms=100)
        with application(module, config=config) as receiver:
            module.send(*packets(1))
            assert payloads(receive(receiver, 1)) == ["1"]
            ended: list[Received] = []
            wait_until(lambda: ended.extend(receiver.receive(0.01)) or ended, "the end of the stream")
            assert ended == [StreamEnded(KEY, 1, 2, Cause.EXPIRED)]


def test_a_stream_that_was_not_listened_to_for_a_while_is_not_missed(module: StandInFilter) -> None:
    with application(module) as receiver:
        module.send(*packets(2))
        assert payloads(receive(receiver, 2)) == ["1", "2"]
        module.say(position(7, publisher_id=PUBLISHER_ID, group=GROUP))
        module.send(*packets(1, first=7))
        received = receive(receiver, 1)  # the packet may arrive before or after the control message
        assert not [each for each in received if isinstance(each, LossReceipt)]


def test_a_stream_that_the_filter_took_for_ended_and_comes_back_is_missed(module: StandInFilter) -> None:
    with application(module) as receiver:
        module.send(*packets(2))
        assert payloads(receive(receiver, 2)) == ["1", "2"]
        module.say(Ended(PUBLISHER_ID, GROUP, 1, 3, "expired"), position(5, publisher_id=PUBLISHER_ID, group=GROUP))
        module.send(*packets(1, first=5))
        wait_until(lambda: (receiver.receive(0.01), module.requests())[1], "a request for what was missed")


@pytest.mark.spec("FILT-5", "FILT-10")
def test_the_loss_of_the_last_packet_before_the_publishers_end_is_noticed(module: StandInFilter) -> None:
    with application(module) as receiver:
        sent = packets(3)
        module.send(*sent[:2])
        assert payloads(receive(receiver, 2)) == ["1", "2"]
        module.say(Ended(PUBLISHER_ID, GROUP, 1, 4, "expired"))
        requests: list[bytes] = []
        wait_until(lambda: (receiver.receive(0.01), requests.extend(module.requests())) and requests, "a request")
        assert decode(requests[0]).ranges == [(3, 3)]
        module.send(restamp(sent[2], set_flags=PacketFlag.REPAIR))
        assert payloads(receive(receiver, 1)) == ["3"]


@pytest.mark.spec("FILT-15")
def test_a_collision_is_told(module: StandInFilter) -> None:
    with application(module) as receiver:
        module.say(Collided(PUBLISHER_ID, GROUP, 1, "10.0.0.1:4000", "10.0.0.9:4001"))
        found: list[Received] = []
        wait_until(lambda: found.extend(receiver.receive(0.01)) or found, "the collision")
        assert found == [Collision(KEY, 1, ("10.0.0.1", 4_000), ("10.0.0.9", 4_001))]


def refusing(kind: type, code: str, *, number: bool = True) -> Any:
    def answer(message: ControlMessage) -> ControlMessage | None:
        if isinstance(message, kind):
            return Refused(code, "for a test", getattr(message, "number", 0) if number else 0)
        return None

    return answer


def test_refusals_are_told_to_whoever_asked(module: StandInFilter) -> None:
    with application(module) as receiver:
        module.answers = refusing(Want, "entitlement")
        with pytest.raises(RefusedError, match="for a test") as caught:
            receiver.want("secrets")
        assert caught.value.peer_code == "entitlement"
        module.answers = lambda message: None
        module.hang_up()
        wait_until(lambda: len(module.said(Register)) == 2 and receiver.is_attached, "another connection")
        assert module.wanted[-1].topics == ["t"]  # what was refused is not wanted any more
        with pytest.raises(TopicError):
            receiver.want("a..b")
        with pytest.raises(LocalProtocolError):
            receiver.want("a", where="x > 1", content=b"y")


@pytest.mark.parametrize(("kind", "code"), [(Register, "token"), (Register, "revoked"), (Want, "entitlement")])
def test_an_application_that_is_refused_from_the_start_is_told_why(
    module: StandInFilter, kind: type, code: str
) -> None:
    module.answers = refusing(kind, code)
    with pytest.raises(RefusedError) as caught:
        application(module, timeout=0.5)
    assert caught.value.peer_code == code


def test_what_is_taken_back_later_is_raised_or_told(module: StandInFilter) -> None:
    told: list[RefusedError] = []
    with application(module) as receiver, application(module, on_refused=told.append) as other:
        module.answers = refusing(Register, "revoked")
        module.hang_up()  # the connection of the second application
        wait_until(lambda: told, "the refusal")
        assert (told[0].peer_code, other.is_attached) == ("revoked", False)
        assert other.receive(0.01) == []
        assert receiver.is_attached
    with StandInFilter() as another, application(another) as receiver:
        another.say(Refused("revoked", "left the firm"))
        wait_until(lambda: raised(receiver), "the refusal")
        assert "left the firm" in str(raised(receiver))


def raised(receiver: FilteredReceiver) -> RefusedError | None:
    try:
        receiver.receive(0.01)
    except RefusedError as error:
        return error
    return None


def test_nobody_there_is_said_at_once() -> None:
    with pytest.raises(UnreachableError):
        FilteredReceiver(f"127.0.0.1:{free_ports(1)[0]}", ["t"], timeout=0.3)
    with pytest.raises(ConfigurationError):
        FilteredReceiver("127.0.0.1", ["t"])


@pytest.mark.spec("FILT-16")
def test_of_shared_and_repaired_packets_messages_to_others_alone_are_not_taken() -> None:
    with StandInFilter(repair="receivers") as module:
        module.before_holds = [WORD]
        with application(module, ">", application_id=77) as receiver:
            assert receiver.address == 77
            packer = Packer(PUBLISHER_ID, GROUP, 1)
            for destination in (77, 78):
                extensions = encode_extensions({int(Extension.DESTINATION): encode_destination(destination)})
                packer.add("", str(destination).encode(), flags=MessageFlag.DIRECT, extensions=extensions)
            packer.add("t", b"t")
            packet = packer.flush() or b""
            module.send(*packets(1, first=2))
            receiver.receive(0.05)
            module.send(restamp(packet, set_flags=PacketFlag.REPAIR))
            assert payloads(receive(receiver, 3)) == ["77", "t", "2"]


def test_many_interests_are_said_in_parts(module: StandInFilter) -> None:
    topics = [f"md.us.eq.{'x' * 100}{number:06}" for number in range(20_000)]
    with application(module, *topics):
        wanted = [topic for each in module.wanted for topic in each.topics]
        assert len(module.said(Want)) > 2
        assert sorted(wanted) == topics


def test_positions_are_bounded(module: StandInFilter) -> None:
    with application(module) as receiver:
        receiver._link.inbox.extend([WORD] * 65_536)
        module.say(WORD)
        wait_until(lambda: len(module.said(Register)) == 2, "another connection")
        assert receiver.receive(0.05) == []
