"""A subscription whose thread reads from the agent's link itself, and gives the link back."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from integration.tree_kit import agent_config, agent_here, agent_process, root_config
from penstock.tree.client import StreamPublisher, StreamSubscription, open_publisher, open_stream
from waiting import PATIENCE_SECONDS, wait_until


class Pair:
    def __init__(self, subscription: StreamSubscription, publisher: StreamPublisher) -> None:
        self.subscription = subscription
        self.publisher = publisher
        self._published = self._read = 0

    def publish(self, count: int) -> None:
        for _ in range(count):
            self._published += 1
            self.publisher.publish("md.a", b"%d" % self._published)

    def read(self, count: int) -> None:
        for _ in range(count):
            message = self.subscription.next(PATIENCE_SECONDS)
            assert message is not None
            self._read += 1
            assert bytes(message) == b"%d" % self._read

    def wait_lent(self) -> None:
        """Wait until the thread that calls next() reads from the link."""
        reader = self.subscription._link_reader
        wait_until(lambda: self.subscription.next(0.01) is None and reader.is_lent, "the link to be lent")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with agent_here(root_config(tmp_path)) as root, agent_here(agent_config("leaf", root.place)) as leaf:
        leaf.wait_rooted()
        with open_stream(leaf.place, "md.>") as subscription, open_publisher(root.place) as publisher:
            wait_until(lambda: subscription.is_live, "the subscription to be live")
            yield Pair(subscription, publisher)


def test_messages_stay_in_order_when_the_reader_comes_and_goes(pair: Pair) -> None:
    for _ in range(3):
        pair.wait_lent()
        pair.publish(500)
        pair.read(500)
        pair.wait_lent()
        pair.publish(300)
        wait_until(lambda: pair.subscription.waiting == 300, "the loop to receive for a reader that is away")
        pair.read(300)
    assert pair.subscription.statistics().messages == 3 * 800
    assert pair.subscription.statistics().duplicates == 0


def test_a_reader_beside_a_publisher_misses_nothing(pair: Pair) -> None:
    pair.wait_lent()
    publishing = threading.Thread(target=pair.publish, args=(20_000,))
    publishing.start()
    pair.read(20_000)
    publishing.join()
    assert not pair.subscription.losses


def test_batches_end_while_messages_arrive(pair: Pair) -> None:
    pair.wait_lent()
    publishing = threading.Thread(target=pair.publish, args=(20_000,))
    publishing.start()
    found = []
    for batch in pair.subscription.batches(PATIENCE_SECONDS):
        found += [int(bytes(each)) for each in batch]
        if len(found) == 20_000:
            break
    publishing.join()
    assert found == list(range(1, 20_001))


def test_close_ends_a_reader_that_waits(pair: Pair) -> None:
    pair.wait_lent()
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.append(pair.subscription.next(PATIENCE_SECONDS)))
    reader.start()
    wait_until(lambda: pair.subscription._link_reader._is_reading, "the reader to wait")
    pair.subscription.close()
    wait_until(lambda: not reader.is_alive(), "the reader to end")
    assert found == [None]


def test_a_reader_follows_to_another_agent(tmp_path: Path) -> None:
    with (
        agent_here(root_config(tmp_path)) as root,
        agent_here(agent_config("two", root.place)) as other,
        ExitStack() as stack,
    ):
        first = stack.enter_context(agent_here(agent_config("one", root.place)))
        first.wait_rooted()
        other.wait_rooted()
        with (
            open_stream(first.place, "md.>", alternates=(other.place,)) as subscription,
            open_publisher(root.place) as publisher,
        ):
            wait_until(lambda: subscription.is_live, "the subscription to be live")
            pair = Pair(subscription, publisher)
            pair.wait_lent()
            pair.publish(100)
            pair.read(100)
            pair.wait_lent()
            stack.close()
            pair.publish(100)
            pair.read(100)
            assert subscription.agent == "two"
            pair.wait_lent()


def test_a_reader_leaves_an_agent_that_is_killed(tmp_path: Path) -> None:
    with (
        agent_here(root_config(tmp_path)) as root,
        agent_here(agent_config("two", root.place)) as other,
        agent_process(agent_config("one", root.place), tmp_path) as first,
    ):
        other.wait_rooted()
        with (
            open_stream(first.place, "md.>", alternates=(other.place,)) as subscription,
            open_publisher(root.place) as publisher,
        ):
            wait_until(lambda: subscription.is_live, "the subscription to be live")
            pair = Pair(subscription, publisher)
            pair.wait_lent()
            pair.publish(100)
            pair.read(100)
            pair.wait_lent()
            first.kill()
            pair.publish(100)
            pair.read(100)
            assert subscription.agent == "two"
