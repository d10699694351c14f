"""client.publisher() → client.subscribe(): messages of one's own through a plant, without an adapter."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import penstock
from admin_kit import RULES, config, credentials, credentials_file, policy_text
from penstock.admin.config import PublishingConfig
from penstock.admin.live.driver import AdminServer
from penstock.base.errors import LimitError, LocalProtocolError, NotEntitledError, RevokedError
from penstock.client import Subscription
from penstock.middleware import PublisherConfig
from penstock.model.library import shipped
from penstock.net.udp import free_channel
from waiting import wait_until

TOPIC = "derived.desk.mid"
QUICK = PublisherConfig(linger_ms=1)

POLICY = (
    policy_text(RULES.replace('receive = ["md.us.>"]', 'receive = ["md.us.>", "derived.>"]'))
    + """
[[rule]]
who = ["carol"]
receive = ["derived.other.>"]

[[rule]]
who = ["dora"]
receive = ["derived.>"]
delay_minutes = 15
"""
)


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[AdminServer]:
    (tmp_path / "policy.toml").write_text(POLICY)
    with AdminServer(config(tmp_path)) as server:
        yield server


@pytest.fixture
def clients(plant: AdminServer) -> Iterator[Any]:
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(penstock.connect(plant.url, credentials=credentials(name)))


def take(subscription: Subscription, count: int) -> list[Any]:
    taken: list[Any] = []

    def has_all() -> bool:
        if (message := subscription.next(0.05)) is not None:
            taken.append(message)
        return len(taken) >= count

    wait_until(has_all, f"{count} messages")
    return taken


def test_messages_reach_subscriptions_from_before_and_after(clients: Any) -> None:
    alice, bob = clients("alice"), clients("bob")
    before = bob.subscribe("derived.>")
    with alice.publisher("derived.desk.>", config=QUICK) as publisher:
        publisher.publish(TOPIC, b"first")
        after = bob.subscribe("derived.desk.*")
        own = alice.subscribe(TOPIC)
        publisher.publish(TOPIC, shipped("quote").new(symbol="AAPL", bid_price=187.25))
        first, second = take(before, 2)
        assert (first.topic, bytes(first.payload)) == (TOPIC, b"first")
        for subscription in (after, own):
            (message,) = take(subscription, 1)
            assert (message.symbol, message.bid_price) == ("AAPL", 187.25)
        assert second.symbol == "AAPL"
    assert before.losses == after.losses == own.losses == []


def test_what_was_sent_before_the_end_is_read_after_it(clients: Any) -> None:
    alice, bob = clients("alice"), clients("bob")
    subscription = bob.subscribe("derived.>")
    for number in range(3):
        with alice.publisher("derived.desk.>", config=QUICK) as publisher:
            publisher.publish(TOPIC, bytes([number]))
    assert sorted(bytes(each.payload)[0] for each in take(subscription, 3)) == [0, 1, 2]
    with pytest.raises(LocalProtocolError, match="closed"):
        publisher.publish(TOPIC, b"late")


def test_grants_decide_who_sends_and_who_receives(clients: Any) -> None:
    alice, bob, carol, dora = (clients(each) for each in ("alice", "bob", "carol", "dora"))
    with pytest.raises(NotEntitledError, match="carol"):
        carol.publisher("derived.desk.>")
    with pytest.raises(LocalProtocolError, match="needs topics"):
        alice.publisher()
    late = dora.subscribe("derived.>")
    beside = carol.subscribe("derived.other.>")
    bobs = bob.subscribe("derived.>")
    with alice.publisher("derived.>", config=QUICK) as publisher:
        with pytest.raises(NotEntitledError, match=r"derived\.other\.x"):
            publisher.publish("derived.other.x", b"")
        publisher.publish(TOPIC, b"mine")
        take(bobs, 1)
        assert beside.next(0.05) is None
        assert late.next(0.05) is None
        assert not beside._lines
        assert not late._lines


def test_a_subscription_drops_what_a_publisher_may_not_send(clients: Any) -> None:
    """A client that ignores its grants."""
    alice, bob = clients("alice"), clients("bob")
    subscription = bob.subscribe("derived.>", "md.us.>")
    with alice.publisher("derived.desk.>", config=QUICK) as publisher:
        publisher._publisher.publish("md.us.eq.AAPL.quote", b"forged")
        publisher._publisher.publish("derived.other.x", b"forged")
        publisher.publish(TOPIC, b"good")
        assert [each.topic for each in take(subscription, 1)] == [TOPIC]


def test_a_revoked_publisher_and_a_revoked_subscriber_end(plant: AdminServer, clients: Any) -> None:
    alice, bob, root = clients("alice"), clients("bob"), clients("root")
    subscription = bob.subscribe("derived.>")
    publisher = alice.publisher("derived.desk.>", config=QUICK)
    publisher.publish(TOPIC, b"before")
    take(subscription, 1)
    root.admin.revoke("alice", "a test", ["derived.>"])
    wait_until(lambda: publisher.is_over, "the end of the publisher")
    with pytest.raises(RevokedError, match="a test"):
        publisher.publish(TOPIC, b"after")

    def is_left() -> bool:
        assert subscription.next(0.01) is None
        return not subscription._lines

    wait_until(is_left, "the end of the stream")
    publisher.close()


CHILD = """
import sys, time
import penstock

client = penstock.connect(sys.argv[1], credentials=sys.argv[2])
publisher = client.publisher("derived.desk.>")
publisher.publish("derived.desk.mid", b"from the child")
print("sent", flush=True)
time.sleep(600)
"""


def test_a_killed_publisher_is_followed_by_another(plant: AdminServer, tmp_path: Path, clients: Any) -> None:
    bob = clients("bob")
    subscription = bob.subscribe("derived.>")
    arguments = [sys.executable, "-c", CHILD, plant.url, str(credentials_file(tmp_path, "alice"))]
    for _ in range(2):
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "sent\n"
            child.kill()
        (message,) = take(subscription, 1)
        assert bytes(message.payload) == b"from the child"


def test_a_client_has_a_bounded_number_of_groups(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    settings = config(tmp_path, publishing=PublishingConfig(groups=2))
    with (
        AdminServer(settings) as server,
        penstock.connect(server.url, credentials=credentials("alice")) as alice,
        alice.publisher("derived.desk.>", config=QUICK),
        alice.publisher("derived.desk.>", config=QUICK),
        pytest.raises(LimitError, match=r"raise publishing\.groups"),
    ):
        alice.publisher("derived.desk.>", config=QUICK)


def test_a_publisher_is_not_available_over_tcp_and_has_no_image(clients: Any, caplog: pytest.LogCaptureFixture) -> None:
    alice, bob = clients("alice"), clients("bob")
    by_tcp = bob.subscribe("derived.>", transport="tcp")
    with_image = bob.subscribe("derived.>", image=True)
    with alice.publisher("derived.desk.>", config=QUICK) as publisher:
        publisher.publish(TOPIC, b"live")
        take(with_image, 1)
        assert by_tcp.next(0.05) is None
        wait_until(lambda: "publisher_left_out" in caplog.messages, "the subscription by TCP names the publisher")


def test_the_arguments_are_checked(clients: Any) -> None:
    alice = clients("alice")
    with pytest.raises(LocalProtocolError, match="need a channel"):
        alice.publisher("derived.desk.>", name="desk")
    with pytest.raises(LocalProtocolError, match="needs a name"):
        alice.publisher(free_channel())
