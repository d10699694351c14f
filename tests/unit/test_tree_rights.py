"""Rights of a party at an agent under any name; two peers keep one link."""

import pytest

from penstock.security.core.token import Grant
from penstock.tree.core.events import Arrived, GotToken, Party, Restore, Revoke
from unit.tree_stage import Stage

NEWCOMER = 1 << 20
"""A link number that the stage does not use."""


@pytest.mark.spec("TREE-6")
def test_a_revoked_publisher_is_disconnected_and_accepted_again_when_restored() -> None:
    stage = Stage()
    stage.up()
    publisher = stage.publishers[0]
    stage.publish(3)
    stage.root.handle(Revoke(publisher.name, (), "not paid"))
    stage.publish(3)
    assert publisher.acknowledged == 3
    assert stage.root.agent.fanout.stream(1).last == 3
    assert set(stage.root.counters.by_cause("consumers_refused")) == {"revoked"}
    stage.root.handle(Restore(publisher.name))
    stage.wait(5_000)
    assert publisher.acknowledged == 6


@pytest.mark.spec("TREE-6")
def test_a_publisher_that_loses_a_topic_continues_on_the_others() -> None:
    stage = Stage()
    stage.up()
    publisher = stage.publishers[0]
    stage.root.handle(Revoke(publisher.name, ("s1.b.>",), "not paid"))
    stage.publish(3, "a")
    assert publisher.acknowledged == 3
    stage.publish(1, "b")
    assert publisher.acknowledged == 3
    assert stage.root.counters.by_cause("consumers_refused")["publish"] >= 1


@pytest.mark.spec("TREE-6")
def test_a_revoked_client_gets_nothing_under_another_name() -> None:
    stage = Stage()
    leaf = stage.agent("leaf")
    stage.up()
    leaf.handle(Revoke("alice", (), "not paid"))
    grants = (Grant("receive", ">"),)
    leaf.handle(Arrived(NEWCOMER, Party("somebody", "subscriber", grants=grants, subject="alice")))
    leaf.handle(Arrived(NEWCOMER + 1, Party("other", "subscriber", grants=grants, subject="bob")))
    assert leaf.counters.by_cause("consumers_refused") == {"revoked": 1}
    assert NEWCOMER + 1 in leaf.agent.children


@pytest.mark.spec("TREE-3")
def test_a_client_cannot_publish_with_the_numbers_of_another() -> None:
    stage = Stage()
    stage.up()
    owner = stage.publishers[0]
    stage.publish(2)
    thief = Party("thief", "publisher", publisher_id=owner.publisher_id, subject="thief")
    stage.root.handle(Arrived(NEWCOMER, thief))
    stage.publish(2)
    assert stage.root.counters.by_cause("consumers_refused") == {"publisher": 1}
    assert owner.acknowledged == 4


def test_the_agents_above_receive_a_newer_token() -> None:
    stage = Stage()
    leaf = stage.agent("leaf")
    stage.up()
    asked: list[str] = []
    stage.grants_of = lambda token: asked.append(token)  # type: ignore[method-assign, assignment, func-returns-value]
    leaf.handle(GotToken("newer"))
    stage.wait(100)
    assert asked == ["newer"]
    assert leaf.agent.parents.token == "newer"


@pytest.mark.spec("TREE-8")
def test_peers_that_name_each_other_keep_one_link() -> None:
    stage = Stage(reactions=("wait",))
    one = stage.agent("one", peers=(stage.place_of("two"),))
    two = stage.agent("two", peers=(stage.place_of("one"),))
    readers = [stage.subscriber("r1", "one"), stage.subscriber("r2", "two")]
    stage.up()
    stage.wait(500)
    came = [each.counters["consumers_attached"] for each in (one, two)]
    stage.wait(10_000)
    assert [each.counters["consumers_attached"] for each in (one, two)] == came
    assert [len(each.agent.upstream.peers) for each in (one, two)] == [1, 1]
    stage.network.cut("root", "one")
    stage.publish(5)
    assert [stage.got(each) for each in readers] == [list(range(1, 6))] * 2
    stage.network.heal()
    two.crash()
    stage.wait(500)
    two.start()
    stage.wait(5_000)
    assert [len(each.agent.upstream.peers) for each in (one, two)] == [1, 1]
    stage.judge()
