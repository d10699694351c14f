"""The gateway over a plant's feeds: quotes reach browsers, and a slow browser delays no other client."""

import itertools
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_kit import Originated
from integration.console_kit import (
    RULES,
    SECRETS,
    RunningConsole,
    Talk,
    close_code,
    feeding,
    policy_text,
    running_console,
)
from penstock.middleware.live import MulticastPublisher
from penstock.node.console_config import ConsoleLimits
from penstock.security import Credentials
from penstock.security.live.client import AdminClient
from waiting import wait_until

AAPL, IBM = "md.us.eq.AAPL.quote", "md.us.eq.IBM.quote"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    with running_console(tmp_path_factory.mktemp("feed"), limits=ConsoleLimits(client_sessions_max=50)) as made:
        yield made


@pytest.fixture(scope="module")
def publisher(console: RunningConsole) -> Iterator[MulticastPublisher]:
    with feeding(console) as made:
        yield made


@pytest.mark.spec("TREE-9")
def test_quotes_reach_a_browser(console: RunningConsole, publisher: MulticastPublisher) -> None:
    talk = console.stream()
    wish = {"op": "subscribe", "id": 7, "topics": ["md.us.eq.AAPL.>"], "class": "lossless"}
    assert talk.ask(wish) == {"kind": "subscribed", "id": 7, "topics": ["md.us.eq.AAPL.>"], "is_live": True}
    publisher.publish_batch(Originated(IBM, [1]))
    publisher.publish_batch(Originated(AAPL, [2, 3]))
    messages = talk.hear_kind("messages")["messages"]
    while len(messages) < 2:
        messages += talk.hear_kind("messages")["messages"]
    assert [(each["ids"], each["topic"], each["seq"], each["model"]) for each in messages] == [
        ([7], AAPL, 2, "quote"),
        ([7], AAPL, 3, "quote"),
    ]
    assert messages[0]["fields"]["bid_size"] == 2
    assert abs(messages[0]["time_ms"] / 1_000 - time.time()) < 60
    assert talk.ask({"op": "unsubscribe", "id": 7}) == {"kind": "unsubscribed", "id": 7}


@pytest.mark.spec("TREE-9", "AUTH-5")
def test_a_browser_with_a_delayed_grant_gets_nothing_live(
    console: RunningConsole, publisher: MulticastPublisher
) -> None:
    delayed = '[[rule]]\nwho = ["clerk"]\nreceive = ["md.>"]\ndelay_minutes = 15\n'
    with AdminClient.connect(console.admin.url, Credentials("boss", secret=SECRETS["boss"].encode())) as boss:
        boss.set_policy(policy_text(RULES + delayed))
        try:
            clerk, alice = console.stream("clerk"), console.stream("alice")
            wish = {"op": "subscribe", "id": 1, "topics": ["md.us.eq.AAPL.>"]}
            assert clerk.ask(wish)["kind"] == alice.ask(wish)["kind"] == "subscribed"
            publisher.publish_batch(Originated(AAPL, [4]))
            assert alice.hear_kind("messages")["messages"][-1]["seq"] == 4
            clerk.say({"op": "models"})
            heard = clerk.hear()
            while heard["kind"] != "models":
                assert heard["kind"] != "messages", heard
                heard = clerk.hear()
        finally:
            boss.set_policy(policy_text())


def test_there_is_no_history_and_nothing_is_published_without_a_tree(console: RunningConsole) -> None:
    talk = console.stream()
    refused = talk.ask({"op": "subscribe", "id": 1, "topics": ["md.>"], "since": "oldest"})
    assert (refused["code"], refused["op"]) == ("request", "subscribe")
    refused = talk.ask({"op": "publish", "id": 2, "topic": "app.notes.x", "model": "quote", "fields": {}})
    assert (refused["code"], refused["op"]) == ("forbidden", "publish")


@pytest.mark.spec("TREE-9", "TREE-6")
def test_who_loses_a_right_is_told_and_gets_no_more(console: RunningConsole, publisher: MulticastPublisher) -> None:
    bob, alice = console.stream("bob"), console.stream("alice")
    wish = {"op": "subscribe", "id": 1, "topics": ["md.us.eq.AAPL.>"]}
    assert bob.ask(wish)["kind"] == alice.ask(wish)["kind"] == "subscribed"
    publisher.publish_batch(Originated(AAPL, [9]))  # the gateway now follows the feed, and repairs what it misses
    assert alice.hear_kind("messages")["messages"][-1]["seq"] == 9
    with AdminClient.connect(console.admin.url, Credentials("boss", secret=SECRETS["boss"].encode())) as boss:
        boss.revoke("bob", "not paid")
        revoked = bob.hear_kind("revoked")
        assert revoked["ids"] == [1]
        assert "not paid" in revoked["reason"]
        publisher.publish_batch(Originated(AAPL, [10]))
        assert alice.hear_kind("messages")["messages"][-1]["seq"] == 10
        refused = bob.ask({**wish, "id": 2})
        assert refused["kind"] == "refused"
        boss.restore("bob")


TCP_CLOSE = 7
"""A connection that the other side has reset, in TCP_INFO."""

FLOOD = 20_000
PORTION = 500


def flood(publisher: MulticastPublisher) -> None:
    """More than all buffers between here and a browser that does not read can hold."""
    for first in range(1, FLOOD, PORTION):
        publisher.publish_batch(Originated(AAPL, range(first, first + PORTION)))
        time.sleep(0.002)  # the pace of a feed, not of a test


def sleepy(console: RunningConsole, cls: str) -> Talk:
    """A browser that has subscribed, and reads only when the test orders it."""
    talk = Talk(console.browser("alice").socket("/ws/stream", "penstock.json.1", receives=4_096))
    assert talk.ask({"op": "subscribe", "id": 1, "topics": ["md.us.eq.>"], "class": cls})["kind"] == "subscribed"
    return talk


@pytest.mark.spec("TREE-10")
def test_a_browser_of_class_disconnect_is_cut_off_when_too_much_waits(tmp_path: Path) -> None:
    limits = ConsoleLimits(queue_size_max=64, stuck_s=3_600)
    with running_console(tmp_path, limits=limits) as console, feeding(console) as publisher:
        talk = sleepy(console, "disconnect")
        flood(publisher)
        assert close_code(talk.socket) == 4408


@pytest.mark.spec("TREE-10")
def test_a_browser_that_never_reads_is_cut_off(tmp_path: Path) -> None:
    limits = ConsoleLimits(queue_size_max=64, stuck_s=0.5)
    with (
        running_console(tmp_path, limits=limits) as console,
        feeding(console) as publisher,
        sleepy(console, "lossless").socket.socket.dup() as plain,
    ):
        first = itertools.count(1, PORTION)

        def is_over() -> bool:
            """The feed continues until then: the capacity of the buffers on the way is unknown."""
            at = next(first)
            publisher.publish_batch(Originated(AAPL, range(at, at + PORTION)))
            return plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE

        wait_until(is_over, "the end of the connection")


@pytest.mark.spec("TREE-10")
def test_a_browser_that_does_not_read_gets_the_newest_and_is_told_what_it_missed(tmp_path: Path) -> None:
    limits = ConsoleLimits(queue_size_max=64, stuck_s=3_600)
    with running_console(tmp_path, limits=limits) as console, feeding(console) as publisher:
        talk = sleepy(console, "conflating")
        flood(publisher)
        seen, left_out, number = 0, 0, FLOOD
        while seen <= FLOOD:
            number += 1
            publisher.publish_batch(Originated(AAPL, [number]))
            heard = talk.hear()
            if heard["kind"] == "messages":
                seen = heard["messages"][-1]["seq"]
            elif heard["kind"] == "receipt" and heard["receipt"] == "conflated":
                left_out += heard["count"]
        assert left_out > 0
