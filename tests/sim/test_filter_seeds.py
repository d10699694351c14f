"""Filter modules under every fault of publishers, networks, applications and their own, and checkers that must detect
broken promises."""

from typing import Any

import msgspec
import pytest

import penstock.filter.core.forwarded_stream as carried
import penstock.filter.core.repairs as repairing
from penstock.base.counters import Cause
from penstock.base.errors import SimulationError
from penstock.filter.core.consumers import Audience
from penstock.filter.core.forwarded_stream import ForwardedStream
from penstock.filter.core.interests import InterestBook
from penstock.filter.core.module import FilterModule
from penstock.filter.core.pass_through import PassThroughStream
from penstock.filter.core.repairs import Repairs
from penstock.filter.core.request_window import RequestWindow
from penstock.filter.core.traffic import Traffic
from penstock.middleware import Receiver, Unicast
from penstock.middleware.core import publisher as publishing
from penstock.middleware.core._requests import RequestGate
from penstock.sim import FilterPlant, FilterPlantOptions, World, run_filter_seed
from penstock.sim.filter.apps import ApplicationNode
from penstock.sim.filter.control import Registered
from penstock.sim.middleware.stranger import ADDRESS as STRANGER
from penstock.wire import PacketFlag, decode, restamp

SEEDS = 60
SEEDS_PER_TEST = 20
SOAK_SEEDS = 4_000
SECONDS = 0.3


def run_seeds(seeds: range, seconds: float = SECONDS) -> None:
    for seed in seeds:
        run_filter_seed(seed, seconds=seconds)


@pytest.mark.spec("FILT-4", "FILT-6", "FILT-7", "FILT-8", "FILT-9", "FILT-10")
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_each_application_gets_its_messages_once_and_in_order_or_a_report(first: int) -> None:
    run_seeds(range(first, first + SEEDS_PER_TEST))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, 50))
def test_many_more_seeds(first: int) -> None:
    run_seeds(range(first, first + 50), seconds=3)


def test_a_seed_replays_exactly() -> None:
    assert run_filter_seed(3, seconds=0.3) == run_filter_seed(3, seconds=0.3)
    assert run_filter_seed(3, seconds=0.3).digest != run_filter_seed(4, seconds=0.3).digest


def test_the_seeds_cover_every_kind_of_fault() -> None:
    summaries = [run_filter_seed(seed, seconds=SECONDS) for seed in range(20)]
    for name in (
        "datagrams_lost", "nacks_sent", "repairs_sent", "packets_reported_lost", "interest_changes",
        "messages_unwanted", "messages_delivered", "packets_forged", "packets_resent",
    ):  # fmt: skip
        assert sum(getattr(each, name) for each in summaries) > len(summaries), name
    assert sum(each.crashes for each in summaries) > 5
    assert {(each.is_mild, each.repair) for each in summaries} == {
        (is_mild, repair) for is_mild in (True, False) for repair in ("filter", "receivers")
    }


def test_a_quiet_plant_loses_nothing() -> None:
    plant = FilterPlant(World(7), FilterPlantOptions())
    plant.start()
    plant.run(500_000_000)
    plant.finish()
    summary = plant.summary()
    assert (summary.packets_reported_lost, summary.crashes) == (0, 0)
    assert summary.messages_delivered > 300
    assert summary.messages_unwanted > 0


# Each sabotage breaks one promise of the product; a checker must detect the sabotage from outside.


def cover_losses_with_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets that were lost look as if they had been removed on purpose."""
    original = ForwardedStream.lose

    def broken(self: ForwardedStream, first: int, last: int, cause: Cause) -> None:
        told = {consumer: self.account.expected_by(consumer) for consumer in self.account.listeners()}
        original(self, first, last, cause)
        for consumer, expected in told.items():
            self.account.listen(consumer, expected)

    monkeypatch.setattr(ForwardedStream, "lose", broken)


def count_no_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ForwardedStream.lose

    def broken(self: ForwardedStream, first: int, last: int, cause: Cause) -> None:
        original(self, first, last, cause)
        self.lost_by_cause.clear()

    monkeypatch.setattr(ForwardedStream, "lose", broken)


def answer_no_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Repairs, "answer", lambda self, stream, application, ranges, now_ns: [])


def say_gone_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """No packets are kept for repairs."""

    def broken(self: Repairs, stream: ForwardedStream, application: Any, run: range) -> list[bytes]:
        return [repairing.encode_gone(stream.key.publisher_id, stream.key.group, stream.epoch, [(run[0], run[-1])])]

    monkeypatch.setattr(Repairs, "_repair", broken)


def repair_without_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every repair declares all earlier packets as removed on purpose."""
    original = Repairs._repair

    def broken(self: Repairs, stream: Any, application: Any, run: range) -> list[bytes]:
        made = original(self, stream, application, run)
        return [restamp(each, gap=decode(each).sequence - 1) for each in made]

    monkeypatch.setattr(Repairs, "_repair", broken)


def repair_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repairs are sent unfiltered, with messages of other applications."""

    def broken(self: Repairs, stream: ForwardedStream, application: Any, run: range) -> list[bytes]:
        assert stream.kept is not None
        packets = [stream.kept.get(sequence) for sequence in run]
        return [restamp(each, set_flags=PacketFlag.REPAIR) for each in packets if each]

    monkeypatch.setattr(Repairs, "_repair", broken)


def drop_what_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A multicast repair is not passed on to the applications that requested it."""
    monkeypatch.setattr(PassThroughStream, "_take_late", lambda self, packet: [])


def forget_goodbyes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A goodbye that an application missed is not repeated, and neither is any other packet of the ended stream."""
    monkeypatch.setattr(Traffic, "ended", lambda self, key, epoch: None)


def ask_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module does not send its own repair requests."""
    original = Traffic.carry

    def broken(self: Traffic, said: list[Any], now_ns: int) -> None:
        original(self, said, now_ns)
        self._said = [each for each in self._said if not isinstance(each, Unicast)]

    monkeypatch.setattr(Traffic, "carry", broken)


def take_interests_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that adds interests is acknowledged before the interests are active."""
    original = InterestBook.change

    def broken(self: InterestBook, application: Any, want: Any, check: Any) -> Any:
        if len(application.slots) > 1 and want.remove:
            want = type(want)(want.application, [], want.remove)
        return original(self, application, want, check)

    monkeypatch.setattr(InterestBook, "change", broken)


def never_remove_interests(monkeypatch: pytest.MonkeyPatch) -> None:
    original = InterestBook.change

    def broken(self: InterestBook, application: Any, want: Any, check: Any) -> Any:
        return original(self, application, type(want)(want.application, want.add, []), check)

    monkeypatch.setattr(InterestBook, "change", broken)


def keep_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Applications that have left are still served."""
    monkeypatch.setattr(FilterModule, "_detach", lambda self, event: [])


def start_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that joins late gets too high a start position, and misses the packets before it."""
    original = Traffic.listen

    def broken(self: Traffic, application: Any, group: int, *, is_new_to_consumer: bool) -> None:
        original(self, application, group, is_new_to_consumer=is_new_to_consumer)
        for stream in self._of_group(group):
            stream.account.listen(application.consumer.number, stream.next_sequence + 3)

    monkeypatch.setattr(Traffic, "listen", broken)


def swap_applications(monkeypatch: pytest.MonkeyPatch) -> None:
    """All applications have the same bit in a mask."""
    original = Audience.attach

    def broken(self: Audience, event: Any) -> list[Any]:
        answers = original(self, event)
        application = self.applications[event.application]
        application.bit = 0
        return answers

    monkeypatch.setattr(Audience, "attach", broken)


def keep_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    original = carried.PacketStore
    monkeypatch.setattr(carried, "PacketStore", lambda *bounds, **more: original(100_000, 2**26, **more))


def stay_with_the_first_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Receiver, "_follow", lambda self, stream, source: [])


def answer_recorded_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every repair request is checked as if it were the first one."""

    class ForgetfulGate(RequestGate):
        def __init__(self, seed: int, **values: Any) -> None:
            self.fresh = lambda: RequestGate(seed, **values)

        def admits(self, data: Any, source: int, now_ns: int) -> bool:
            return self.fresh().admits(data, source, now_ns)

    monkeypatch.setattr(publishing, "RequestGate", ForgetfulGate)


def trust_the_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter module accepts packets without a trailer from an unauthenticated address."""

    def broken(self: FilterModule) -> None:
        if self._authenticator is not None:
            self._authenticator.trust({STRANGER: ()})

    monkeypatch.setattr(FilterModule, "_trust_applications", broken)


def know_applications_by_their_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter module answers repair requests without a trailer from the address of an application."""

    def broken(self: FilterModule) -> None:
        if self._authenticator is not None:
            addresses = [each.address for each in self._audience.applications.values()]
            self._authenticator.trust(dict.fromkeys(addresses, ()), requests_only=True)

    monkeypatch.setattr(FilterModule, "_trust_applications", broken)


def answer_recorded_requests_of_applications(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestWindow, "admits", lambda self, requester, number: True)


def know_the_filter_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application accepts packets without a trailer from the address of its filter module."""
    original = ApplicationNode._hear

    def broken(self: ApplicationNode, message: Any) -> None:
        if isinstance(message, Registered):
            attached = msgspec.structs.replace(message.attached, key=None, group_key=None)
            message = msgspec.structs.replace(message, attached=attached)
        original(self, message)

    monkeypatch.setattr(ApplicationNode, "_hear", broken)


def start_at_any_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application accepts the first packet of a stream from a sender other than its filter module."""
    monkeypatch.setattr(Receiver, "_may_start", lambda self, key, epoch, source: True)


@pytest.mark.spec("AUTH-1", "AUTH-2")
@pytest.mark.parametrize(
    ("sabotage", "checker"),
    [
        (stay_with_the_first_source, "SourceChecker"),
        (answer_recorded_requests, "RequestChecker"),
        (trust_the_stranger, "Filtered"),
        (start_at_any_packet, "Filtered"),
        (know_applications_by_their_addresses, "Filtered"),
        (answer_recorded_requests_of_applications, "FilteredRequestChecker"),
        (know_the_filter_by_its_address, "Filtered"),
    ],
)
def test_the_checkers_of_strangers_detect_every_sabotage(
    sabotage: Any, checker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    with pytest.raises(SimulationError, match=checker):
        run_seeds(range(60), seconds=1)


@pytest.mark.parametrize(
    ("sabotage", "first"),
    [
        (cover_losses_with_gaps, 1),
        (count_no_losses, 1),
        (answer_no_requests, 5),
        (say_gone_of_everything, 5),
        (repair_without_the_range, 0),
        (repair_for_another, 36),
        (drop_what_comes_late, 10),
        (forget_goodbyes, 0),
        (ask_nobody, 5),
        (take_interests_late, 0),
        (never_remove_interests, 0),
        (keep_the_dead, 0),
        (start_elsewhere, 25),
        (swap_applications, 0),
        (keep_without_bound, 0),
    ],
)
def test_the_checkers_detect_every_sabotage(sabotage: Any, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`first` is a seed that fails, so that the test is short."""
    sabotage(monkeypatch)
    with pytest.raises(SimulationError) as caught:
        run_seeds(range(first, 60))
    assert "Checker" in caught.value.what
    assert "penstock sim --scenario filter --seed" in caught.value.hint
