"""Two adapters, a subscriber that merges both, and kill -9."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from children import resume, suspend
from integration.feed_kit import Feed, running_feed
from penstock.bench.adapters import AdapterProcess, is_synchronised_pair, wait_for
from penstock.bench.merging import MergingSubscriber


def take_for(subscriber: MergingSubscriber, messages: int) -> None:
    """Read until this number of further messages was delivered."""
    wanted = subscriber.book.messages + messages
    deadline = time.monotonic() + 20
    while subscriber.book.messages < wanted:
        subscriber.take()
        assert time.monotonic() < deadline, "nothing more is delivered"


def take_until_true(subscriber: MergingSubscriber, condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition and read in the meantime: a subscriber that does not read loses packets when its socket is
    full."""

    def is_met() -> bool:
        subscriber.take()
        return condition()

    wait_for(is_met, what)


@contextlib.contextmanager
def taking(subscriber: MergingSubscriber) -> Iterator[None]:
    """Read in a thread while the caller does something slow. The caller itself must start processes, because processes
    end with the thread that started them."""
    is_done = threading.Event()

    def take() -> None:
        while not is_done.is_set():
            subscriber.take()

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(take)
        try:
            yield
        finally:
            is_done.set()
        reading.result()


def catch_up(subscriber: MergingSubscriber, adapter: AdapterProcess) -> None:
    """Receive everything that the adapter has sent so far: after the adapter's death no other node can repair it."""
    last = adapter.status().streams[0].next_message_sequence - 1
    take_until_true(subscriber, lambda: subscriber.book.last_number >= last, "the subscriber has what was sent")


def take_until(subscriber: MergingSubscriber, feed: Feed) -> None:
    """Wait until everything that the exchange has sent so far is converted, sent and delivered."""
    feed.exchange.is_paused.set()
    for adapter in feed.adapters:
        if adapter.is_running:
            take_until_true(
                subscriber,
                lambda adapter=adapter: adapter.status().streams[0].next_source_sequence == feed.exchange.next_sequence,  # type: ignore[misc]
                "the conversion of all messages",
            )
    last = max(each.status().streams[0].next_message_sequence for each in feed.adapters if each.is_running) - 1
    deadline = time.monotonic() + 20
    while subscriber.book.last_number < last:
        subscriber.take()
        assert time.monotonic() < deadline, f"{subscriber.book.last_number} of {last} were delivered"


@pytest.mark.spec("SYNC-7")
@pytest.mark.spec("SYNC-8")
@pytest.mark.spec("SYNC-9")
def test_nothing_is_lost_or_repeated_when_the_active_adapter_is_killed_and_returns(tmp_path: Path) -> None:
    with running_feed(tmp_path, rate=10_000) as feed:
        active, backup = feed.wait_until_synchronised()
        subscriber = feed.subscriber()
        take_for(subscriber, 2_000)
        first_term, started = active.status().term, len(subscriber.book.discontinuities)
        active.kill()
        take_for(subscriber, 2_000)
        take_until_true(subscriber, lambda: backup.status().role == "active", "the backup is promoted")
        assert backup.status().term > first_term
        with taking(subscriber):
            active.start()  # the adapter returns in mid-session, gets the whole state, and is a backup
        take_until_true(
            subscriber,
            lambda: is_synchronised_pair(backup, active),
            "the returned adapter is a synchronised backup",
        )
        take_for(subscriber, 2_000)
        catch_up(subscriber, backup)
        backup.kill()
        take_for(subscriber, 2_000)
        take_until(subscriber, feed)
        book = subscriber.book
        subscriber.close()
        assert (book.lost, book.duplicated, len(book.discontinuities)) == (0, 0, started)


def test_a_cut_link_between_adapters_leaves_one_active_and_nothing_lost(tmp_path: Path) -> None:
    with running_feed(tmp_path, sync={"active_lost_ms": 300}) as feed:
        active, backup = feed.wait_until_synchronised()
        subscriber = feed.subscriber()
        take_for(subscriber, 1_000)
        backup_pid = backup.pid
        suspend(backup_pid)  # the paused adapter neither answers nor reads, so its link counts as cut
        take_for(subscriber, 5_000)
        resume(backup_pid)
        take_until_true(
            subscriber,
            lambda: is_synchronised_pair(active, backup) or is_synchronised_pair(backup, active),
            "an active adapter, and a backup in step again",
        )
        take_for(subscriber, 1_000)
        take_until(subscriber, feed)
        book = subscriber.book
        subscriber.close()
        assert (book.lost, book.duplicated) == (0, 0)
