"""A subscriber's link to its agent: signs that the agent is alive."""

import pytest

from penstock.base.clock import NS_PER_MS, SystemRandomness
from penstock.base.core import Tick
from penstock.base.counters import Counters
from penstock.base.errors import LimitError
from penstock.net.core.client_session import Begin, Close, Connected, Over, Received, Say
from penstock.net.core.control import Ping, Pong
from penstock.tree.client.core.events import BlockReceived, Paused, Resumed
from penstock.tree.client.core.subscriber import Subscriber, SubscriberConfig
from penstock.tree.client.subscription import open_stream
from penstock.tree.core.control import Held, StreamInfo, Welcome
from penstock.tree.core.infostream import Infostream, MoveTo, Revoked

SILENCE_MS = 1_000
LINK = 5


def welcomed() -> Subscriber:
    """A subscriber whose agent currently has no messages for it."""
    config = SubscriberConfig(name="u", agents=("leaf:1",), topics=("md.>",), silence_ms=SILENCE_MS)
    subscriber = Subscriber(config, SystemRandomness(), Counters("party"))
    subscriber.handle(Begin(), 0)
    subscriber.handle(Connected(1, LINK), 0)
    subscriber.handle(Received(LINK, Welcome("leaf", "tree", 1, ("root", "leaf"), True, (), 0)), 0)
    assert subscriber.link == LINK
    return subscriber


@pytest.mark.parametrize("sign", [Ping(1), Pong(1, 2, 3)])
def test_an_idle_agent_is_not_left(sign: Ping | Pong) -> None:
    subscriber = welcomed()
    for elapsed_ms in range(0, 5 * SILENCE_MS, SILENCE_MS // 2):
        now_ns = elapsed_ms * NS_PER_MS
        subscriber.handle(Received(LINK, sign), now_ns)
        assert not [each for each in subscriber.handle(Tick(), now_ns) if isinstance(each, Close)]
    assert subscriber.link == LINK


def test_a_silent_agent_is_left() -> None:
    subscriber = welcomed()
    told = subscriber.handle(Tick(), SILENCE_MS * NS_PER_MS)
    assert [each.link for each in told if isinstance(each, Close)] == [LINK]
    assert not subscriber.link


def test_a_ping_is_answered() -> None:
    assert welcomed().handle(Received(LINK, Ping(7)), 9) == [Say(LINK, Pong(7, 9, 9))]


@pytest.mark.spec("TREE-6")
def test_a_subscriber_without_further_agents_reports_the_end() -> None:
    subscriber = welcomed()
    says = Infostream("leaf")
    told = subscriber.handle(BlockReceived(LINK, 0, says.encode(Revoked(("md.a.>",), "not paid"), 1)), 0)
    assert not [each for each in told if isinstance(each, Over)]
    told = subscriber.handle(BlockReceived(LINK, 0, says.encode(Revoked((">",), "not paid"), 1)), 0)
    (over,) = [each for each in told if isinstance(each, Over)]
    assert "not paid" in str(over.error)


@pytest.mark.spec("TREE-5")
def test_an_agent_whose_link_is_not_read_does_not_time_out() -> None:
    """Neither the link in use nor the next one: the application is behind, not the agent."""
    subscriber = welcomed()
    subscriber.handle(BlockReceived(LINK, 0, Infostream("leaf").encode(MoveTo("other:1", "busy"), 1)), 0)
    subscriber.handle(Connected(2, LINK + 1), 0)
    stream = StreamInfo(1, "md", ("md.>",), ((1, 0),))
    subscriber.handle(Received(LINK + 1, Welcome("other", "tree", 1, ("root", "other"), True, (stream,), 0)), 0)
    subscriber.handle(Paused(), 0)
    late_ns = 60 * SILENCE_MS * NS_PER_MS
    due_ns = subscriber.next_deadline_ns()
    assert due_ns is not None
    assert not [each for each in subscriber.handle(Tick(), late_ns) if isinstance(each, Close)]
    subscriber.handle(Resumed(), late_ns)
    assert not [each for each in subscriber.handle(Tick(), late_ns + 1) if isinstance(each, Close)]
    told = subscriber.handle(Received(LINK + 1, Held(1, 1, 0, 1, True)), late_ns + 2)
    assert [each.link for each in told if isinstance(each, Close)] == [LINK]
    assert subscriber.link == LINK + 1


def test_too_many_topics_are_refused_before_connecting() -> None:
    with pytest.raises(LimitError, match="4,097 topics; the limit is 4,096"):
        open_stream("nowhere:1", *(f"md.{number}" for number in range(4_097)))
