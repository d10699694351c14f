"""Critical and metered messages of a node; the peer is a stand-in that follows the orders of the test."""

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from integration.node_kit import both, messages_of, request_for, take
from node_stand_in import QUOTE, StandInNode, quote
from penstock.base.errors import (
    ConfigurationError,
    NotEntitledError,
    ProcessError,
    RefusedError,
    RevokedError,
    UnreachableError,
)
from penstock.engine.client.conversion import converted_model
from penstock.engine.client.event_reader import EventReader
from penstock.engine.client.messages import Missed, UnreadRecord
from penstock.engine.client.offload import offloaded_events
from penstock.engine.control import AskModel, ControlMessage, Login, Modify, Overrun, Refused, RenewToken, Subscribe
from penstock.engine.core.kernel._event import EventFlag, EventKind, ReceiptCause, make_event
from penstock.model import MessageModel
from penstock.net.udp import free_ports
from waiting import wait_until


def refusing(kind: type, code: str, reason: str) -> Callable[[ControlMessage], ControlMessage | None]:
    return lambda said: Refused(code, reason, getattr(said, "number", 0)) if isinstance(said, kind) else None


@both
@pytest.mark.spec("TP-2", "OFFL-1")
def test_the_current_state_comes_first_then_every_update(is_offloaded: bool) -> None:
    with StandInNode() as node:
        for topic in ("md.A", "md.B"):
            node.publish(topic, quote(1))
        with messages_of(node, is_offloaded) as messages:
            first = take(messages.next, 2)
            assert [(each.topic, each.seq, each.source.kind) for each in first] == [("md.A", 1, 2), ("md.B", 1, 2)]
            for price in range(2, 200):
                node.publish("md.A", quote(price))
            updates = take(messages.next, 198)
            assert [each.bid_price for each in updates] == [float(price) for price in range(2, 200)]
            assert [each.seq for each in updates] == list(range(2, 200))
            assert {each.source.kind for each in updates} == {3}
            assert messages.is_live
            assert messages.losses == []
            counted = messages.statistics()
            assert (counted.messages, counted.refreshes, counted.overruns) == (200, 2, 0)


@both
@pytest.mark.spec("CRIT-4")
def test_an_overrun_that_cannot_be_made_good_is_told_with_a_receipt_and_a_refresh(is_offloaded: bool) -> None:
    with StandInNode() as node, messages_of(node, is_offloaded) as messages:
        node.publish("md.A", quote(1))
        take(messages.next, 1)
        node.restart = lambda said: [
            node.receipt(said.last_number + 1, node.number, int(ReceiptCause.OVERRUN)),
            node.event("md.A", EventKind.REFRESH, flags=int(EventFlag.AFTER_OVERRUN)),
        ]
        assert node.ring is not None
        node.ring.restart()  # as if the writer had lapped the ring
        node.publish("md.A", quote(2))
        node.publish("md.A", quote(3))
        (repaired,) = take(messages.next, 1)
        assert (repaired.bid_price, repaired.seq, repaired.source.flags) == (3.0, 3, int(EventFlag.AFTER_OVERRUN))
        assert [(each.last_number, each.ring) for each in node.said(Overrun)] == [(1, "events")]
        assert messages.losses == [Missed("", 2, 3, "overrun")]
        assert (messages.loss_count, messages.statistics().overruns) == (1, 1)
        node.publish("md.A", quote(4))
        assert take(messages.next, 1)[0].seq == 4


@both
@pytest.mark.spec("CRIT-4")
def test_an_overrun_that_is_made_good_by_the_history_loses_and_repeats_nothing(is_offloaded: bool) -> None:
    with StandInNode() as node, messages_of(node, is_offloaded) as messages:
        for price in (1, 2):
            node.publish("md.A", quote(price))
        take(messages.next, 2)
        node.restart = lambda said: [
            node.event("md.A", EventKind.UPDATE, version=version, number=version, flags=int(EventFlag.REPLAYED))
            for version in range(1, 6)
        ]
        assert node.ring is not None
        node.ring.restart()
        for price in (3, 4, 5):
            node.publish("md.A", quote(price))
        replayed = take(messages.next, 3)
        assert [each.seq for each in replayed] == [3, 4, 5]
        assert messages.losses == []
        counted = messages.statistics()
        assert (counted.overruns, counted.duplicates) == (1, 2)


@both
@pytest.mark.spec("CRIT-4")
def test_a_refresh_in_place_of_updates_is_a_receipt_even_if_the_node_gives_none(is_offloaded: bool) -> None:
    with StandInNode() as node, messages_of(node, is_offloaded) as messages:
        node.publish("md.A", quote(1))
        node.publish("md.B", quote(1))
        take(messages.next, 2)
        assert node.ring is not None
        node.ring.restart()
        for price in (2, 3, 4):
            node.publish("md.A", quote(price))
        assert take(messages.next, 1)[0].seq == 4
        assert messages.losses == [Missed("md.A", 2, 3, "overrun")]


@both
@pytest.mark.spec("CRIT-3")
def test_bytes_that_are_no_events_are_an_overrun_not_a_crash(is_offloaded: bool) -> None:
    with StandInNode() as node, messages_of(node, is_offloaded) as messages:
        node.publish("md.A", quote(1))
        take(messages.next, 1)
        node.write(b"\xff" * 64)
        wait_until(lambda: messages.next(0.01) is None and messages.statistics().overruns == 1, "the overrun")
        node.publish("md.A", quote(2))
        assert take(messages.next, 1)[0].bid_price == 2.0


@both
def test_a_node_that_is_back_goes_on_where_it_was(is_offloaded: bool) -> None:
    with StandInNode() as node, messages_of(node, is_offloaded) as messages:
        node.publish("md.A", quote(1))
        node.publish("md.A", quote(2))
        take(messages.next, 2)
        node.cut()
        wait_until(lambda: messages.next(0.01) is None and len(node.said(Subscribe)) == 2, "another subscription")
        assert (node.said(Subscribe)[1].after, node.said(Subscribe)[1].epoch) == (2, 7)
        node.publish("md.A", quote(3))
        assert take(messages.next, 1)[0].seq == 3
        assert messages.losses == []
        assert messages.statistics().detachments == 1


@both
def test_another_run_of_the_node_is_told(is_offloaded: bool) -> None:
    with StandInNode() as node, messages_of(node, is_offloaded) as messages:
        for price in (1, 2, 3):
            node.publish("md.A", quote(price))
        take(messages.next, 3)
        node.epoch, node.records["md.A"] = 8, (1, bytes(quote(9)))
        node.cut()
        (refreshed,) = take(messages.next, 1)
        assert (refreshed.bid_price, refreshed.seq) == (9.0, 1)
        assert messages.losses == [Missed("", 0, 0, "restarted")]
        assert node.said(Subscribe)[1].after == 0


@both
def test_a_topic_that_is_taken_away_is_told(is_offloaded: bool) -> None:
    with StandInNode() as node, messages_of(node, is_offloaded) as messages:
        node.publish("md.A", quote(1))
        take(messages.next, 1)
        node.remove("md.A")
        node.write(node.event("md.A", EventKind.UPDATE, version=2))  # for an item that no longer exists
        wait_until(lambda: messages.next(0.01) is None and messages.loss_count == 1, "the receipt")
        assert messages.losses[0].cause == "removed"
        wait_until(lambda: messages.next(0.01) is None and messages.statistics().unreadable == 1, "the count")


@both
@pytest.mark.spec("METR-3")
def test_the_rate_of_metered_messages_is_changed(is_offloaded: bool) -> None:
    with StandInNode() as node, messages_of(node, is_offloaded, cls="metered", per_second=4.0) as messages:
        assert (node.said(Subscribe)[0].cls, node.said(Subscribe)[0].per_second) == ("metered", 4.0)
        assert messages.change_rate(2.0) == 2.0
        assert node.said(Modify)[0].per_second == 2.0
        node.publish("md.A", quote(1), merged=7)
        (message,) = take(messages.next, 1)
        assert message.source.merged == 7
        assert messages.statistics().merged == 6


@both
def test_a_token_is_shown_and_renewed(is_offloaded: bool) -> None:
    with StandInNode() as node, messages_of(node, is_offloaded, token="first") as messages:
        assert node.said(Login)[0].token == "first"
        messages.renew("second")
        wait_until(lambda: node.said(RenewToken), "the newer token")
        node.cut()
        wait_until(lambda: messages.next(0.01) is None and len(node.said(Login)) == 2, "another login")
        assert node.said(Login)[1].token == "second"


@both
def test_refusals_and_silence_are_errors(is_offloaded: bool) -> None:
    with StandInNode() as node:
        node.answers = refusing(Subscribe, "entitlement", "not for you")
        with pytest.raises(NotEntitledError, match="not for you"):
            messages_of(node, is_offloaded)
        node.answers = refusing(Subscribe, "limit", "too many")
        with pytest.raises(RefusedError, match="too many") as refused:
            messages_of(node, is_offloaded)
        assert refused.value.peer_code == "limit"
        node.port = free_ports(1)[0]
        with pytest.raises(UnreachableError):
            messages_of(node, is_offloaded, timeout_s=0.2)


@both
def test_a_refusal_later_on_ends_it(is_offloaded: bool) -> None:
    with StandInNode() as node, messages_of(node, is_offloaded) as messages:
        node.answers = refusing(Login, "revoked", "your rights are gone")
        node.cut()
        with pytest.raises(RevokedError, match="your rights"):
            take(messages.next, 1)


OWN = MessageModel.parse(
    'id = 901\nname = "own"\nversion = 1\n[[field]]\nname = "price"\ntype = "price"\ndecimals = 2\n'
)


@both
def test_a_model_that_nobody_knows_is_asked_for(is_offloaded: bool) -> None:
    with StandInNode() as node, messages_of(node, is_offloaded) as messages:
        node.publish("md.own", OWN.new(price=1.25))
        assert take(messages.next, 1)[0].price == 1.25
        assert [(each.id, each.version) for each in node.said(AskModel)] == [(901, 1)]


def test_without_its_model_a_record_is_bytes() -> None:
    with StandInNode() as node, messages_of(node, is_offloaded=False) as messages:
        node.answers = refusing(AskModel, "model", "unknown")
        record = OWN.new(price=1.25)
        node.publish("md.own", record)
        (unread,) = take(messages.next, 1)
        assert isinstance(unread, UnreadRecord)
        assert (bytes(unread), unread.topic, unread.seq, unread.model_id) == (bytes(record), "md.own", 1, 901)


@both
@pytest.mark.spec("OFFL-1")
def test_prices_are_floats_when_converted(is_offloaded: bool) -> None:
    with StandInNode() as node, messages_of(node, is_offloaded, is_converting=True) as messages:
        node.publish("md.A", quote(1.5, ask_price=None))
        (message,) = take(messages.next, 1)
        assert (message.bid_price, message.ask_price, message.symbol) == (1.5, None, "T")
        assert message.model == converted_model(QUOTE)


@both
def test_only_messages_that_meet_a_condition(is_offloaded: bool) -> None:
    with StandInNode() as node, messages_of(node, is_offloaded, where="bid_price > 2 and symbol = 'T'") as messages:
        for price in (1, 2, 3):
            node.publish("md.A", quote(price))
        node.publish("md.own", OWN.new(price=5))  # which has no such fields
        node.publish("md.A", quote(4))
        assert [each.bid_price for each in take(messages.next, 2)] == [3.0, 4.0]
        assert messages.statistics().filtered == 3


@both
def test_many_messages_at_a_time(is_offloaded: bool) -> None:
    with StandInNode() as node, messages_of(node, is_offloaded) as messages:
        for price in range(1, 101):
            node.publish(f"md.{price % 3}", quote(price))
        node.publish("md.own", OWN.new(price=2))
        prices, own, topics = [], 0, []
        for batch in messages.batches():
            prices += [scaled / 10**8 for scaled in batch.records.get(QUOTE, {"bid_price": []})["bid_price"]]
            own += len(batch.records.get(OWN, ()))
            assert len(list(batch)) == len(batch)
            topics += [each.topic for each in batch]
            if own:
                break
        assert prices == [float(price) for price in range(1, 101)]
        assert topics == [f"md.{price % 3}" for price in range(1, 101)] + ["md.own"]
        assert messages.statistics().messages == 101
        assert list(messages.batches(timeout=0.01)) == []


def test_a_batch_in_which_a_number_changes_hands_names_each_topic_rightly() -> None:
    with StandInNode() as node, messages_of(node, is_offloaded=False) as messages:
        node.publish("md.A", quote(1))
        take(messages.next, 1)
        node.write(
            node.event("md.A", EventKind.UPDATE, version=2)
            + make_event(EventKind.REMOVE, item=0)
            + make_event(EventKind.DEFINE, item=0, body=b"md.B", model_id=1, model_version=1)
            + node.event("md.A", EventKind.UPDATE, version=1)
        )
        batch = next(messages.batches())
        assert [each.topic for each in batch] == ["md.A", "md.B"]


@both
def test_messages_in_an_asyncio_loop(is_offloaded: bool) -> None:
    async def read(messages: object) -> list[float]:
        found = []
        async for message in messages:  # type: ignore[attr-defined]
            found.append(message.bid_price)
            if len(found) == 3:
                return found
        return found

    with StandInNode() as node, messages_of(node, is_offloaded) as messages:
        for price in (1, 2, 3):
            node.publish("md.A", quote(price))
        assert asyncio.run(read(messages)) == [1.0, 2.0, 3.0]


@both
def test_closing_ends_the_iteration(is_offloaded: bool) -> None:
    with StandInNode() as node:
        messages = messages_of(node, is_offloaded)
        node.publish("md.A", quote(1))
        for message in messages:
            assert message.bid_price == 1.0
            messages.close()
        assert messages.next(0.0) is None
        messages.close()


@pytest.mark.spec("OFFL-1")
def test_the_end_of_the_offload_process_is_an_error_and_leaves_nothing() -> None:
    with StandInNode() as node:
        source = offloaded_events(request_for(node, cls="critical"))
        pid = source.process.pid
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ProcessError, match="SIGKILL"):
            source.take(30.0)
        source.close()
        assert not os.path.exists(f"/proc/{pid}")


@pytest.mark.spec("OFFL-1")
def test_an_offload_process_ends_with_its_source() -> None:
    with StandInNode() as node:
        source = offloaded_events(request_for(node, cls="critical"))
        pid = source.process.pid
        source.close()
        assert not os.path.exists(f"/proc/{pid}")


def test_an_offload_process_takes_no_secrets() -> None:
    from penstock.net.guard import Guard
    from penstock.net.secret import Secret

    with StandInNode() as node, pytest.raises(ConfigurationError):
        offloaded_events(request_for(node), Guard(Secret(b"x" * 32)))


def test_events_come_on_the_connection_where_there_is_no_shared_memory() -> None:
    with StandInNode() as node:
        request = request_for(node, cls="critical")
        original = node._welcome  # as for a consumer on another host
        node._welcome = lambda login: original(Login(login.name, "session"))  # type: ignore[method-assign]
        reader = EventReader(request)
        try:
            node.publish("md.A", quote(1))
            node.publish("md.A", quote(2))
            data = b""
            while len(data) < 600:
                data += reader.take(30.0).data
            assert reader.last_number == 2
            node.write(b"garbage!")
            node.publish("md.A", quote(3))
            while reader.last_number < 3:
                reader.take(30.0)
        finally:
            reader.close()


def test_tables_of_messages_and_batches_have_topics_and_versions() -> None:
    with StandInNode() as node, messages_of(node, is_offloaded=False) as messages:
        for price in range(1, 7):
            node.publish(f"md.{price % 2}", quote(price))
        table = messages.arrow(seconds=120, count=3, prices="float")
        assert table["topic"].to_pylist() == ["md.1", "md.0", "md.1"]
        assert table["seq"].to_pylist() == [1, 1, 2]
        assert table["bid_price"].to_pylist() == [1.0, 2.0, 3.0]
        assert messages.to_pandas(seconds=120, count=3)["bid_price"].tolist() == [4.0, 5.0, 6.0]
        node.publish("md.0", quote(7))
        batch = next(messages.batches())
        assert batch.arrow(prices="float").select(["topic", "seq", "bid_price"]).to_pylist() == [
            {"topic": "md.0", "seq": 4, "bid_price": 7.0}
        ]
        assert len(batch.to_polars()) == 1
        assert "<td>md.0</td>" in batch._repr_html_()
        assert repr(messages) == "<NodeMessages to md.>>"
        assert "md.&gt;" in messages._repr_html_()
