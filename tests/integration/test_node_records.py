"""Records of a node, whose other side is a stand-in: read by key, changes, filters, differences."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from children import child_environment
from integration.node_kit import both, records_of, request_for, take
from node_stand_in import QUOTE, StandInNode, quote
from penstock.base.errors import ConfigurationError, LocalProtocolError, ModelError, NotFoundError, ProcessError
from penstock.engine.client.conversion import converted_model
from penstock.engine.client.offload import offloaded_records
from penstock.engine.client.records import Records
from penstock.engine.control import OpenRegion, Overrun
from penstock.engine.core.kernel._event import EventKind, make_event
from waiting import PATIENCE_SECONDS, wait_until


@both
@pytest.mark.spec("ADPT-1", "ADPT-4", "OFFL-1")
def test_a_read_has_the_newest_record(is_offloaded: bool) -> None:
    with StandInNode() as node:
        node.publish("md.A", quote(1))
        with records_of(node, is_offloaded) as quotes:
            assert quotes["md.A"].bid_price == 1.0
            for price in range(2, 500):
                node.publish("md.A", quote(price))
            newest = quotes["md.A"]
            assert (newest.bid_price, newest.topic) == (499.0, "md.A")
            assert newest.source.since_count + 498 == newest.source.update_count == newest.seq
            assert (list(quotes), len(quotes), "md.A" in quotes) == (["md.A"], 1, True)


@both
def test_what_is_not_there(is_offloaded: bool) -> None:
    with StandInNode() as node, records_of(node, is_offloaded) as quotes:
        assert quotes.wait(30.0)
        for wrong in (lambda: quotes["md.X"], lambda: quotes.is_updated("md.X"), lambda: quotes.delta("md.X")):
            with pytest.raises(NotFoundError):
                wrong()
        assert quotes.get("md.X") is None
        assert quotes.read("md.X", 0.01) is None
        node.publish("md.X", quote(1))
        assert quotes.read("md.X", 30.0) is not None


@both
@pytest.mark.spec("ADPT-5")
def test_a_read_answers_at_once_that_nothing_was_updated(is_offloaded: bool) -> None:
    with StandInNode() as node:
        node.publish("md.A", quote(1))
        with records_of(node, is_offloaded) as quotes:
            assert quotes.read("md.A", 30.0) is not None
            assert not quotes.is_updated("md.A")
            assert quotes.read("md.A") is None
            node.publish("md.A", quote(2))
            assert quotes.is_updated("md.A")
            message = quotes.read("md.A")
            assert message is not None
            assert message.bid_price == 2.0


@both
@pytest.mark.spec("ADPT-4")
def test_a_blocking_read_waits_for_the_next_update(is_offloaded: bool) -> None:
    with StandInNode() as node:
        node.publish("md.A", quote(1))
        with records_of(node, is_offloaded) as quotes:
            assert quotes["md.A"].bid_price == 1.0
            threading.Timer(0.1, node.publish, ("md.A", quote(2))).start()
            message = quotes.read("md.A", None)
            assert message is not None
            assert message.bid_price == 2.0


@both
@pytest.mark.spec("ADPT-7")
def test_which_fields_changed_since_the_last_read(is_offloaded: bool) -> None:
    with StandInNode() as node:
        node.publish("md.A", quote(1, ask_price=2))
        with records_of(node, is_offloaded) as quotes:
            assert quotes["md.A"].source.changed == tuple(field.name for field in QUOTE.fields)
            assert quotes.delta("md.A") == ()
            node.publish("md.A", quote(1, ask_price=3))
            assert quotes.delta("md.A") == ("ask_price",)
            node.publish("md.A", quote(5, ask_price=3))
            assert quotes.delta("md.A") == ("bid_price", "ask_price")
            assert quotes["md.A"].source.changed == ("bid_price", "ask_price")


@both
@pytest.mark.spec("ADPT-5", "ADPT-6")
def test_changes_are_told_once_each_as_they_are_now(is_offloaded: bool) -> None:
    with StandInNode() as node, records_of(node, is_offloaded) as quotes:
        changes = quotes.changes()
        for price in range(1, 51):
            node.publish(f"md.{price % 2}", quote(price))
        seen: dict[str, float] = {}
        while seen != {"md.0": 50.0, "md.1": 49.0}:
            message = changes.next(PATIENCE_SECONDS)
            assert message is not None
            assert message.bid_price > seen.get(message.topic, 0.0)
            seen[message.topic] = message.bid_price
        assert changes.next(0.0) is None
        assert changes.batch() == []


@both
@pytest.mark.spec("ADPT-6")
def test_filters_are_changed_while_they_run_and_each_has_its_own(is_offloaded: bool) -> None:
    with StandInNode() as node, records_of(node, is_offloaded) as quotes:
        node.publish("md.A", quote(1))
        prices, sizes = quotes.changes(fields=["bid_price"]), quotes.changes(moved={"bid_size": 100})
        take(prices.next, 1)
        take(sizes.next, 1)
        node.publish("md.A", quote(1, bid_size=500))
        assert take(sizes.next, 1)[0].bid_size == 500
        assert prices.next(0.0) is None
        prices.filter(fields=["bid_size"])
        node.publish("md.A", quote(1, bid_size=501))
        assert take(prices.next, 1)[0].bid_size == 501
        assert sizes.next(0.0) is None
        assert quotes.statistics().withheld >= 2
        sizes.close()
        assert sizes.next(0.0) is None
        assert list(sizes) == []


@both
@pytest.mark.spec("ADPT-6")
def test_at_most_so_many_per_second_still_tells_the_last_and_a_read_has_the_newest(is_offloaded: bool) -> None:
    with StandInNode() as node, records_of(node, is_offloaded) as quotes:
        node.publish("md.A", quote(1))
        changes = quotes.changes(per_second=2)
        take(changes.next, 1)
        for price in (2, 3, 4):
            node.publish("md.A", quote(price))
        assert quotes["md.A"].bid_price == 4.0
        assert changes.next(0.0) is None
        assert take(changes.next, 1)[0].bid_price == 4.0
        assert changes.next(0.0) is None


@both
def test_at_least_every_tells_again(is_offloaded: bool) -> None:
    with StandInNode() as node, records_of(node, is_offloaded) as quotes:
        node.publish("md.A", quote(1))
        told = take(quotes.changes(at_least_every=0.02).next, 4)
        assert {each.seq for each in told} == {1}


@both
def test_wrong_filters_are_refused(is_offloaded: bool) -> None:
    with StandInNode() as node, records_of(node, is_offloaded) as quotes:
        node.publish("md.A", quote(1))
        assert quotes["md.A"].bid_price == 1.0
        with pytest.raises(LocalProtocolError, match="no_such"):
            quotes.changes(fields=["no_such"])
        with pytest.raises(ConfigurationError):
            quotes.changes(moved={"symbol": 1})
        changes = quotes.changes()
        with pytest.raises(ConfigurationError):
            changes.filter(per_second=-1)
        assert take(changes.next, 1)


@both
@pytest.mark.spec("ADPT-5")
def test_lost_notices_lose_no_change(is_offloaded: bool) -> None:
    with StandInNode() as node, records_of(node, is_offloaded) as quotes:
        for topic in ("md.A", "md.B"):
            node.publish(topic, quote(1))
        changes = quotes.changes()
        take(changes.next, 2)
        assert node.notices is not None
        node.notices.restart()  # as if the writer had lapped the ring
        node.publish("md.B", quote(2))
        assert take(changes.next, 1)[0].topic == "md.B"
        assert [each.ring for each in node.said(Overrun)] == ["notices"]
        assert quotes.statistics().overruns == 1
        node.publish("md.A", quote(3))
        assert take(changes.next, 1)[0].bid_price == 3.0


@both
def test_hostile_notices_and_definitions_harm_nobody(is_offloaded: bool) -> None:
    with StandInNode() as node, records_of(node, is_offloaded) as quotes:
        node.publish("md.A", quote(1))
        changes = quotes.changes()
        take(changes.next, 1)
        node.write(
            make_event(EventKind.NOTICE, item=5, model_id=1, slot=2**31),
            make_event(EventKind.NOTICE, item=5, model_id=9, slot=0),
            make_event(EventKind.DEFINE, item=70, body=b"md.far", model_id=1, model_version=1, slot=64),
            make_event(EventKind.DEFINE, item=71, body=b"md.other", model_id=9, model_version=1, slot=0),
            make_event(EventKind.DEFINE, item=72, body=b"\xff\xfe", model_id=1, model_version=1, slot=3),
            make_event(EventKind.REMOVE, item=99),
            b"garbage!" * 9,
        )
        node.publish("md.A", quote(2))
        assert take(changes.next, 1)[0].bid_price == 2.0
        assert quotes.get("md.other") is None
        assert quotes["md.A"].bid_price == 2.0


@both
def test_a_slot_that_changes_hands_is_read_as_another_record(is_offloaded: bool) -> None:
    with StandInNode() as node, records_of(node, is_offloaded) as quotes:
        node.publish("md.A", quote(1))
        changes = quotes.changes()
        take(changes.next, 1)
        node.remove("md.A")
        del node.items["md.A"]
        node.publish("md.B", quote(2))
        (other,) = take(changes.next, 1)
        assert (other.topic, len(other.source.changed)) == ("md.B", len(QUOTE.fields))
        assert quotes.get("md.A") is None


@both
def test_a_node_that_is_back_begins_with_its_records(is_offloaded: bool) -> None:
    with StandInNode() as node, records_of(node, is_offloaded) as quotes:
        node.publish("md.A", quote(1))
        changes = quotes.changes(fields=["bid_price"])
        take(changes.next, 1)
        node.cut()
        node.publish("md.A", quote(2))
        assert take(changes.next, 1)[0].bid_price == 2.0
        assert quotes["md.A"].bid_price == 2.0
        assert quotes.statistics().detachments == 1


@both
@pytest.mark.spec("OFFL-1")
def test_records_are_converted(is_offloaded: bool) -> None:
    with StandInNode() as node, records_of(node, is_offloaded, is_converting=True) as quotes:
        node.publish("md.A", quote(1.25))
        message = quotes["md.A"]
        assert (message.bid_price, message.ask_price, message.model) == (1.25, None, converted_model(QUOTE))


@both
def test_changes_in_an_asyncio_loop_beside_reads_in_threads(is_offloaded: bool) -> None:
    async def read(quotes: Records) -> list[float]:
        found = []
        async for message in quotes.changes(fields=["bid_price"]):
            found.append(message.bid_price)
            newest = await asyncio.to_thread(lambda: quotes["md.A"])
            if newest.bid_price == 3.0:
                return found
            node.publish("md.A", quote(newest.bid_price + 1))
        return found

    with StandInNode() as node, records_of(node, is_offloaded) as quotes:
        node.publish("md.A", quote(1))
        assert asyncio.run(read(quotes)) == [1.0, 2.0, 3.0]


@both
def test_closed_records_say_so(is_offloaded: bool) -> None:
    with StandInNode() as node:
        quotes = records_of(node, is_offloaded)
        changes = quotes.changes()
        quotes.close()
        quotes.close()
        with pytest.raises(LocalProtocolError):
            quotes.get("md.A")
        with pytest.raises(LocalProtocolError):
            changes.next(0.0)


def test_a_region_that_does_not_fit_its_model_is_left_alone() -> None:
    with StandInNode() as node, records_of(node, is_offloaded=False) as quotes:
        node.publish("md.A", quote(1))
        assert quotes["md.A"].bid_price == 1.0
        node._tell(OpenRegion(7, 1, "region-1", "", 8, 64))  # the node announces a book, and hands over quotes
        node.publish("md.A", quote(2))
        assert quotes["md.A"].bid_price == 2.0


@pytest.mark.spec("OFFL-1")
def test_the_end_of_the_offload_process_is_told_to_whoever_reads() -> None:
    with StandInNode() as node:
        node.publish("md.A", quote(1))
        source = offloaded_records(request_for(node, cls="adaptive"))
        with Records(source) as quotes:
            changes = quotes.changes()
            take(changes.next, 1)
            os.kill(source.process.pid, signal.SIGKILL)
            with pytest.raises(ProcessError):
                changes.next(PATIENCE_SECONDS)
            with pytest.raises(ProcessError):
                quotes.get("md.A")


@pytest.mark.spec("OFFL-1")
def test_no_offload_process_outlives_its_application() -> None:
    with StandInNode() as node:
        application = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("offload_application.py"), str(node.port)],
            stdout=subprocess.PIPE,
            env=child_environment(),
        )
        with application:
            assert application.stdout is not None
            pid = int(application.stdout.readline())
            assert os.path.exists(f"/proc/{pid}")
            application.kill()
        wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the end of the offload process")


def test_a_table_has_the_newest_records() -> None:
    with StandInNode() as node, records_of(node, is_offloaded=False) as quotes:
        assert quotes.wait(120.0)
        with pytest.raises(ModelError, match="not of 0"):
            quotes.arrow()
        for price in range(1, 5):
            node.publish(f"md.{price % 2}", quote(price))
        wait_until(lambda: len(quotes) == 2 and quotes["md.0"].bid_price == 4.0, "the last record")
        assert quotes.arrow(QUOTE, prices="float").select(["topic", "bid_price"]).to_pylist() == [
            {"topic": "md.0", "bid_price": 4.0},
            {"topic": "md.1", "bid_price": 3.0},
        ]
        assert repr(quotes) == "<Records: 2 topics>"
        assert "<td>md.1</td>" in quotes._repr_html_()
        quotes.close()
        assert repr(quotes) == "<Records (closed)>"
        assert "md.1" not in quotes._repr_html_()


def test_pandas_reads_the_newest_records() -> None:
    with StandInNode() as node, records_of(node, is_offloaded=False) as quotes:
        for number in (0, 1):
            node.publish(f"md.{number}", quote(number))
        wait_until(lambda: len(quotes) == 2, "two records")
        assert quotes.to_pandas()["symbol"].tolist() == [quotes["md.0"].symbol, quotes["md.1"].symbol]
