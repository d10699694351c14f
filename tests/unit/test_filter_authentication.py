"""Datagrams between a filter module and its applications are authenticated with the keys of the registration only."""

from typing import Any

import pytest

from penstock.base.clock import SystemRandomness
from penstock.base.counters import Cause
from penstock.filter.config import FilterConfig
from penstock.filter.core.module import FilterModule
from penstock.filter.core.request_window import RequestWindow
from penstock.middleware import DatagramReceived, Expect, Receiver, ReceiverConfig, StreamKey
from penstock.wire import AuthenticationKey, Authenticator, PacketFlag, encode_gone, encode_nack
from penstock.wire._authentication import trailer_under
from unit.authentication_kit import authentic, scope
from unit.filter_module_kit import GROUP, PUBLISHER_ID, Harness, address_of, harness, packets
from unit.middleware_kit import MS, NoRandomness, contents

STRANGER = ("10.0.0.66", 6_666)
FILTER = ("10.0.0.9", 7_000)

CONTENTS = [[("t.a", b"%d" % number)] for number in range(1, 5)]
FORGED = {
    "a later epoch": packets([("t.a", b"forged")], epoch=2**32 - 1)[0],
    "the next packet": packets([("t.a", b"forged")], first=2)[0],
    "the end of the stream": packets([("t.a", b"forged")], first=2, flags=PacketFlag.GOODBYE)[0],
    "a loss": encode_gone(PUBLISHER_ID, GROUP, 1, [(2, 3)]),
    "no packet": b"\x50",
    "nothing": b"",
}


def authenticated_module() -> Harness:
    authenticator = Authenticator([scope(publisher_id=PUBLISHER_ID)])
    config = FilterConfig(applications_max=16, conditions_max=32, receiver=ReceiverConfig(nack_delay_us=0))
    module = FilterModule(config, SystemRandomness(), groups=[GROUP], authenticator=authenticator, keeps_books=True)
    found = Harness(module)
    found.attach(1)
    found.want(1, "t.>")
    found.attach(2)
    found.want(2, "other")
    return found


def request(number: int, key: AuthenticationKey | None, packet: bytes = b"") -> bytes:
    """A repair request of an application, or another packet with the trailer of one."""
    made = packet or encode_nack(PUBLISHER_ID, GROUP, 1, [(2, 3)], requester=9, number=number)
    return made if key is None else made + trailer_under(made, key)


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize("name", FORGED)
def test_packets_from_an_application_address_without_its_key_change_nothing(name: str, in_batch: bool) -> None:
    module = authenticated_module()
    first, *rest = [authentic(each) for each in packets(*CONTENTS)]
    receive = module.take_batch if in_batch else module.take
    receive([first])
    receive([FORGED[name]], source=address_of(2))
    counters = module.module.receiver.counters
    assert counters.by_cause("packets_dropped") == {Cause.UNAUTHENTICATED: 1}
    receive(rest)
    sent = module.sent[module.attached[1].consumer]
    assert [bytes(message.payload) for packet in sent for message in packet] == [b"1", b"2", b"3", b"4"]
    assert module.ends(1) == []
    receive([request(1, module.attached[1].key)], source=address_of(1))
    assert [each.sequence for each in module.unicast[address_of(1)]] == [2, 3]
    assert counters.by_cause("packets_dropped") == {Cause.UNAUTHENTICATED: 1}


@pytest.mark.spec("AUTH-1", "AUTH-3")
@pytest.mark.parametrize("in_batch", [False, True])
def test_a_request_without_the_key_of_its_application_is_not_answered(in_batch: bool) -> None:
    module = authenticated_module()
    receive = module.take_batch if in_batch else module.take
    receive([authentic(each) for each in packets(*CONTENTS)])
    own, others = module.attached[1].key, module.attached[2].key
    assert own is not None
    assert others is not None
    assert own != others
    dropped = module.module.receiver.counters
    receive([request(1, None), request(1, others), authentic(request(1, None))], source=address_of(1))
    assert dropped.by_cause("packets_dropped") == {
        Cause.UNAUTHENTICATED: 1,
        Cause.FORGED: 1,
        Cause.UNKNOWN_KEY: 1,
    }
    receive([request(1, own)], source=STRANGER)
    receive([request(1, own, packets([("t.a", b"forged")], first=5)[0])], source=address_of(1))
    assert dropped.by_cause("packets_dropped")[Cause.UNKNOWN_KEY] == 3, "the key is valid for requests of that address"
    assert not module.datagrams
    receive([request(1, own)], source=address_of(1))
    assert len(module.datagrams[address_of(1)]) == 2
    module.now_ns += 10_000 * MS
    receive([request(1, own), request(0, own)], source=address_of(1))
    assert dropped.by_cause("packets_dropped")[Cause.STALE_REQUEST] == 2
    assert len(module.datagrams[address_of(1)]) == 2
    module.detach(1)
    module.attach(1, "t.>")
    receive([request(2, own)], source=address_of(1))
    assert dropped.by_cause("packets_dropped")[Cause.FORGED] == 2, "another registration has another key"


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize("delivery", ["unicast", "ring", "shared"])
def test_what_the_module_sends_to_an_application_is_authentic_under_its_keys(delivery: Any) -> None:
    module = authenticated_module()
    module.detach(1)
    module.attach(1, delivery=delivery)
    module.want(1, "t.>")
    attached = module.attached[1]
    opened = module.consumers[attached.consumer]
    assert opened.key == (attached.group_key if delivery == "shared" else attached.key)
    assert opened.key is not None
    module.take([authentic(each) for each in packets(*CONTENTS)])
    module.take([request(1, attached.key)], source=address_of(1))
    (sent, _) = module.datagrams[address_of(1)]
    assert attached.key is not None
    application = Authenticator(trusted={FILTER: (attached.key,)})
    assert application.check(sent, FILTER) is not None
    assert application.check(sent, STRANGER) is None
    assert application.check(sent[:-1] + bytes([sent[-1] ^ 1]), FILTER) is None
    assert application.check(authentic(packets(*CONTENTS)[0]), FILTER) is None, "not with a publishers' key"


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize("name", FORGED)
def test_an_application_accepts_nothing_from_its_filters_address_without_a_key(name: str) -> None:
    key = AuthenticationKey(1, b"of the module...")
    authenticator = Authenticator(trusted={FILTER: (key,)})
    core = Receiver(ReceiverConfig(), NoRandomness(), only_expected=True, authenticator=authenticator)
    core.handle(Expect(StreamKey(PUBLISHER_ID, GROUP), 1, 1, FILTER), 0)
    first, *rest = (each + trailer_under(each, key) for each in packets(*CONTENTS))
    said = core.handle(DatagramReceived(first, FILTER), 0)
    assert core.handle(DatagramReceived(FORGED[name], FILTER), 0) == []
    guessed = AuthenticationKey(1, bytes(16))
    if len(FORGED[name]) > 1:
        forged = FORGED[name] + trailer_under(FORGED[name], guessed)
        assert core.handle(DatagramReceived(forged, FILTER), 0) == []
        assert core.counters.by_cause("packets_dropped")[Cause.FORGED] == 1
    said += [each for packet in rest for each in core.handle(DatagramReceived(packet, FILTER), 0)]
    assert contents(said) == ["1", "2", "3", "4"]


def test_datagrams_have_no_trailers_if_the_module_has_no_keys() -> None:
    module = harness()
    module.attach(1, "t.>")
    attached = module.attached[1]
    assert (attached.key, attached.group_key, module.consumers[attached.consumer].key) == (None, None, None)
    module.take(packets(*CONTENTS))
    module.nack(1, (2, 3))
    assert module.datagrams[address_of(1)] == [bytes(each.data) for each in module.unicast[address_of(1)]]


def test_each_recent_number_of_a_requester_is_admitted_once_in_any_order() -> None:
    window = RequestWindow()
    assert [window.admits(7, number) for number in (5, 3, 5, 3, 4, 1_500, 477, 476, 1_499, 1_499)] == [
        True, True, False, False, True, True, True, False, True, False,
    ]  # fmt: skip
    assert window.admits(8, 1)
    assert not window.admits(8, 1)
    assert not window.admits(0, 1)
