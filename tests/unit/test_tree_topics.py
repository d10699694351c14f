"""A stream with changed topics: all agents below learn of the change, and a standby stores the whole stream."""

import pytest

from penstock.tree.core.control import StreamInfo
from penstock.tree.core.events import Define
from penstock.wire import decode
from unit.tree_stage import STREAM, Stage

OTHER = ("extra.>",)


@pytest.mark.spec("TREE-1")
def test_agents_learn_of_changed_topics_and_forward_the_messages() -> None:
    stage = Stage()
    agents = [stage.agent("middle"), stage.agent("leaf", "middle")]
    stage.up()
    stage.root.handle(Define(STREAM, ("s1.>", *OTHER)))
    stage.wait(100)
    assert [each.agent.streams[1].info.topics for each in agents] == [("s1.>", *OTHER)] * 2
    late = stage.agent("late", "leaf")
    late.start()
    stage.wait(500)
    assert late.agent.streams[1].info.topics == ("s1.>", *OTHER)
    stage.root.crash()
    stage.root.start()  # its configuration has the first topics
    stage.wait(2_000)
    assert [each.agent.streams[1].info.topics for each in (*agents, late)] == [("s1.>",)] * 3


@pytest.mark.spec("TREE-8")
def test_the_parent_decides_the_topics() -> None:
    stage = Stage()
    stage.agent("one")
    two = stage.agent("two", peers=(stage.place_of("one"),))
    stage.up()
    upstream = two.agent.upstream
    info = two.agent.streams[1].info
    older = StreamInfo(info.number, info.name, OTHER, info.begins)
    upstream.learn(older, is_from_peer=True)
    assert two.agent.streams[1].info == info
    upstream.learn(older)
    assert two.agent.streams[1].info == older


@pytest.mark.spec("TREE-11")
def test_a_standby_that_catches_up_has_the_messages_of_all_former_topics() -> None:
    stage = Stage(standby=True, replicate="asynchronous", promotes_by_hand=True)
    stage.up()
    stage.publish(5)
    standby, publisher = stage.standby, stage.publishers[0]
    assert standby is not None
    standby.crash()
    stage.publish(5)
    stage.root.handle(Define(STREAM, OTHER))
    for _ in range(5):
        publisher.publish(STREAM, "extra.a.x", 0)
    stage.wait(100)
    standby.start()
    stage.wait(1_000)
    publisher.publish(STREAM, "extra.b.x", 0)
    stage.wait(100)
    kept = standby.disk.stores[1].records()
    assert [decode(each).sequence for each in kept] == list(range(1, 17))
    assert kept == stage.root.disk.stores[1].records()
    assert standby.disk.infos[1].topics == OTHER
