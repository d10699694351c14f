"""A filter module on real sockets: deliveries, changes, refusals, and failures around it."""

import asyncio
import itertools
import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from integration.filter_kit import Application, FilterHere, filter_here
from integration.test_garbage import sender, thrown
from penstock.base.errors import ConfigurationError, PenstockError
from penstock.base.limits import PACKET_SIZE_MAX
from penstock.filter.client.ring_offer import RingOffer
from penstock.filter.core import control
from penstock.filter.module_config import FilterAccess
from penstock.middleware import OutgoingMessage, PublisherConfig, ReceiverConfig
from penstock.middleware.live import MulticastPublisher, MulticastReceiver
from penstock.model import shipped
from penstock.net.secret import Secret, write_private
from penstock.net.udp import Channel, free_channel, free_ports
from penstock.shm import RingWriter
from waiting import PATIENCE_SECONDS, wait_until

QUICK = PublisherConfig(linger_ms=1)
SECRET = b"sixteen bytes or more"


@pytest.fixture
def channel() -> Channel:
    return free_channel()


@pytest.fixture
def beside(channel: Channel) -> Iterator[FilterHere]:
    with filter_here(channels=(str(channel),), shared_port=channel.port) as made:
        yield made


@pytest.fixture
def publisher(channel: Channel) -> Iterator[MulticastPublisher]:
    with MulticastPublisher(channel, config=QUICK) as made:
        yield made


def publish(publisher: MulticastPublisher, *topics: str, count: int = 1, start: int = 0) -> None:
    """Messages whose payloads name them."""
    for number in range(start, start + count):
        for topic in topics:
            publisher.publish(topic, f"{topic} {number}".encode())


def expected(topic: str, count: int, start: int = 0) -> list[bytes]:
    return [f"{topic} {number}".encode() for number in range(start, start + count)]


@pytest.mark.spec("FILT-6", "FILT-7", "FILT-8", "FILT-11")
@pytest.mark.parametrize("delivery", ["unicast", "ring", "shared"])
@pytest.mark.parametrize("repair", ["filter", "receivers"])
def test_each_application_gets_what_it_wants(channel: Channel, delivery: control.Wish, repair: str) -> None:
    with (
        filter_here(channels=(str(channel),), repair=repair, shared="residual", shared_port=channel.port) as beside,
        MulticastPublisher(channel, config=QUICK) as publisher,
        Application(beside.port, "one", delivery=delivery) as one,
        Application(beside.port, "two", delivery="unicast") as two,
    ):
        assert isinstance(one.want("a.>"), control.Holds)
        assert isinstance(two.want("b", "c.*"), control.Holds)
        publish(publisher, "a.x", "b", "c.d", "nobody", count=200)
        assert one.wait_for(200) == expected("a.x", 200)
        assert sorted(two.wait_for(400)) == sorted(expected("b", 200) + expected("c.d", 200))
        assert not one.receipts + two.receipts
        assert beside.application_names() == ["one", "two"]
    assert one.counters["packets_lost"] == 0


@pytest.mark.spec("FILT-8", "ADM-7")
def test_applications_share_a_copy_with_their_bits(beside: FilterHere, publisher: MulticastPublisher) -> None:
    with (
        Application(beside.port, "one", delivery="shared") as one,
        Application(beside.port, "two", delivery="shared") as two,
    ):
        assert isinstance(one.registered, control.Registered)
        assert isinstance(two.registered, control.Registered)
        assert (one.registered.delivery, one.registered.group) == ("mask", two.registered.group)
        assert one.registered.bit != two.registered.bit
        one.want("a")
        two.want("b")
        publish(publisher, "a", "b", "c", count=50)
        everything = sorted(expected("a", 50) + expected("b", 50))
        assert sorted(one.wait_for(100)) == everything
        assert sorted(two.wait_for(100)) == everything


@pytest.mark.spec("FILT-6")
@pytest.mark.parametrize("delivery", ["unicast", "ring"])
def test_interests_change_while_messages_flow(
    beside: FilterHere, publisher: MulticastPublisher, delivery: control.Wish
) -> None:
    published = itertools.count()
    is_over = threading.Event()

    def flow() -> None:
        while not is_over.wait(0.0002):
            number = next(published)
            publish(publisher, "a", "b", start=number)

    flowing = threading.Thread(target=flow)
    with Application(beside.port, delivery=delivery) as application:
        application.want("a")
        flowing.start()
        application.wait_for(100)
        for round_number in range(5):
            assert isinstance(application.want("b", f"x.{round_number}"), control.Holds)
            first = next(published) + 1  # of those whose publishing begins from now on
            wait_until(lambda first=first: next(published) > first + 100)  # type: ignore[misc]
            last = next(published) - 2
            application.wait_for(len(application.payloads) + 200)
            wait_until(lambda last=last: is_seen(application, last), "the last one")  # type: ignore[misc]
            got = {int(each[2:]) for each in application.payloads if each[:1] == b"b"}
            everything = {int(each[2:]) for each in application.payloads if each[:1] == b"a"}
            assert {each for each in everything if first <= each <= last} <= got
            assert isinstance(application.unwant("b"), control.Holds)
        is_over.set()
        flowing.join()
        numbers = [int(each[2:]) for each in application.payloads if each[:1] == b"a"]
        assert numbers == sorted(set(numbers))
        assert not application.receipts


def is_seen(application: Application, number: int) -> bool:
    application.receive()
    return any(int(each[2:]) > number for each in application.payloads[-50:])


@pytest.mark.spec("FILT-6")
def test_conditions_and_content(beside: FilterHere, publisher: MulticastPublisher) -> None:
    model = shipped("quote")
    with Application(beside.port, "one") as one, Application(beside.port, "two") as two:
        assert isinstance(one.want("q.*", where="bid_size > 100"), control.Holds)
        assert isinstance(two.want(">", content=b"needle"), control.Holds)
        refused = one.want("q.*", where="no_such_field > 1")
        assert isinstance(refused, control.Refused)
        assert refused.code == control.RefusalCode.CONDITION
        both = one.want("q.*", where="bid_size > 1", content=b"x")
        assert isinstance(both, control.Refused)
        assert both.code == control.RefusalCode.CONDITION
        for size in (50, 150, 250):
            publisher.publish("q.x", model.new(bid_size=size))
        publisher.publish("text", b"hay needle hay")
        publisher.publish("text", b"hay")
        assert len(one.wait_for(2)) == 2
        assert two.wait_for(1) == [b"hay needle hay"]


def test_a_model_of_the_applications_own(beside: FilterHere, publisher: MulticastPublisher) -> None:
    document = 'name = "own"\nid = 60000\nversion = 1\n[[field]]\nname = "weight"\ntype = "u32"\n'
    with Application(beside.port) as application:
        refused = application.want("w", where="weight > 5")
        assert isinstance(refused, control.Refused)
        assert isinstance(application.ask(lambda n: control.Models(n, [document])), control.Holds)
        assert isinstance(application.want("w", where="weight > 5"), control.Holds)
        bad = application.ask(lambda n: control.Models(n, ["is no model"]))
        assert isinstance(bad, control.Refused)
        for weight in (1, 9):
            publisher.publish("w", weight.to_bytes(4, "little"), model_id=60_000, model_version=1)
        assert application.wait_for(1) == [(9).to_bytes(4, "little")]


@pytest.mark.spec("FILT-10")
def test_applications_that_miss_packets_get_them_from_the_filter(
    beside: FilterHere, publisher: MulticastPublisher
) -> None:
    with Application(beside.port) as application:
        application.want("a")
        publish(publisher, "a", count=10)
        application.wait_for(10)
        small = application.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        application.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_304)
        publish(publisher, "a", count=2_000, start=10)
        wait_until(lambda: beside.module.counters["messages_judged"] == 2_010, "the filter to pass all messages on")
        application.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, small)
        assert application.wait_for(2_010) == expected("a", 2_010)
        assert application.counters["nacks_sent"] > 0
        assert publisher.counters["nacks_received"] == 0


@pytest.mark.spec("FILT-6")
def test_channels_can_be_named_and_groups_are_left(beside: FilterHere) -> None:
    elsewhere = free_channel()
    with MulticastPublisher(elsewhere, config=QUICK) as publisher, Application(beside.port) as application:
        assert isinstance(application.want("a", channels=[str(elsewhere)]), control.Holds)
        wrong = application.want("b", channels=[f"{elsewhere.group}:{elsewhere.port ^ 1}"])
        assert isinstance(wrong, control.Refused)
        assert wrong.code == control.RefusalCode.CHANNEL
        for text in ("10.0.0.1:7", "nonsense", "239.1.1.1:0", "239.1.1.1:99999"):
            assert isinstance(application.want("b", channels=[text]), control.Refused)
        publish(publisher, "a", count=10)
        application.wait_for(10)
        assert beside.module.status().groups == 1
        application.unwant("a")
        assert beside.module.status().groups == 0
        publish(publisher, "a", count=10)
        assert isinstance(application.want("a", channels=[f"{elsewhere.group}:{elsewhere.port}"]), control.Holds)
        publish(publisher, "a", count=10, start=20)
        application.wait_for(20)
        assert application.payloads[-10:] == expected("a", 10, 20)


@pytest.mark.spec("FILT-12")
def test_a_changed_map_is_taken_without_loss(tmp_path: Path) -> None:
    first, second = free_channel(), free_channel()
    path = tmp_path / "groups.toml"
    path.write_text(f'version = 1\nport = {first.port}\ndefault = "{first.group}"\n')
    moved = Channel(group=second.group, port=first.port)
    with (
        filter_here(map=str(path), map_check_ms=10) as beside,
        MulticastPublisher(first, config=QUICK) as old,
        MulticastPublisher(moved, config=QUICK) as new,
        Application(beside.port) as application,
    ):
        application.want("a.>")
        publish(old, "a.b", count=20)
        application.wait_for(20)
        path.write_text("this is no map")
        publish(old, "a.b", count=20, start=20)
        application.wait_for(40)
        fresh = tmp_path / "fresh.toml"
        fresh.write_text(f'version = 1\nport = {first.port}\ndefault = "{moved.group}"\n')
        fresh.rename(path)
        wait_until(lambda: beside.module.status().groups == 2, "both groups")
        publish(old, "a.b", count=20, start=40)  # a publisher that does not know the new map yet
        publish(new, "a.b", count=20, start=60)
        assert sorted(application.wait_for(80)) == sorted(expected("a.b", 80))
        assert not application.receipts


# Publishers on the same host


@pytest.fixture
def offered(channel: Channel, beside: FilterHere) -> Iterator[tuple[MulticastPublisher, RingOffer]]:
    with (
        RingWriter.create(1024 * 1024, PACKET_SIZE_MAX) as ring,
        MulticastPublisher(channel, config=QUICK, ring=ring) as publisher,
        RingOffer(publisher, ring, ("127.0.0.1", beside.port)) as offer,
    ):
        assert offer.is_held.wait(PATIENCE_SECONDS)
        yield publisher, offer


@pytest.mark.spec("FILT-11")
def test_a_publisher_of_this_host_needs_no_network(
    beside: FilterHere, offered: tuple[MulticastPublisher, RingOffer]
) -> None:
    publisher, _ = offered
    with Application(beside.port, delivery="ring") as application:
        application.want("a")
        publish(publisher, "a", "b", count=500)
        assert application.wait_for(500) == expected("a", 500)
        core = beside.module._data.core
        copies = publisher.counters["packets_sent"] * 9 // 10
        wait_until(
            lambda: core.counters.by_cause("packets_dropped").get("duplicate", 0) >= copies, "the network's copies"
        )
        beside.loop.run(deafened(beside))  # now the network brings nothing
        publish(publisher, "a", count=500, start=500)
        assert application.wait_for(1_000) == expected("a", 1_000)
        assert not application.receipts


@pytest.mark.spec("FILT-11")
def test_what_is_for_this_host_only_does_not_go_to_the_network(channel: Channel, beside: FilterHere) -> None:
    with (
        RingWriter.create(1024 * 1024, PACKET_SIZE_MAX) as ring,
        MulticastReceiver([channel], config=ReceiverConfig(join="start")) as elsewhere,
        MulticastPublisher(channel, config=QUICK, ring=ring, is_host_only=True) as publisher,
        RingOffer(publisher, ring, ("127.0.0.1", beside.port)) as offer,
        Application(beside.port, delivery="ring") as application,
    ):
        assert offer.is_held.wait(PATIENCE_SECONDS)
        application.want("a")
        publish(publisher, "a", "b", count=200)
        publisher.publish_messages([OutgoingMessage("a", b"a 200")])
        assert application.wait_for(201) == expected("a", 201)
        assert not application.receipts
        assert elsewhere.receive(0.2) == []
    with pytest.raises(ConfigurationError, match="ring"):
        MulticastPublisher(channel, is_host_only=True)


async def deafened(beside: FilterHere) -> None:
    data = beside.module._data
    await asyncio.wrap_future(data.ask(lambda: data._inlet.listen_to([data._own.fileno()])))


@pytest.mark.spec("FILT-11")
def test_a_ring_that_was_overrun_is_begun_anew_and_nothing_is_lost(
    beside: FilterHere, offered: tuple[MulticastPublisher, RingOffer]
) -> None:
    publisher, offer = offered
    with Application(beside.port) as application:
        application.want("a")
        publish(publisher, "a", count=10)
        application.wait_for(10)
        is_over = threading.Event()
        data = beside.module._data
        data.ask(is_over.wait)  # the data thread stands still
        publish(publisher, "a", count=3_000, start=10)
        publisher.publish("b", bytes(60_000))
        for _ in range(30):
            publisher.publish("b", bytes(60_000))
        is_over.set()
        wait_until(lambda: not offer.is_held.is_set(), "the release of the ring")
        assert offer.is_held.wait(PATIENCE_SECONDS)
        publish(publisher, "a", count=10, start=3_010)
        assert application.wait_for(3_020) == expected("a", 3_020)
        assert not application.receipts


def test_a_filter_that_comes_later_reads_the_ring_too(channel: Channel) -> None:
    (port,) = free_ports(1)
    with (
        RingWriter.create(1024 * 1024, PACKET_SIZE_MAX) as ring,
        MulticastPublisher(channel, config=QUICK, ring=ring) as publisher,
        RingOffer(publisher, ring, ("127.0.0.1", port)) as offer,
    ):
        for round_number in range(2):
            with filter_here(channels=(str(channel),), control=FilterAccess(port=port)) as beside:
                assert offer.is_held.wait(PATIENCE_SECONDS)
                with Application(beside.port) as application:
                    application.want("a")
                    publish(publisher, "a", count=10, start=round_number)
                    assert application.wait_for(10) == expected("a", 10, round_number)
            wait_until(lambda: not offer.is_held.is_set(), "the filter's end to be noticed")


def test_rings_that_are_none_are_refused(beside: FilterHere) -> None:
    for path in ("@nobody-is-there", "/no/such/socket"):
        with Application(beside.port, offer=control.OfferRing(1, 5, path, "x", "127.0.0.1", 9)) as publisher:
            assert isinstance(publisher.registered, control.Refused)
            assert publisher.registered.code == control.RefusalCode.RING


# Admission


def test_names_ids_and_addresses_are_given_once(beside: FilterHere) -> None:
    with Application(beside.port, "one", application_id=7) as one:
        assert isinstance(one.registered, control.Registered)
        assert one.registered.application_id == 7
        for values in ({"name": "one"}, {"name": "two", "application_id": 7}):
            with Application(beside.port, **values) as two:  # type: ignore[arg-type]
                assert isinstance(two.registered, control.Refused)
                assert two.registered.code == control.RefusalCode.TAKEN
    wait_until(lambda: not beside.application_names(), "the end of the first")
    with Application(beside.port, "one", application_id=7) as again:
        assert isinstance(again.registered, control.Registered)


@pytest.mark.spec("FILT-6")
def test_a_controlling_entity_registers_on_behalf_of_others(channel: Channel) -> None:
    with (
        filter_here(channels=(str(channel),), controllers=("boss",), hosts=("127.7.0.0/16",)) as beside,
        MulticastPublisher(channel, config=QUICK) as publisher,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent,
    ):
        with Application(beside.port, "worker", node="somebody") as refused:
            assert isinstance(refused.registered, control.Refused)
            assert refused.registered.code == control.RefusalCode.CONTROLLER
        silent.bind(("127.7.0.1", 0))
        silent.settimeout(PATIENCE_SECONDS)
        port = silent.getsockname()[1]
        with Application(beside.port, "worker", node="boss") as boss:
            assert isinstance(boss.registered, control.Registered)
            boss.want("a")
            publish(publisher, "a", count=3)
            assert boss.wait_for(3) == expected("a", 3)
        with Application(beside.port, "other", node="boss", port=port, host="127.7.0.1") as boss:
            assert isinstance(boss.want("a"), control.Holds)
            publish(publisher, "a")
            while b"a 0" not in silent.recv(65_536):
                continue  # keep-alives


@pytest.mark.parametrize("host", ["10.1.2.3", "8.8.8.8", "example.com", "::1", "239.1.1.1", "0.0.0.0"])
def test_other_hosts_are_not_served_unless_configured(beside: FilterHere, host: str) -> None:
    with Application(beside.port, host=host) as application:
        assert isinstance(application.registered, control.Refused)
        assert application.registered.code == control.RefusalCode.HOST


def test_a_secret_is_asked_for(channel: Channel, tmp_path: Path) -> None:
    write_private(tmp_path / "secret", SECRET)
    access = FilterAccess(port=0, secret_file=str(tmp_path / "secret"))
    with filter_here(channels=(str(channel),), control=access) as beside:
        with pytest.raises(PenstockError):
            Application(beside.port)
        with pytest.raises(PenstockError):
            Application(beside.port, secret=Secret(b"another secret, also long"))
        with Application(beside.port, secret=Secret(SECRET), delivery="ring") as application:
            assert isinstance(application.want("a"), control.Holds)


# Bad input


@pytest.mark.spec("FILT-14")
def test_garbage_on_every_port_harms_nobody(
    channel: Channel, beside: FilterHere, publisher: MulticastPublisher
) -> None:
    junk = thrown(channel.group_id, random.Random(3))
    with Application(beside.port) as application, sender() as intruder:
        application.want("a")
        data_address = application._source()
        for number, data in enumerate(junk):
            publish(publisher, "a", start=number)
            for target in (data_address, (channel.group, channel.port)):
                intruder.sendto(data, target)
            with socket.create_connection(("127.0.0.1", beside.port)) as stranger:
                stranger.sendall(data)
        assert application.wait_for(len(junk)) == expected("a", len(junk))
        assert not application.receipts
        causes = beside.module._data.core.counters.by_cause("packets_dropped")
        assert {"foreign", "truncated", "checksum"} <= set(causes)


@pytest.mark.spec("FILT-6")
def test_a_flood_of_interests_is_refused_and_others_go_on(channel: Channel) -> None:
    limits = {"interests_per_application_max": 1_000, "conditions_per_application_max": 3}
    with (
        filter_here(channels=(str(channel),), **limits) as beside,
        MulticastPublisher(channel, config=QUICK) as publisher,
        Application(beside.port, "good") as good,
        Application(beside.port, "flood") as flood,
    ):
        good.want("a")
        flood.want(*(f"x.{number}" for number in range(900)))
        refused = flood.want(*(f"y.{number}" for number in range(900)))
        assert isinstance(refused, control.Refused)
        assert refused.code == control.RefusalCode.LIMIT
        codes = [type(flood.want("z", content=b"%d" % number)) for number in range(5)]
        assert codes == [control.Holds, control.Holds, control.Refused, control.Refused, control.Refused]
        assert isinstance(flood.want("x..y"), control.Refused)
        publish(publisher, "a", "x.899", "y.1", count=20)
        assert good.wait_for(20) == expected("a", 20)
        assert flood.wait_for(20) == expected("x.899", 20)


def test_what_has_no_place_ends_the_connection(beside: FilterHere) -> None:
    for message in (control.Holds(1), control.Want(1), control.Register("x", 1)):
        with Application(beside.port) as application:
            answer = application.ask(lambda number, said=message: said)  # type: ignore[misc]
            if isinstance(message, control.Want):
                assert isinstance(answer, control.Holds)
            else:
                assert isinstance(answer, control.Refused)
                assert (answer.code, answer.number) == (control.RefusalCode.PROTOCOL, 0)
        wait_until(lambda: not beside.application_names(), "its end")


def test_an_application_that_never_hears_what_it_is_told_is_cut_off(
    channel: Channel, publisher: MulticastPublisher
) -> None:
    with filter_here(channels=(str(channel),), told_max=16) as beside, Application(beside.port, "good") as good:
        good.want("a")
        narrow(*beside.module._server.server._listeners)  # inherited by accepted sockets: megabytes fill slowly
        with Application(beside.port, "deaf") as deaf:
            with pytest.raises(PenstockError):
                deaf.loop.run(chatter(deaf))
            publish(publisher, "a", count=20)
            assert good.wait_for(20) == expected("a", 20)
            wait_until(lambda: beside.application_names() == ["good"], "the end of the application that does not read")


def narrow(*sockets: socket.socket) -> None:
    for each in sockets:
        for side in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            each.setsockopt(socket.SOL_SOCKET, side, 4_096)


async def chatter(application: Application) -> None:
    """Send requests continuously, without reading the answers."""
    application._hearing.cancel()
    narrow(application.connection._writer.transport.get_extra_info("socket"))
    bad = control.Interests(["x." + "y" * 300 + "..z"])
    for number in range(1, 1_000_000):
        await application.connection.send(control.Want(number, [bad]))


@pytest.mark.spec("FILT-15")
def test_two_publishers_with_one_id_are_reported(channel: Channel, beside: FilterHere, tmp_path: Path) -> None:
    with (
        MulticastPublisher(channel, publisher_id=5, epoch=1, config=QUICK) as owner,
        MulticastPublisher(channel, publisher_id=5, epoch=1, config=QUICK) as intruder,
        Application(beside.port) as application,
    ):
        application.want("a", "b")
        publish(owner, "a", count=5)
        application.wait_for(5)
        publish(intruder, "b", count=5)
        wait_until(lambda: any(isinstance(each, control.Collided) for each in application.told), "the report")
        publish(owner, "a", count=5, start=5)
        assert application.wait_for(10) == expected("a", 10)


@pytest.mark.spec("FILT-5")
def test_a_publisher_that_restarts_goes_on_in_a_new_epoch(channel: Channel, beside: FilterHere) -> None:
    with Application(beside.port) as application:
        application.want("a")
        for epoch in (1, 2):
            with MulticastPublisher(channel, publisher_id=5, epoch=epoch, config=QUICK) as publisher:
                publish(publisher, "a", count=50, start=50 * epoch)
                application.wait_for(50 * epoch)
        assert application.payloads == expected("a", 100, 50)
        wait_until(lambda: len(epochs_told(application)) == 2, "the message on the control connection")
        assert epochs_told(application) == [1, 2]


def epochs_told(application: Application) -> list[int]:
    return [each.epoch for each in application.told if isinstance(each, control.Position)]


def test_nothing_is_left_behind(channel: Channel) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with filter_here(channels=(str(channel),)) as beside, Application(beside.port, delivery="ring") as application:
            application.want("a")
            answer = application.ask(control.RestartRing)
            assert isinstance(answer, control.Restarted)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_the_status_and_the_metrics_tell(beside: FilterHere, publisher: MulticastPublisher) -> None:
    with Application(beside.port) as application:
        application.want("a", "b.>")
        publish(publisher, "a", "x", count=10)
        application.wait_for(10)
        status = msgspec.json.decode(beside.module.node.page.answer("/status")[2])
        assert (status["interests"], status["groups"]) == (2, 1)
        assert status["applications"][0]["name"] == "app"
        assert status["applications"][0]["packets"] >= 1  # messages of a burst share packets
        text = beside.module.node.page.answer("/metrics")[2].decode()
        assert "penstock_filter_applications 1.0" in text
        assert 'penstock_applications_attached_total{cause="",component="filter.control",filter="beside"' in text
        assert beside.module.node.page.answer("/health")[0] == 200
