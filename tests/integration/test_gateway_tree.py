"""Browsers on a real tree: they publish and subscribe with their own rights, and an operator sees and moves it."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from integration.console_kit import SECRETS, RunningConsole, Talk
from integration.console_tree_kit import NOTE, Tree, running_tree
from penstock.model import shipped
from penstock.security import Credentials
from penstock.security.core.brokering import Brokered
from penstock.security.live.client import AdminClient
from penstock.security.live.http import parse_addresses
from penstock.web.gateway.live.publishing import TreePlaces
from penstock.web.gateway.live.source import Outlet
from penstock.web.gateway.live.tree import TreeSource
from waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with running_tree(tmp_path_factory.mktemp("tree")) as made:
        yield made


def publish(talk: Talk, number: int, topic: str = NOTE) -> Any:
    fields = {"symbol": "AAPL", "bid_price": 189.25, "bid_size": number, "event_time": "1794779400100200300"}
    return talk.ask({"op": "publish", "id": number, "topic": topic, "model": "quote", "fields": fields})


def sizes(talk: Talk, count: int) -> list[int]:
    """Return the numbers of the next messages."""
    found: list[int] = []
    while len(found) < count:
        found += [each["fields"]["bid_size"] for each in talk.hear_kind("messages")["messages"]]
    return found


@pytest.mark.spec("TREE-9", "TREE-1")
def test_what_one_browser_publishes_another_gets(tree: Tree) -> None:
    alice, bob = tree.console.stream("alice"), tree.subscribed("bob")
    assert publish(alice, 1) == {"kind": "published", "id": 1}
    (message,) = bob.hear_kind("messages")["messages"]
    assert (message["ids"], message["topic"], message["stream"], message["model"]) == ([1], NOTE, "notes", "quote")
    assert message["fields"]["bid_price"] == 189.25
    assert message["fields"]["event_time"] == "1794779400100200300"
    assert message["seq"] >= 1


@pytest.mark.spec("TREE-5", "TREE-9")
def test_history_runs_into_live_without_gap_or_repetition(tree: Tree) -> None:
    alice = tree.console.stream("alice")
    for number in range(100, 110):
        assert publish(alice, number, "app.notes.history")["kind"] == "published"
    late = tree.subscribed("bob", topics=["app.notes.history"], since="oldest")
    assert sizes(late, 10) == list(range(100, 110))
    publish(alice, 110, "app.notes.history")
    assert sizes(late, 1) == [110]
    recent = tree.subscribed("bob", topics=["app.notes.history"], since={"ago_s": 3600}, where="bid_size > 108")
    assert sizes(recent, 2) == [109, 110]


@pytest.mark.spec("TREE-9")
def test_a_subscription_is_answered_before_its_messages(tree: Tree) -> None:
    assert publish(tree.console.stream("alice"), 1, "app.notes.early")["kind"] == "published"
    bob = tree.console.stream("bob")
    for number in range(1, 11):
        bob.say({"op": "subscribe", "id": number, "topics": ["app.notes.early"], "since": "oldest"})
        answered = False
        while (heard := bob.hear())["kind"] != "messages":
            answered |= heard["kind"] == "subscribed"
        assert answered
        assert heard["messages"][0]["ids"] == [number]


@pytest.mark.spec("TREE-2", "TREE-9")
@pytest.mark.parametrize("where", ["nothing = 1", "bid_size >", "((((", "(" * 4_000])
def test_conditions_with_mistakes_are_refused(tree: Tree, where: str) -> None:
    refused = tree.console.stream("bob").ask({"op": "subscribe", "id": 1, "topics": ["app.notes.>"], "where": where})
    assert (refused["kind"], refused["op"]) == ("refused", "subscribe")


@pytest.mark.spec("TREE-9")
def test_who_may_not_publish_is_refused_and_so_is_the_infostream(tree: Tree) -> None:
    assert publish(tree.console.stream("bob"), 1)["code"] == "not-entitled"
    alice = tree.console.stream("alice")
    assert publish(alice, 2, "infostream.parent_lost")["kind"] == "refused"
    assert publish(alice, 3, "md.us.eq.AAPL.quote")["kind"] == "refused"  # granted, but there is no such stream
    assert publish(alice, 4)["kind"] == "published"


@pytest.mark.spec("TREE-6", "TREE-9")
def test_who_loses_a_right_is_told_and_neighbours_notice_nothing(tree: Tree) -> None:
    alice = tree.console.stream("alice")
    bob, clerk = tree.subscribed("bob"), tree.subscribed("alice")
    boss = tree.boss
    assert boss.post("/api/actions", {"action": "revoke", "client": "bob", "reason": "not paid"}).status == 200
    revoked = bob.hear_kind("revoked")
    assert revoked["ids"] == [1]
    assert "not paid" in revoked["reason"]
    publish(alice, 500)
    assert 500 in sizes(clerk, 1)
    assert boss.post("/api/actions", {"action": "restore", "client": "bob", "reason": "paid"}).status == 200


def nodes(tree: Tree) -> dict[str, Any]:
    return {each["node"]: each for each in tree.boss.get("/api/picture").document["nodes"]}


@pytest.mark.spec("TREE-9", "TREE-7")
def test_an_operator_sees_the_tree_and_moves_a_leaf_and_back(tree: Tree) -> None:
    boss = tree.boss
    wait_until(lambda: nodes(tree)["leaf-1"]["parent"], "leaf-1 has a parent")
    seen = nodes(tree)
    assert (seen["root"]["place"], seen["leaf-1"]["place"], seen["leaf-1"]["group"]) == ("root", "leaf", "trial")
    assert "move" in seen["leaf-1"]["actions"]
    home = seen["leaf-1"]["parent"]
    other = {"mid-1": "mid-2", "mid-2": "mid-1"}[home]
    links = {(each["from"], each["to"]) for each in boss.get("/api/picture").document["links"]}
    assert {("root", "mid-1"), ("root", "mid-2"), (home, "leaf-1")} <= links

    watching = Talk(boss.socket("/ws/watch"))
    bob, alice = tree.subscribed("bob"), tree.console.stream("alice")
    move = {"action": "move", "node": home, "child": "leaf-1", "to": other, "reason": "load"}
    done = boss.post("/api/actions", move)
    assert done.status == 200, done.body
    wait_until(lambda: nodes(tree)["leaf-1"]["parent"] == other, "leaf-1 has moved")
    while watching.hear_kind("info")["info"] != "move":
        continue
    publish(alice, 600)
    assert 600 in sizes(bob, 1)
    back = {"action": "return", "node": other, "child": "leaf-1", "reason": "calm again"}
    assert boss.post("/api/actions", back).status == 200


@pytest.mark.parametrize(
    ("action", "status"),
    [
        ({"action": "move", "node": "nobody", "child": "leaf-1", "to": "mid-2"}, 404),
        ({"action": "move", "node": "mid-1", "child": "leaf-1", "to": "admin"}, 404),
        ({"action": "move", "node": "mid-1", "child": "nobody", "to": "mid-2"}, None),
        ({"action": "return", "node": "mid-1", "child": "nobody"}, None),
        ({"action": "promote", "node": "leaf-1"}, None),
    ],
)
def test_orders_that_agents_refuse(tree: Tree, action: dict[str, str], status: int | None) -> None:
    refused = tree.boss.post("/api/actions", {**action, "reason": "a trial"})
    assert refused.status >= 400
    assert status is None or refused.status == status


@pytest.mark.spec("TREE-4", "TREE-9")
def test_a_browser_goes_on_elsewhere_when_its_leaf_is_lost(tmp_path: Path) -> None:
    with running_tree(tmp_path) as tree:
        for agent in tree.agents.values():
            assert agent.refusals()["token"] == 0  # all came with their tokens
        alice, bob = tree.console.stream("alice"), tree.subscribed("bob")
        assert publish(alice, 1)["kind"] == "published"
        assert sizes(bob, 1) == [1]
        lost = next(name for name in ("leaf-1", "leaf-2") if tree.agents[name].children())
        tree.lose(lost)
        for number in range(2, 12):
            assert publish(alice, number)["kind"] == "published"
        assert sizes(bob, 10) == list(range(2, 12))


class SlowClient(AdminClient):
    """A client whose right to publish arrives when the test releases it."""

    def __init__(self, console: RunningConsole, name: str) -> None:
        super().__init__(parse_addresses(console.admin.url), Credentials(name, secret=SECRETS[name].encode()))
        self.asked, self.go = threading.Event(), threading.Event()

    def subscribe(self, *arguments: Any, **options: Any) -> Brokered:
        self.asked.set()
        assert self.go.wait(PATIENCE_SECONDS)
        return super().subscribe(*arguments, **options)


@pytest.mark.spec("TREE-9")
def test_a_browser_that_leaves_while_its_publisher_opens_leaves_nothing_behind(tree: Tree) -> None:
    def held() -> set[str]:
        rows = tree.boss.get("/api/entitlements").document["subscriptions"]
        return {each["subscription_id"] for each in rows if each["client"] == "alice" and each["send"]}

    before, admin = held(), SlowClient(tree.console, "alice")
    places = TreePlaces("trial", (tree.agents["leaf-1"].agent.place,), (tree.agents["root"].agent.place,))

    async def leave() -> None:
        with ThreadPoolExecutor(1) as publishing:
            source = TreeSource(admin, places, [], Silent(), publishing)
            publication = asyncio.ensure_future(source.publish(NOTE, shipped("quote").new(symbol="AAPL")))
            await asyncio.to_thread(admin.asked.wait, PATIENCE_SECONDS)
            publication.cancel()
            await asyncio.gather(publication, return_exceptions=True)
            admin.go.set()
            await asyncio.to_thread(wait_until, lambda: held() != before, "the right arrives after the caller has gone")
            await source.close()

    tree.console.thread.start(leave()).result(PATIENCE_SECONDS)
    assert held() == before


class Silent(Outlet):
    """An outlet that discards all messages."""
