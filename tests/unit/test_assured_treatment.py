"""Selection of messages by content (REPL-1), and their replication mode (REPL-2, REPL-3)."""

import pytest

from assured_kit import Router, message, queue, texts
from penstock.assured.config import EndpointConfig, RouterConfig, Want
from penstock.assured.core.router.events import Noted
from penstock.assured.wire._layout import OUTCOME_DEGRADED, OUTCOME_STORED, OUTCOME_SYNC
from penstock.assured.wire.control import AlterEndpoint, Done, Ended, Refused
from penstock.assured.wire.frames import Published
from penstock.base.core import Tick
from penstock.base.errors import ConfigurationError
from penstock.model import shipped

QUOTE = shipped("quote")


def quote(symbol: str, bid: int) -> Published:
    record = QUOTE.new(symbol=symbol, bid_price=bid)
    return Published(b"md.quote", bytes(record), model_id=QUOTE.id, model_version=QUOTE.version)


def test_a_condition_on_the_content_selects_messages() -> None:
    """REPL-1: matched by topic or content."""
    large = EndpointConfig(name="large", wants=(Want(topics=("md.>",), where="bid_price > 100"),))
    router = Router(large, queue("all", "md.>"), models={QUOTE.id: QUOTE})
    router.link(1)
    handle = router.publisher(1)
    router.publish(1, handle, 1, quote("A", 50), quote("B", 150), message("no model", "md.other"))
    assert (router.queued("large"), router.queued("all")) == (1, 3)


def test_an_impossible_condition_is_refused_and_a_configured_one_is_reported() -> None:
    def conditional(name: str, where: str) -> EndpointConfig:
        return EndpointConfig(name=name, wants=(Want(topics=("md.>",), where=where),))

    router = Router(conditional("old", "no_field = 3"), models={QUOTE.id: QUOTE})
    noted = [each for each in router.said if isinstance(each, Noted) and each.what == "never_met"]
    assert [each.values["where"] for each in noted] == ["no_field = 3"]
    router.link(1)
    refused = router.create(conditional("large", "bid_price > 1 and no_field = 3"))
    assert isinstance(refused, Refused)
    assert "'bid_price > 1 and no_field = 3'" in refused.reason
    assert router.create(conditional("large", "bid_price > 1")) == Done(0)
    assert isinstance(router.ask(AlterEndpoint, 1, conditional("large", "no_field = 3")), Refused)


def test_the_endpoint_attribute_decides_and_any_synchronous_endpoint_wins() -> None:
    """REPL-2; without a standby nothing is reported as under way to one, and a synchronous message is acknowledged as
    degraded (REPL-8)."""
    router = Router(
        queue("none", "t.>"),
        queue("later", "t.a.>", replication="asynchronous"),
        queue("now", "t.a.s", replication="synchronous"),
    )
    router.link(1)
    topics = ("t.x", "t.a.x", "t.a.s")
    router.publish(1, router.publisher(1), 1, *[message("x", topic) for topic in topics])
    assert router.outcomes(1) == {1: OUTCOME_STORED, 2: OUTCOME_STORED, 3: OUTCOME_DEGRADED}


def test_the_publishers_flag_decides_if_configured() -> None:
    """REPL-2."""
    router = Router(queue("a", "t.>", replication="synchronous"), replicate_by="publisher")
    router.link(1)
    flags = (0, 1, 2)
    router.publish(1, router.publisher(1), 1, *[message("x", "t.x", flags=each) for each in flags])
    assert router.outcomes(1) == {1: OUTCOME_STORED, 2: OUTCOME_DEGRADED, 3: OUTCOME_STORED}


def test_topics_decide_if_configured() -> None:
    """REPL-2: a message on both is synchronous."""
    router = Router(
        queue("a", ">"), replicate_by="topic", synchronous_topics=("t.s.>",), asynchronous_topics=("t.>", "u.>")
    )
    router.link(1)
    topics = ("t.s.x", "t.x", "v.x")
    router.publish(1, router.publisher(1), 1, *[message("x", topic) for topic in topics])
    assert router.outcomes(1) == {1: OUTCOME_DEGRADED, 2: OUTCOME_STORED, 3: OUTCOME_STORED}
    with pytest.raises(ConfigurationError):
        RouterConfig(name="r", synchronous_topics=("t.>",))


def test_synchronous_messages_wait_for_the_standby_and_are_delivered_in_the_meantime() -> None:
    """REPL-3: acknowledgements wait, deliveries do not; a commit waits as well (REPL-10)."""
    router = Router(queue("now", "t.s", replication="synchronous"), queue("none", "t.n"))
    router.core.waits_for_secondary = True
    router.link(1)
    handle = router.publisher(1)
    router.flow(1, "now")
    router.publish(1, handle, 1, message("1", "t.s"), message("2", "t.n"), message("3", "t.s"))
    assert router.outcomes(1) == {2: OUTCOME_STORED}
    got = router.delivered(1)
    assert texts(got) == ["1", "3"]
    router.begin(1, handle, 1)
    router.publish(1, handle, 4, message("4", "t.s"), transaction=1)
    assert router.commit(1, handle, 1) is None
    router.core.release(got[0].id, OUTCOME_SYNC)
    router.tell(Tick())
    assert router.outcomes(1) == {1: OUTCOME_SYNC}
    router.core.release(2**64 - 1, OUTCOME_SYNC)
    router.tell(Tick())
    assert router.outcomes(1) == {3: OUTCOME_SYNC, 4: OUTCOME_SYNC}
    assert router.core.handle(Tick(), 0) == []
    router.begin(1, handle, 2)
    assert router.commit(1, handle, 2) == Ended(0, "committed", 0)
