"""A filter module trusts the addresses of its applications for repair requests, and for nothing else."""

import pytest

from penstock.base.counters import Cause
from penstock.filter.config import FilterConfig
from penstock.filter.core.module import FilterModule
from penstock.middleware import ReceiverConfig
from penstock.wire import Authenticator, PacketFlag, encode_gone, encode_nack
from unit.authentication_kit import authentic, scope
from unit.filter_module_kit import GROUP, PUBLISHER_ID, Harness, address_of, packets
from unit.middleware_kit import NoRandomness

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
    module = FilterModule(config, NoRandomness(), groups=[GROUP], authenticator=authenticator, keeps_books=True)
    found = Harness(module)
    found.attach(1)
    found.want(1, "t.>")
    found.attach(2)
    found.want(2, "other")
    return found


@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize("name", FORGED)
def test_only_requests_of_applications_need_no_trailer(name: str, in_batch: bool) -> None:
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
    receive([encode_nack(PUBLISHER_ID, GROUP, 1, [(2, 3)])], source=address_of(1))
    assert [each.sequence for each in module.unicast[address_of(1)]] == [2, 3]
    assert counters.by_cause("packets_dropped") == {Cause.UNAUTHENTICATED: 1}
