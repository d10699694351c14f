"""Two trading days through a whole plant, every node a process: no consumer keeps a value of the first day."""

import socket
import threading
import tomllib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from integration.distribution_kit import mux_config, node_here, packed, plant_config, quote
from integration.edge_kit import Screen, edge_here, websocket_port
from integration.node_kit import both
from integration.plant_kit import SOURCE_STREAM, PlantOptions, TestPlant
from integration.tree_kit import agent_config, agent_here, root_config, trade
from penstock.base.errors import NotFoundError
from penstock.client import ClientConfig
from penstock.engine.client import Changes, NodeMessages, Withdrawn, open_records
from penstock.feed.formats.mold import encode_end, encode_packet
from penstock.middleware import SessionEvent
from penstock.middleware.core.reserved_topics import SESSION_TOPIC
from penstock.net.udp import free_ports
from penstock.node.agents import RootFeed
from penstock.plant.config import PlantAccess
from penstock.plant.core.websocket_codec import JSON
from penstock.plant.live import upstream
from penstock.security.core.access import AdminAccess
from penstock.tree.client import open_publisher, open_stream
from penstock.tree.config import StreamConfig
from penstock.wire import Extension, Origin, OriginFlag, PacketMessage, encode_origin
from penstock.wire.term import SESSION_TAG_SHIFT, session_tag
from unit.itch_messages import head
from unit.test_convert_itch import add, directory
from waiting import PATIENCE_SECONDS, wait_until

NODES = """
[[filter]]
name = "filter"
control.port = {filter}
admin = {{ credentials = "filter.toml" }}

[[plant]]
name = "records"
subscribe = ["md.us.eq.>"]
control.port = {plant}
admin = {{ credentials = "filter.toml" }}
views = ["spread"]

[[mux]]
name = "beside"
control.port = {mux}
upstream = {{ port = {plant}, topics = ["md.us.>"] }}
admin = {{ credentials = "filter.toml" }}

[[edge]]
name = "screens"
access = "forward"
admin = {{ credentials = "filter.toml" }}
control.port = {edge}
websocket.port = {web}
upstream = {{ port = {mux}, topics = ["md.us.>"] }}
"""
AAPL, MSFT = "md.us.eq.AAPL.quote", "md.us.eq.MSFT.quote"
DAY_1, DAY_2 = "day0000001", "day0000002"


class Exchange:
    """Both lines of the feed, sent by the test."""

    def __init__(self, plant: TestPlant) -> None:
        document = tomllib.loads((plant.directory / "plant.toml").read_text())
        self._lines = [(each["group"], each["port"]) for each in document["feed"][0]["streams"][0]["lines"]]
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        self.session, self._next = "", 1

    def begin(self, session: str) -> None:
        self.session, self._next = session, 1

    def send(self, *messages: bytes) -> None:
        self._to_lines(encode_packet(self.session, self._next, messages))
        self._next += len(messages)

    def end(self) -> None:
        self._to_lines(encode_end(self.session, self._next))

    def _to_lines(self, datagram: bytes) -> None:
        for line in self._lines:
            self._socket.sendto(datagram, line)

    def close(self) -> None:
        self._socket.close()


class Story:
    """The output of a subscription, in order: topics with bid prices, and session events."""

    def __init__(self, subscription: Any) -> None:
        self.told: list[Any] = []
        subscription.on_session = self.told.append
        self._subscription = subscription
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for message in self._subscription:
            if message.topic.endswith(".quote"):
                self.told.append((message.topic, message.bid_price))

    def sessions(self) -> list[tuple[str, str]]:
        events = [each for each in list(self.told) if isinstance(each, SessionEvent)]
        return [(each.kind, each.session) for each in events if each.stream_id == SOURCE_STREAM]

    def withdrawn(self) -> set[str]:
        return {each.topic for each in list(self.told) if isinstance(each, Withdrawn)}

    def after_first_day(self) -> list[Any]:
        """Publish quotes after the end of the first session."""
        told = list(self.told)
        at = next(at for at, each in enumerate(told) if isinstance(each, SessionEvent) and each.kind == "end")
        return [each for each in told[at:] if isinstance(each, tuple)]

    def close(self) -> None:
        self._subscription.close()
        self._thread.join()


@pytest.mark.spec("DAY-3", "TP-1", "MUX-1", "ADPT-1", "METR-4")
def test_a_new_session_withdraws_the_values_of_the_one_before_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = dict(zip(("filter", "plant", "mux", "edge", "web"), free_ports(5), strict=True))
    stories: dict[str, Story] = {}
    with TestPlant(tmp_path, PlantOptions(more=NODES.format(**ports))) as plant:
        plant.start(players=False)
        nodes = [plant.node(name) for name in ("records", "beside", "screens")]
        plant.until(lambda: all(each.distributing and each.distributing.is_fed for each in nodes), "the nodes")
        exchange = Exchange(plant)
        alice = plant.connect("alice")
        through_filter = plant.connect("bob")
        through_filter.config = ClientConfig(filter=f"127.0.0.1:{ports['filter']}")
        mux, edge = f"127.0.0.1:{ports['mux']}", f"127.0.0.1:{ports['edge']}"
        try:
            ways: dict[str, Callable[[], Any]] = {
                "multicast": lambda: alice.subscribe("md.us.eq.>", transport="multicast"),
                "tcp": lambda: alice.subscribe("md.us.eq.>", transport="tcp"),
                "filter": lambda: through_filter.subscribe("md.us.eq.AAPL.>"),
                "critical": lambda: alice.subscribe("md.us.eq.>", node=mux),
                "metered": lambda: alice.metered("md.us.eq.>", per_second=100, node=edge),
            }
            stories.update({name: Story(open_way()) for name, open_way in ways.items()})
            quotes = alice.records("md.us.eq.>", node=mux)
            changes = quotes.changes()
            exchange.begin(DAY_1)
            exchange.send(directory(1, b"AAPL"), directory(2, b"MSFT"))
            plant.until(lambda: all(("begin", DAY_1) in each.sessions() for each in stories.values()), "the first day")
            exchange.send(add(11, b"B", 100, 1_000_000), add(12, b"B", 100, 2_000_000, 2, b"MSFT"))
            plant.until(lambda: AAPL in quotes and MSFT in quotes, "records of the first day")
            assert quotes[AAPL].bid_price == 100.0
            changed: list[Any] = []
            plant.until(lambda: _gather(changes, changed) and AAPL in {each.topic for each in changed}, "changes")
            plant.until(lambda: all((AAPL, 100.0) in each.told for each in stories.values()), "quotes of the first day")
            exchange.send(head(b"S", 0) + b"C")  # end of messages
            plant.until(lambda: not len(quotes), "the records to be withdrawn")
            exchange.end()  # announces the same end again
            assert quotes.get(AAPL) is None
            changed.clear()
            plant.until(lambda: _gather(changes, changed) and AAPL in {each.topic for each in changed}, "withdrawals")
            (withdrawn,) = [each for each in changed if each.topic == AAPL]
            assert (withdrawn.source.is_withdrawn, withdrawn.bid_price) == (True, None)
            exchange.begin(DAY_2)
            exchange.send(directory(1, b"MSFT"))
            exchange.send(add(21, b"B", 100, 3_000_000, 1, b"MSFT"))
            plant.until(lambda: MSFT in quotes, "a record of the second day")
            assert quotes[MSFT].bid_price == 300.0
            assert AAPL not in quotes
            assert [each.session for each in quotes.sessions][-2:] == [DAY_1, DAY_2]
            for name in ("multicast", "tcp", "critical", "metered"):
                story = stories[name]
                plant.until(lambda story=story: (MSFT, 300.0) in story.told, f"the second day by {name}")  # type: ignore[misc]
                assert {topic for topic, _ in story.after_first_day()} == {MSFT}
            for name, story in stories.items():
                plant.until(lambda story=story: ("begin", DAY_2) in story.sessions(), f"the second day by {name}")  # type: ignore[misc]
                assert story.sessions()[-3:] == [("begin", DAY_1), ("end", DAY_1), ("begin", DAY_2)]
            for name in ("critical", "metered"):
                assert {AAPL, MSFT, f"{AAPL}.view.spread"} <= stories[name].withdrawn()
            with alice.subscribe("md.us.eq.>", node=mux) as late:
                seen = _until_live(late)
                told = [(each.kind, each.session) for each in late.sessions if each.stream_id == SOURCE_STREAM]
            assert told == [("running", DAY_2)]
            assert {each.topic for each in seen if each.topic.endswith(".quote")} == {MSFT}
        finally:
            for story in stories.values():
                story.close()
            exchange.close()


@both
@pytest.mark.spec("DAY-3", "ADPT-1")
def test_records_are_withdrawn_in_an_offload_process_too(is_offloaded: bool) -> None:
    with (
        node_here(plant_config()) as plant,
        open_records(f"127.0.0.1:{plant.port}", "md.>", offload=is_offloaded) as quotes,
    ):
        plant.publish(of_day(DAY_1, "md.A.quote", 1), of_day(DAY_1, "md.B.quote", 2))
        wait_until(lambda: len(quotes) == 2)
        changes = quotes.changes(fields=["ask_price"])
        assert {each.topic for each in changes.batch(5.0)} <= {"md.A.quote", "md.B.quote"}
        wait_until(lambda: not changes.batch())
        plant.node._data.session(session("begin", DAY_2))
        wait_until(lambda: not len(quotes))
        plant.publish(of_day(DAY_2, "md.B.quote", 3))
        wait_until(lambda: list(quotes) == ["md.B.quote"])
        assert quotes["md.B.quote"].bid_price == 3.0
        with pytest.raises(NotFoundError):
            quotes["md.A.quote"]
        assert quotes.read("md.A.quote") is None
        assert [(each.kind, each.session) for each in quotes.sessions] == [("begin", DAY_2)]
        told: list[Any] = []
        wait_until(lambda: _gather(changes, told) and "md.A.quote" in {each.topic for each in told})
        (gone,) = [each for each in told if each.topic == "md.A.quote"]
        assert (gone.source.is_withdrawn, gone.bid_price) == (True, None)


@pytest.mark.spec("DAY-3", "MUX-1")
def test_what_a_plant_that_was_started_anew_does_not_have_is_withdrawn_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "RECONCILE_SECONDS", 1.0)
    (port,) = free_ports(1)
    address = {"control": PlantAccess(port=port)}
    with node_here(mux_config(port)) as mux, ExitStack() as stack:
        plant = stack.enter_context(node_here(plant_config(**address)))
        with open_records(f"127.0.0.1:{mux.port}", "md.>") as quotes:
            plant.publish(of_day(DAY_1, "md.A.quote", 1), of_day(DAY_1, "md.B.quote", 2))
            wait_until(lambda: len(quotes) == 2)
            stack.close()
            with node_here(plant_config(**address)) as another:
                another.publish(of_day(DAY_2, "md.B.quote", 3))
                wait_until(lambda: list(quotes) == ["md.B.quote"])
                assert quotes["md.B.quote"].bid_price == 3.0


@pytest.mark.spec("DAY-3", "EDGE-1")
def test_a_page_is_told_of_sessions_and_of_topics_without_a_value() -> None:
    with (
        node_here(plant_config()) as plant,
        edge_here(plant.port) as edge,
        Screen(websocket_port(edge), "page", JSON) as screen,
    ):
        screen.subscribe("md.>", cls="critical")
        plant.publish(of_day(DAY_1, "md.A.quote", 1))
        assert _seen(screen, "update")
        plant.node._data.session(session("end", DAY_1))
        _seen(screen, "session")
        assert [each["topic"] for each in _seen(screen, "withdraw")] == ["md.A.quote"]
        (told,) = _seen(screen, "session")
        assert told["session"] == {"kind": "end", "stream_id": 1, "session": DAY_1, "tag": session_tag(DAY_1)}
        screen.objects.clear()
        plant.node._data.session(session("begin", DAY_2))
        _seen(screen, "session")
        with Screen(websocket_port(edge), "late", JSON) as late:
            late.subscribe("md.>", cls="critical")
            (told,) = _seen(late, "session")
            assert told["session"] == {"kind": "running", "stream_id": 1, "session": DAY_2, "tag": session_tag(DAY_2)}


@pytest.mark.spec("DAY-3", "TREE-1")
def test_a_subscriber_of_a_tree_is_told_of_sessions_between_the_messages(tmp_path: Path) -> None:
    streams = (StreamConfig(name="md", topics=("md.>", SESSION_TOPIC)),)
    told: list[Any] = []
    with (
        agent_here(root_config(tmp_path / "root", streams=streams)) as root,
        agent_here(agent_config("leaf", root.place)) as leaf,
        open_publisher(root.place) as source,
        open_stream(leaf.wait_rooted().place, "md.>", SESSION_TOPIC, since="oldest") as messages,
    ):
        messages.on_session = told.append
        events = [session("end", DAY_1), session("begin", DAY_2)]
        source.publish("md.us.A.trade", trade(1))
        for event in events:
            source.publish(SESSION_TOPIC, msgspec.json.encode(event))
        source.publish(SESSION_TOPIC, b"{]")
        source.publish("md.us.A.trade", trade(2))
        assert source.flush(10)
        while len(told) < 4:
            if (message := messages.next(1.0)) is not None:
                told.append(message.trade_id)
        assert told == [1, *events, 2]
        assert messages.sessions == events
        assert messages.statistics().unreadable == 1


@pytest.mark.spec("DAY-3", "TREE-1")
def test_the_feed_of_a_root_tells_of_sessions_to_subscribers_of_ordinary_topics(tmp_path: Path) -> None:
    """Without subscribing to the session topic, and with a condition that no session event matches."""
    streams = (
        StreamConfig(name="md", topics=("md.>", SESSION_TOPIC)),
        StreamConfig(name="orders", topics=("orders.>",)),
    )
    told: list[Any] = []
    with (
        agent_here(root_config(tmp_path / "root", streams=streams)) as root,
        agent_here(agent_config("leaf", root.place)) as leaf,
        open_stream(leaf.wait_rooted().place, "md.us.>", where="quantity > 0", since="oldest") as messages,
    ):
        messages.on_session = told.append
        feed = RootFeed(root.agent)
        try:
            events = [session("end", DAY_1), session("begin", DAY_2)]
            feed.take([packed("md.us.A.trade", trade(1))])
            feed.session(session("running", DAY_1))
            for event in events:
                feed.session(event)
            feed.take([packed("md.us.A.trade", trade(2))])
            for _ in range(int(PATIENCE_SECONDS)):
                if len(told) < 5 and (message := messages.next(1.0)) is not None:
                    told.append(message.trade_id)
        finally:
            feed.stop()
        assert told == [1, session("running", DAY_1), *events, 2]


@pytest.mark.spec("DAY-3", "TREE-1")
def test_a_root_that_starts_after_the_session_changed_tells_of_the_new_session_once(tmp_path: Path) -> None:
    """Two streams carry the session events, and one subscription has both streams."""
    streams = tuple(StreamConfig(name=each, topics=(f"md.{each}.>", SESSION_TOPIC)) for each in ("us", "eu"))
    told: list[Any] = []
    with (
        agent_here(root_config(tmp_path / "root", streams=streams)) as root,
        open_stream(root.place, "md.>", since="oldest") as messages,
    ):
        messages.on_session = told.append
        for number, day in enumerate((DAY_1, DAY_2)):
            feed = RootFeed(root.agent)  # a restarted root has a feed that knows no session yet
            try:
                feed.session(session("running", day))
                feed.take(
                    [packed(f"md.{each}.A.trade", trade(2 * number + at)) for at, each in enumerate(("us", "eu"))]
                )
            finally:
                assert feed._publisher is not None
                assert feed._publisher.flush(PATIENCE_SECONDS)
                feed.stop()
            count = 3 * (number + 1)
            for _ in range(int(PATIENCE_SECONDS)):
                if len(told) < count and (message := messages.next(1.0)) is not None:
                    told.append(message.trade_id)
            assert len(told) == count
        assert messages.next(0.0) is None
        assert [each for each in told if isinstance(each, SessionEvent)] == [
            session("running", DAY_1),
            session("begin", DAY_2),
        ]
        assert told[3] == session("begin", DAY_2), "before every message of the second day"


@pytest.mark.spec("DAY-3", "TREE-1")
def test_a_stream_that_is_created_on_use_has_the_sessions_of_the_feed(tmp_path: Path) -> None:
    access = AdminAccess(url="penstock://127.0.0.1:7400", credentials="root.toml")
    config = root_config(tmp_path / "root", streams=(), create_on_use=True)
    told: list[Any] = []
    with (
        agent_here(config) as root,
        open_stream(root.place, "md.>", since="oldest") as messages,
    ):
        root.agent._core.reconfigure(msgspec.structs.replace(root.agent.config, subscribe=("md.us.>",), admin=access))
        messages.on_session = told.append
        feed = RootFeed(root.agent)
        try:
            events = [session("end", DAY_1), session("begin", DAY_2)]
            feed.session(session("running", DAY_1))
            feed.take([packed("md.us.A.trade", trade(1))])
            for event in events:
                feed.session(event)
            feed.take([packed("md.us.A.trade", trade(2))])
            for _ in range(int(PATIENCE_SECONDS)):
                if len(told) < 4 and (message := messages.next(1.0)) is not None:
                    told.append(message.trade_id)
        finally:
            feed.stop()
        assert told == [1, *events, 2]


TREE = """
[[agent]]
name = "root"
role = "root"
subscribe = ["md.us.eq.>"]
streams = [{{ name = "md", topics = ["md.us.eq.>"] }}, {{ name = "desk", topics = ["app.>"] }}]
control.port = {root}
agents = {{ leaf = "filter" }}
admin = {{ credentials = "filter.toml" }}

[[agent]]
name = "leaf"
parent = "127.0.0.1:{root}"
control.port = {leaf}
admin = {{ credentials = "filter.toml" }}
"""


@pytest.mark.spec("DAY-3", "TREE-1")
def test_a_tree_has_the_sessions_of_a_real_feed_though_no_stream_names_their_topic(tmp_path: Path) -> None:
    ports = dict(zip(("root", "leaf"), free_ports(2), strict=True))
    with TestPlant(tmp_path, PlantOptions(more=TREE.format(**ports))) as plant:
        plant.start(players=False)
        exchange = Exchange(plant)
        plant.until(lambda: (agent := plant.node("leaf").agent) is not None and agent.is_rooted, "the leaf")
        story = Story(plant.connect("alice").subscribe("md.us.eq.>", agent=f"127.0.0.1:{ports['leaf']}"))
        try:
            exchange.begin(DAY_1)
            exchange.send(directory(1, b"AAPL"))
            prices = iter(range(1_000_000, 10**9, 10_000))

            def is_fed() -> bool:
                exchange.send(add(next(prices), b"B", 100, next(prices)))
                return any(isinstance(each, tuple) for each in list(story.told))

            plant.until(is_fed, "a quote of the first day")
            exchange.end()
            plant.until(lambda: ("end", DAY_1) in story.sessions(), "the end of the first day")
            exchange.begin(DAY_2)
            exchange.send(directory(1, b"MSFT"))
            exchange.send(add(21, b"B", 100, 3_000_000, 1, b"MSFT"))
            plant.until(lambda: (MSFT, 300.0) in story.told, "the second day")
            assert story.sessions()[-2:] == [("end", DAY_1), ("begin", DAY_2)]
            assert story.after_first_day() == [(MSFT, 300.0)]
        finally:
            story.close()
            exchange.close()


def of_day(day: str, topic: str, number: int) -> PacketMessage:
    flags = int(OriginFlag.SYNCHRONISED) | session_tag(day) << SESSION_TAG_SHIFT
    origin = encode_origin(Origin(1, 1, 0, flags, number, number))
    made = packed(topic, quote(topic.split(".")[1], number))
    return PacketMessage(
        made.topic, made.payload, made.model_id, made.model_version, extensions={Extension.ORIGIN: origin}
    )


def session(kind: Any, day: str) -> SessionEvent:
    return SessionEvent(kind, 1, day, tag=session_tag(day))


def _seen(screen: Screen, kind: str) -> list[dict[str, Any]]:
    while not (found := [each for each in screen.objects if each["kind"] == kind]):
        screen.take()
    return found


def _gather(changes: Changes, changed: list[Any]) -> bool:
    changed += changes.batch()
    return True


def _until_live(subscription: NodeMessages) -> list[Any]:
    """The messages at the beginning of the subscription: everything until the next message takes half a second."""
    seen = []
    while (message := subscription.next(0.5)) is not None or not subscription.is_live:
        if message is not None:
            seen.append(message)
    return seen
