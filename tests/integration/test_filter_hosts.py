"""Filter modules on several hosts: network namespaces, with lossy networks between them."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import pytest

from integration.filter_kit import FilterHere, filter_here
from netns_kit import Faults, network_or_skip, wired, write_checksums
from penstock.bench.filter.process import running_filter
from penstock.bench.hosts import Host, Network
from penstock.filter.client import FilteredReceiver
from penstock.middleware import Deliver, DeliverBatch, LossReceipt, PublisherConfig, ReceiverConfig
from penstock.middleware.live import MulticastPublisher
from penstock.net.udp import Address, Channel, free_channel
from waiting import wait_until

TOPICS = 10
WANTS = (["t.1.*"], ["t.>", "!t.2.*"], ["t.3.x", "t.7.*"])
"""The interests of the applications of each host."""

CHOICES: tuple[Callable[[int], bool], ...] = (
    lambda number: number % TOPICS == 1,
    lambda number: number % TOPICS != 2,
    lambda number: number % TOPICS in (3, 7),
)
LOSS = 0.02
JOIN_START = ReceiverConfig(join="start", streams_max=64)


@pytest.fixture
def network() -> Iterator[Network]:
    with network_or_skip() as made:
        yield made


class Subscriber:
    """An application that reads continuously."""

    def __init__(self, address: Address, topics: Sequence[str], delivery: Any) -> None:
        self.receiver = FilteredReceiver(address, topics, delivery=delivery)
        self.story: list[int | LossReceipt] = []
        """The numbers of messages, and the reported losses between them."""

        self._is_over = False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._is_over:
            for each in self.receiver.receive(0.02):
                if isinstance(each, Deliver | DeliverBatch):
                    self.story += [int(bytes(message.payload)) for message in each.messages]
                elif isinstance(each, LossReceipt):
                    self.story.append(each)

    @property
    def numbers(self) -> list[int]:
        return [each for each in self.story if isinstance(each, int)]

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        self.receiver.close()


class Site:
    """A host with a filter module and its applications."""

    def __init__(self, host: Host, module: FilterHere, stack: ExitStack, delivery: str) -> None:
        self.host = host
        self.module = module
        with host.entered():
            self.applications = [Subscriber(("127.0.0.1", module.port), topics, delivery) for topics in WANTS]
        for application in self.applications:
            stack.callback(application.close)

    def wait_for(self, count: int) -> None:
        """All of the first `count` messages that match their interests, once, in order."""
        for application, is_wanted in zip(self.applications, CHOICES, strict=True):
            expected = [number for number in range(count) if is_wanted(number)]
            wait_until(lambda a=application, e=expected: len(a.story) >= len(e), "all messages")  # type: ignore[misc]
            assert application.story == expected

    def counted(self, name: str) -> int:
        return self.module.module.counters[name]

    def counted_by_applications(self, name: str) -> int:
        return sum(application.receiver.counters[name] for application in self.applications)


class Scene:
    """A host that publishes, and hosts that subscribe."""

    def __init__(self, network: Network, stack: ExitStack, hosts: int, delivery: str, values: dict[str, Any]) -> None:
        self.channel = free_channel()
        self.publishing = network.add_host()
        self._stack = stack
        self._delivery = delivery
        self._values = {"channels": (str(self.channel),), "receiver": JOIN_START, **values}
        self.sites = [self._site(network.add_host()) for _ in range(hosts)]

    def _site(self, host: Host) -> Site:
        with host.entered():
            module = self._stack.enter_context(filter_here(interface=host.address, **self._values))
        return Site(host, module, self._stack, self._delivery)

    def publisher(self, **values: Any) -> MulticastPublisher:
        channel = Channel(group=self.channel.group, port=self.channel.port, interface=self.publishing.address)
        with self.publishing.entered():
            publisher = MulticastPublisher(channel, config=PublisherConfig(linger_ms=1, **values))
        self._stack.callback(publisher.close)
        return publisher

    def asked(self) -> int:
        """The number of repair requests of the modules so far."""
        return sum(site.counted("nacks_sent") for site in self.sites)


@contextmanager
def scene(network: Network, hosts: int = 2, delivery: str = "unicast", **values: Any) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(network, stack, hosts, delivery, values)


def publish(publisher: MulticastPublisher, first: int, end: int, *, pause_s: float = 0.0003) -> None:
    """Publish numbered messages, with pauses."""
    pause = threading.Event()
    for number in range(first, end):
        publisher.publish(f"t.{number % TOPICS}.x", str(number).encode())
        if pause_s:
            pause.wait(pause_s)


@pytest.mark.spec("FILT-7", "FILT-8", "FILT-9", "FILT-10")
@pytest.mark.parametrize("repair", ["filter", "receivers"])
@pytest.mark.parametrize("delivery", ["unicast", "ring", "mask", "residual"])
def test_with_random_loss_every_application_gets_what_it_wants_once_and_in_order(
    network: Network, delivery: str, repair: str
) -> None:
    shared = {"shared": delivery} if delivery in ("mask", "residual") else {}
    with scene(network, delivery="shared" if shared else delivery, repair=repair, **shared) as made:
        for site in made.sites:
            site.host.lose(LOSS)
        publisher = made.publisher()
        publish(publisher, 0, 1_500)
        for site in made.sites:
            site.wait_for(1_500)
            assert site.host.lost > 0
        asked = made.asked()
        if repair == "filter":  # only the module requested packets, and hardly any packet twice
            assert sum(site.counted_by_applications("nacks_sent") for site in made.sites) == 0
            assert 0 < asked <= 1.5 * sum(site.host.lost for site in made.sites) + 5
            wait_until(lambda: publisher.counters["nacks_received"] == made.asked(), "the requests")
        else:
            assert asked == 0
            assert publisher.counters["nacks_received"] > 0


@pytest.mark.spec("FILT-4")
def test_datagrams_that_overtake_each_other_or_come_twice_are_put_in_order(network: Network) -> None:
    with scene(network) as made:
        late, other = made.sites
        write_checksums([made.publishing, other.host])
        faults = Faults(repeated=0.05, delay_ms=1.0, jitter_ms=3.0)
        with wired(late.host, faults, seed=11) as wire:
            publish(made.publisher(), 0, 1_000)
            late.wait_for(1_000)
            other.wait_for(1_000)
            assert wire.overtaken > 0
        assert other.counted("nacks_sent") == 0


@pytest.mark.spec("FILT-10")
def test_a_link_that_is_cut_and_returns_costs_its_host_nothing_and_the_others_neither(network: Network) -> None:
    with scene(network) as made:
        cut, other = made.sites
        publisher = made.publisher()
        publish(publisher, 0, 300)
        cut.wait_for(300)
        cut.host.cut()
        publish(publisher, 300, 600)
        other.wait_for(600)
        assert max(max(application.numbers) for application in cut.applications) < 300
        cut.host.mend()
        publish(publisher, 600, 900)
        for site in made.sites:
            site.wait_for(900)
        assert other.counted("nacks_sent") == 0


@pytest.mark.spec("FILT-10")
def test_what_cannot_be_repaired_after_a_cut_is_reported_lost_to_every_application(network: Network) -> None:
    with scene(network, hosts=1) as made:
        (site,) = made.sites
        publisher = made.publisher(retransmission_packets_max=100)
        publish(publisher, 0, 200)
        site.wait_for(200)
        site.host.cut()
        publish(publisher, 200, 500)
        site.host.mend()
        publish(publisher, 500, 550)
        for application, is_wanted in zip(site.applications, CHOICES, strict=True):
            wanted = [number for number in range(550) if is_wanted(number)]
            wait_until(lambda a=application, n=wanted[-1]: a.story[-1:] == [n], "the last message")  # type: ignore[misc]
            delivered = application.numbers
            assert [number for number in wanted if number < 200 or number >= 500] == [
                number for number in delivered if number < 200 or number >= 500
            ]
            assert len(delivered) < len(wanted)
            # losses occur only where a receipt reports them
            holes = {after for before, after in pairwise(delivered) if wanted.index(after) - wanted.index(before) > 1}
            assert holes == {each for receipt, each in pairwise(application.story) if isinstance(receipt, LossReceipt)}


@pytest.mark.spec("FILT-10")
def test_what_all_hosts_miss_is_asked_for_and_repaired_for_all(network: Network) -> None:
    receiver = ReceiverConfig(join="start", streams_max=64, nack="multicast", nack_delay_us=20_000)
    with scene(network, hosts=3, receiver=receiver) as made:
        write_checksums([site.host for site in made.sites])
        with wired(made.publishing, Faults(loss=LOSS), seed=5) as wire:
            publisher = made.publisher(nack="multicast", repair="multicast", repair_hold_ms=50)
            publish(publisher, 0, 1_000)
            for site in made.sites:
                site.wait_for(1_000)
            assert wire.lost > 0
        spared = sum(site.counted("nacks_suppressed") for site in made.sites) + publisher.counters["repairs_suppressed"]
        assert spared > 0
        assert publisher.counters["repairs_sent"] < 3 * wire.lost


@pytest.mark.spec("FILT-6")
def test_a_filter_in_a_process_of_its_own_serves_its_host(network: Network) -> None:
    channel, publishing, subscribing = free_channel(), network.add_host(), network.add_host()
    with ExitStack() as stack:
        with subscribing.entered():
            module = stack.enter_context(running_filter(channels=(str(channel),), interface=subscribing.address))
            application = Subscriber(module.address, WANTS[1], "ring")
            stack.callback(application.close)
        subscribing.lose(LOSS)
        with publishing.entered():
            at = Channel(group=channel.group, port=channel.port, interface=publishing.address)
            publisher = stack.enter_context(MulticastPublisher(at, config=PublisherConfig(linger_ms=1)))
        publish(publisher, 0, 10)  # the first may be lost: nobody has joined the stream then
        wait_until(lambda: application.numbers, "the first messages")
        publish(publisher, 10, 800)
        wait_until(lambda: application.numbers[-1] == 799, "the last message")
        first = application.numbers[0]
        assert application.numbers == [number for number in range(first, 800) if CHOICES[1](number)]
        assert module.counters()["nacks_sent"] > 0
