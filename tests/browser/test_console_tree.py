"""The distribution tree in a real browser: messages from one page appear on another, and a tree recovers from the
failure of a parent in front of the user."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser.browser_kit import Visits, go_to, link, node, notice, row, watch
from integration.console_tree_kit import Tree, running_tree
from waiting import wait_until

NOTE = "app.notes.desk"


@pytest.fixture
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with running_tree(tmp_path_factory.mktemp("tree")) as made:
        bring_home(made, "leaf-1", "mid-1", "mid-2")
        yield made


def bring_home(tree: Tree, leaf: str, home: str, elsewhere: str) -> None:
    """A leaf that connected before its parent could check tokens has moved to its alternate."""

    def parent() -> str:
        return str(tree.agents[leaf].agent.status(0).parent)

    wait_until(lambda: parent() in (home, elsewhere), "a parent")
    if parent() == elsewhere:
        move = {"action": "move", "node": elsewhere, "child": leaf, "to": home, "reason": "as the document says"}
        assert tree.boss.post("/api/actions", move).status == 200
        wait_until(lambda: parent() == home, f"{leaf} is below {home}")


def publish(page: Page, topic: str, **fields: str) -> None:
    go_to(page, "Publish")
    page.get_by_label("Topic", exact=True).fill(topic)
    page.get_by_label("Message model").select_option("quote")
    for name, value in fields.items():
        page.locator(f'[name="field.{name}"]').fill(value)
    page.get_by_role("button", name="Publish").click()


@pytest.mark.spec("TREE-1", "TREE-4", "TREE-7", "TREE-9")
def test_a_tree_distributes_moves_and_recovers(visits: Visits, tree: Tree) -> None:
    port = tree.console.console.port
    alice, bob = visits.log_in(port, "alice"), visits.log_in(port, "bob")
    watch(bob, "app.notes.>")
    go_to(bob, "Publish")
    expect(bob.locator("#publish-rights")).to_contain_text("you have no right to send on any topic")
    expect(bob.get_by_role("button", name="Publish")).to_be_disabled()
    go_to(bob, "Quotes")
    publish(alice, "infostream.path", bid_price="1")
    expect(alice.locator("#publish-told")).to_contain_text("Not published")
    expect(alice.locator("#publish-rights")).to_contain_text("You may publish on app.notes.>")
    publish(alice, NOTE, bid_price="10.25", bid_size="7")
    expect(alice.locator("#published li")).to_contain_text(NOTE)
    expect(row(bob, NOTE)).to_contain_text("10.25")

    boss = visits.log_in(port, "boss", "topology")
    leaf = node(boss, "leaf-1")
    expect(leaf).to_have_attribute("data-parent", "mid-1")
    expect(link(boss, "mid-1", "leaf-1")).to_have_attribute("data-state", "up")
    leaf.click()
    boss.get_by_role("button", name="Move…").click()
    boss.get_by_label("New parent").select_option("mid-2")
    boss.get_by_label("Reason").fill("load")
    boss.keyboard.press("Enter")
    expect(notice(boss, "done")).to_contain_text("leaf-1 was asked to change to mid-2")
    expect(leaf).to_have_attribute("data-parent", "mid-2")
    expect(link(boss, "mid-2", "leaf-1")).to_have_attribute("data-state", "up")
    expect(link(boss, "mid-1", "leaf-1")).to_have_count(0)
    boss.get_by_role("button", name="Send back…").click()
    boss.get_by_label("Reason").fill("calm again")
    boss.keyboard.press("Enter")
    expect(leaf).to_have_attribute("data-parent", "mid-1")

    tree.lose("mid-1")
    expect(node(boss, "mid-1")).to_have_attribute("data-state", "unreachable")
    expect(node(boss, "mid-1")).to_have_class("node is-bad aged")
    expect(leaf).to_have_attribute("data-parent", "mid-2")
    expect(link(boss, "mid-2", "leaf-1")).to_have_attribute("data-state", "up")
    leaf.click()  # without a selected node, the panel lists the last changes
    changes = boss.locator("#node-panel")
    expect(changes).to_contain_text("mid-1 has lost root")
    expect(changes.get_by_text("leaf-1 is now below mid-2")).to_have_count(2)  # it had been moved there before
    go_to(boss, "Infostream")
    boss.get_by_label("Show what contains").fill("to leaf-1")
    moved = boss.locator("#infostream-table tbody tr").filter(has_text="asks the child to move to the agent at")
    expect(moved.filter(has_text=": load (to leaf-1)")).to_be_visible()
    boss.get_by_label("Show what contains").fill("has below it")
    expect(boss.locator("#infostream-table tbody tr").first).to_contain_text("with a load of")
    texts = boss.locator("#infostream-table tbody").inner_text()
    assert not re.search(r"[\[\]{}]|None|True|False", texts), texts

    publish(alice, NOTE, bid_price="10.50")
    expect(row(bob, NOTE)).to_contain_text("10.50")


@pytest.mark.spec("TREE-9", "TREE-11")
def test_an_operator_makes_the_standby_the_root(visits: Visits, tmp_path: Path) -> None:
    with running_tree(tmp_path, has_standby=True) as tree:
        boss = visits.log_in(tree.console.console.port, "boss", "topology")
        standby = node(boss, "standby")
        expect(standby).to_contain_text("standby")
        tree.lose("root")
        expect(node(boss, "root")).to_have_attribute("data-state", "unreachable")
        standby.click()
        boss.get_by_role("button", name="Promote…").click()
        boss.get_by_label("Reason").fill("the root is lost")
        boss.keyboard.press("Enter")
        expect(notice(boss, "done")).to_contain_text("the node becomes the root")
        expect(boss.get_by_role("button", name="Promote…")).to_have_count(0)
        wait_until(lambda: tree.agents["standby"].agent.status(0).state == "root", "the standby is the root")
