"""A distribution agent's core: forwarding; connecting, catch-up and moves of children."""

from typing import Any

import pytest

from penstock.base.clock import NS_PER_MS
from penstock.sim.tree.apps import Session
from penstock.tree.config import BackoffConfig, ReactionConfig
from penstock.tree.core.control import OLDEST, Position, Published
from penstock.tree.core.events import Busy, Move, Promote, Restore, Revoke, SendBack
from penstock.tree.core.infostream import Infostream, Load
from penstock.tree.core.kernel._frame import encode_block
from unit.tree_stage import STREAM, Stage


def session_of(stage: Stage, name: str) -> Session:
    session = next(each for each in stage.subscribers if each.name == name).session
    assert session is not None
    return session


@pytest.mark.spec("TREE-1")
def test_messages_go_only_to_branches_with_an_interest() -> None:
    stage = Stage()
    above, below, other = stage.agent("above"), stage.agent("below", "above"), stage.agent("other")
    reader = stage.subscriber("reader", "below", topic="a")
    stage.up()
    stage.publish(10, "a")
    stage.publish(10, "b")
    assert stage.got(reader) == list(range(1, 11))
    assert [stage.accepted(each) for each in (above, below, other)] == [10, 10, 0]
    stage.judge()


@pytest.mark.spec("TREE-1")
def test_a_message_of_an_unknown_stream_is_refused_unless_streams_are_created_on_use() -> None:
    stage = Stage()
    stage.up()
    publisher = stage.publishers[0]
    publisher.publish("s9", "s9.a.x", 0)
    stage.wait(20)
    assert publisher.acknowledged == 0
    assert stage.root.counters.by_cause("consumers_refused") == {"publish": 1}


@pytest.mark.spec("TREE-2")
def test_conditions_are_applied_at_the_root() -> None:
    stage = Stage()
    above, below = stage.agent("above"), stage.agent("below", "above")
    reader = stage.subscriber("reader", "below", level_min=90)
    stage.up()
    for level in range(0, 100, 5):
        stage.publish(1, level=level)
    assert len(stage.got(reader)) == stage.accepted(above) == stage.accepted(below) == 2
    stage.judge()


@pytest.mark.spec("TREE-2")
def test_a_topic_covered_by_another_interest_is_not_requested_twice() -> None:
    stage = Stage()
    above = stage.agent("above")
    stage.subscriber("wide", "above", topic="*")
    stage.subscriber("narrow", "above", topic="a", level_min=50)
    stage.up()
    stage.publish(5, "a", level=60)
    stage.wait(1_500)
    legs = above.agent.upstream.legs_of(1)
    assert [want.topics for want in legs.coverage] == [("s1.>",)]
    stage.judge()


@pytest.mark.spec("TREE-3")
def test_a_subscriber_that_sends_on_the_infostream_is_disconnected() -> None:
    stage = Stage()
    leaf = stage.agent("leaf")
    reader, neighbour = stage.subscriber("reader", "leaf"), stage.subscriber("neighbour", "leaf")
    stage.up()
    session = session_of(stage, "reader")
    session.out += encode_block(Infostream("reader").encode(Load("reader", 5)))
    session.end.pump()
    stage.wait(20)
    assert leaf.counters["connections_closed"] == 1
    assert session.end.number not in reader.sessions
    stage.publish(3)
    stage.wait(300)
    assert stage.got(reader) == stage.got(neighbour) == [1, 2, 3]
    stage.judge()


@pytest.mark.spec("TREE-3")
def test_an_agent_that_sends_under_a_false_name_is_disconnected() -> None:
    stage = Stage()
    child = stage.agent("child")
    stage.up()
    stage.checkers.remove(stage.infostream)
    stage.infostream.require = lambda is_so, what: None  # type: ignore[method-assign]  # it would notice
    child.agent.outbox._infostream = Infostream("somebody")
    child.handle(Busy(40))
    stage.wait(20)
    assert stage.root.counters.by_cause("connections_closed") == {"message": 1}


@pytest.mark.spec("TREE-3", "TREE-7")
def test_the_actions_of_a_child_are_in_its_table() -> None:
    stage = Stage()
    for name in ("one", "two"):
        stage.agent(name)
    obeys = stage.agent("obeys", "one")
    ignores = stage.agent("ignores", "one", on=ReactionConfig(move="ignore"))
    stage.up()
    one = stage.at_place(stage.place_of("one"))
    assert one is not None
    for name in ("obeys", "ignores"):
        one.handle(Move(name, stage.place_of("two"), "busy"))
    stage.wait(100)
    assert obeys.became is not None
    assert obeys.became.parent == "two"
    assert ignores.became is not None
    assert ignores.became.parent == "one"


@pytest.mark.spec("TREE-4")
def test_children_of_a_lost_parent_go_to_their_alternate_and_grandchildren_stay() -> None:
    stage = Stage(reactions=("alternate", "wait"))
    middle, spare = stage.agent("middle"), stage.agent("spare")
    child = stage.agent("child", "middle", alternates=(stage.place_of("spare"),))
    grandchild = stage.agent("grandchild", "child")
    reader = stage.subscriber("reader", "grandchild")
    stage.up()
    stage.publish(5)
    links = set(grandchild.ends)
    middle.crash()
    stage.publish(5)
    stage.wait(200)
    assert child.became is not None
    assert child.became.path == ("root", "spare", "child")
    assert set(grandchild.ends) == links
    assert stage.got(reader) == list(range(1, 11))
    assert spare.is_up
    middle.start()
    stage.judge()


@pytest.mark.spec("TREE-4")
def test_a_child_can_go_to_a_sibling_of_the_lost_one() -> None:
    stage = Stage(reactions=("sibling", "wait"))
    middle = stage.agent("middle")
    stage.agent("beside")
    child = stage.agent("child", "middle")
    stage.up()
    stage.wait(300)
    middle.crash()
    stage.wait(200)
    assert child.became is not None
    assert child.became.parent == "beside"


@pytest.mark.spec("TREE-4")
def test_agents_that_name_each_other_as_parents_form_no_cycle() -> None:
    stage = Stage(reactions=("alternate", "parent"))
    one = stage.agent("one", "root", alternates=(stage.place_of("two"),))
    two = stage.agent("two", "one", alternates=(stage.place_of("one"),))
    stage.up()
    stage.network.cut("one", "root")
    stage.wait(1_500)
    assert one.became is not None
    assert not one.became.is_rooted
    assert two.became is not None
    assert not two.became.is_rooted
    stage.network.heal()
    stage.wait(800)
    assert two.became.path == ("root", "one", "two") or two.became.is_rooted
    stage.judge()


@pytest.mark.spec("TREE-5")
@pytest.mark.parametrize("padding", [0, 6_000], ids=["from history", "from the journal"])
def test_a_child_that_returns_gets_the_missed_messages_first(padding: int) -> None:
    stage = Stage()
    stage.agent("one")
    stage.agent("two")
    reader = stage.subscriber("reader", "one", "two")
    stage.up()
    stage.publish(3, padding=padding)
    reader.stop()
    for _ in range(15):
        stage.publish(20, padding=padding)
    reader.start()
    stage.wait(300)
    stage.publish(3, padding=padding)
    stage.wait(3_000)
    assert stage.got(reader) == list(range(1, 307))
    stage.judge()


@pytest.mark.spec("TREE-5")
def test_a_subscription_can_begin_in_the_past() -> None:
    stage = Stage()
    stage.agent("leaf")
    stage.up()
    stage.publish(5)
    then_ns = stage.world.now_ns()
    stage.publish(5)
    beginnings = [OLDEST, Position("sequence", 7), Position("time", then_ns)]
    readers = [stage.subscriber(f"reader{at}", "leaf", begin=begin) for at, begin in enumerate(beginnings)]
    for reader in readers:
        reader.start()
    stage.wait(200)
    stage.publish(2)
    assert [stage.got(each)[0] for each in readers] == [1, 8, 6]
    assert all(stage.got(each)[-1] == 12 for each in readers)
    stage.judge()


@pytest.mark.spec("TREE-5")
def test_messages_that_are_not_kept_are_reported() -> None:
    stage = Stage()
    stage.agent("leaf")
    reader = stage.subscriber("reader", "leaf")
    stage.up()
    stage.publish(2)
    reader.stop()
    for _ in range(12):
        stage.publish(20, padding=6_000)
    stage.root.disk.remove_through(1, stage.note_removed(1, 50))
    reader.start()
    stage.wait(3_000)
    story = stage.stories.stories["reader", STREAM]
    assert story.gone == [(3, 50)]
    assert stage.got(reader) == [1, 2, *range(51, 243)]
    stage.judge()


@pytest.mark.spec("TREE-6")
def test_a_subscriber_that_loses_a_right_is_notified_and_others_are_not_affected() -> None:
    stage = Stage()
    leaf = stage.agent("leaf")
    loser, other = stage.subscriber("loser", "leaf"), stage.subscriber("other", "leaf")
    stage.up()
    stage.publish(4)
    event = Revoke("loser", ("s1.a.>",), "not paid")
    stage._revoked["loser"] = event
    leaf.handle(event)
    stage.publish(4)
    stage.publish(1, "b")
    assert stage.got(loser) == [1, 2, 3, 4, 9]
    assert stage.got(other) == list(range(1, 10))
    assert list(stage.stories.stories["loser", STREAM].revoked_at) == ["s1.a.>"]
    assert not stage.stories.stories["other", STREAM].revoked_at
    leaf.handle(Restore("loser"))


@pytest.mark.spec("TREE-7")
def test_a_move_and_the_way_back_neither_lose_nor_repeat_messages() -> None:
    stage = Stage()
    home, guest_house = stage.agent("home"), stage.agent("guests")
    child = stage.agent("child", "home")
    reader, direct = stage.subscriber("reader", "child"), stage.subscriber("direct", "home")
    stage.up()
    for name in ("child", "direct"):
        stage.publish(5)
        home.handle(Move(name, stage.place_of("guests"), "busy"))
        stage.publish(5)
    stage.wait(100)
    assert child.became is not None
    assert child.became.parent == "guests"
    assert session_of(stage, "direct").agent == "guests"
    for name in ("child", "direct"):
        guest_house.handle(SendBack(name, "room again"))
        stage.publish(5)
    stage.wait(100)
    assert child.became.parent == "home"
    assert session_of(stage, "direct").agent == "home"
    assert stage.got(reader) == stage.got(direct) == list(range(1, 31))
    stage.judge()


@pytest.mark.spec("TREE-7")
def test_a_busy_agent_redirects_children_and_takes_them_back() -> None:
    stage = Stage(balance=60)
    busy, idle = stage.agent("busy"), stage.agent("idle")
    reader = stage.subscriber("reader", "busy")
    stage.up()
    stage.wait(1_000)
    busy.handle(Busy(90))
    stage.publish(5)
    stage.wait(200)
    assert session_of(stage, "reader").agent == "idle"
    busy.handle(Busy(10))
    stage.wait(1_500)
    idle.handle(Busy(20))
    stage.wait(200)
    assert session_of(stage, "reader").agent == "busy"
    stage.judge()
    assert stage.got(reader) == [1, 2, 3, 4, 5]


@pytest.mark.spec("TREE-7")
def test_siblings_learn_of_a_large_change_in_load() -> None:
    stage = Stage()
    one, two = stage.agent("one"), stage.agent("two")
    stage.up()

    def told(percent: int) -> int:
        one.handle(Busy(percent))
        stage.wait(1_000)
        return next(each.percent for each in two.agent.downstream.siblings if each.name == "one")

    assert [told(percent) for percent in (5, 0, 9, 10, 5, 15, 1, 0)] == [0, 0, 0, 10, 10, 10, 10, 0]


@pytest.mark.spec("TREE-8")
def test_peers_supply_streams_that_the_parent_lacks_without_loops() -> None:
    stage = Stage(reactions=("wait",))
    one, two = stage.agent("one"), stage.agent("two", peers=(stage.place_of("one"),))
    readers = [stage.subscriber("r1", "one"), stage.subscriber("r2", "two")]
    stage.up()
    stage.wait(500)
    stage.publish(5)
    stage.network.cut("root", "one")
    stage.publish(5)
    assert [stage.got(each) for each in readers] == [list(range(1, 11))] * 2
    stage.network.heal()
    stage.wait(500)
    stage.publish(2)
    stage.judge()
    assert [stage.accepted(each) for each in (one, two)] == [12, 12]


@pytest.mark.spec("TREE-10")
def test_a_child_that_does_not_read_slows_no_other_and_catches_up() -> None:
    stage = Stage(queue_packets=16)
    leaf = stage.agent("leaf")
    stalled, brisk = stage.subscriber("stalled", "leaf"), stage.subscriber("brisk", "leaf")
    stage.up()
    session_of(stage, "stalled").end.is_reading = False
    for _ in range(10):
        stage.publish(30, padding=500)
    assert len(stage.got(brisk)) == 300
    assert len(stage.got(stalled)) < 100
    links = {child.party.name: child.link for child in leaf.agent.children}
    assert leaf.agent.fanout.link(links["stalled"]).waiting < 64_000
    end = session_of(stage, "stalled").end
    end.is_reading = True
    end.other.resume()
    stage.wait(300)
    assert stage.got(stalled) == stage.got(brisk)
    stage.judge()


@pytest.mark.spec("TREE-10")
def test_the_class_decides_the_treatment_of_a_slow_child() -> None:
    stage = Stage(queue_packets=300)
    leaf = stage.agent("leaf")
    newest, cut = (
        stage.subscriber("newest", "leaf", cls="conflating"),
        stage.subscriber("cut", "leaf", cls="disconnect"),
    )
    stage.up()
    for name in ("newest", "cut"):
        session_of(stage, name).end.is_reading = False
    for _ in range(9):
        stage.publish(100, padding=500)
    assert list(leaf.counters.by_cause("connections_closed")) == ["slow"]
    end = session_of(stage, "newest").end
    end.is_reading = True
    end.other.resume()
    stage.wait(500)
    assert stage.got(newest)[-1] == 900
    assert len(stage.got(newest)) < 900
    assert stage.stories.stories["newest", STREAM].conflated == 900 - len(stage.got(newest))
    assert leaf.counters["messages_conflated"] == 900 - len(stage.got(newest))
    assert leaf.counters["messages_lost"] == 0  # the class requires it
    assert stage.got(cut) == list(range(1, 901))
    stage.judge()


@pytest.mark.spec("TREE-11")
@pytest.mark.parametrize("replicate", ["synchronous", "asynchronous"])
def test_publishers_and_agents_move_to_the_standby(replicate: str) -> None:
    stage = Stage(standby=True, replicate=replicate, promotes_by_hand=True)
    agent = stage.agent("agent", alternates=(stage.place_of("standby"),))
    reader = stage.subscriber("reader", "agent")
    stage.up()
    stage.publish(20)
    old, standby = stage.root, stage.standby
    assert standby is not None
    old.crash()
    stage.is_taken_over = True
    stage.publish(5)
    standby.handle(Promote())
    stage.wait(500)
    stage.publish(5)
    assert agent.became is not None
    assert agent.became.path == ("standby", "agent")
    assert stage.got(reader) == list(range(1, 31))
    old.start()
    stage.wait(1_500)
    assert old.became is not None
    assert old.became.role == "fenced"
    stage.publish(2)
    stage.agents.remove(old)
    stage.judge()


@pytest.mark.spec("TREE-11")
@pytest.mark.parametrize("trouble", ["crash", "stall"])
def test_a_root_without_its_standby_reports_it(trouble: str) -> None:
    """Synchronous means that a message is stored twice: otherwise it is acknowledged as degraded."""
    stage = Stage(standby=True, replicate="synchronous").up()
    root, standby, publisher = stage.root, stage.standby, stage.publishers[0]
    assert standby is not None
    told: list[bool] = []
    outbox = root.agent.outbox
    send = outbox.send

    def listen(link: int, *messages: Any) -> None:
        told.extend(each.is_degraded for each in messages if isinstance(each, Published))
        send(link, *messages)

    outbox.send = listen  # type: ignore[method-assign]
    stage.publish(3)
    assert not root.agent.sequencer.is_degraded
    assert root.counters["messages_degraded"] == 0
    assert not any(told)
    told.clear()
    if trouble == "crash":
        standby.crash()
    else:
        standby.stall(2_000 * NS_PER_MS)
    stage.publish(3)
    stage.wait(1_500)
    assert root.agent.sequencer.is_degraded
    assert root.counters["messages_degraded"] == 3
    assert publisher.acknowledged == 6, "publishers do not wait forever"
    assert all(told)
    told.clear()
    if trouble == "crash":
        standby.start()
    stage.wait(3_000)
    assert not root.agent.sequencer.is_degraded, "the standby is back, and has everything"
    stage.publish(2)
    assert root.counters["messages_degraded"] == 3
    assert publisher.acknowledged == 8
    assert not any(told)
    stage.judge()


@pytest.mark.spec("TREE-11")
@pytest.mark.parametrize("is_late", [False, True])
def test_publisher_ids_belong_to_their_clients_after_a_takeover(is_late: bool) -> None:
    """A new client of the new root does not get the publisher id of another client."""
    stage = Stage(standby=True, replicate="asynchronous", promotes_by_hand=True).up()
    standby = stage.standby
    assert standby is not None
    if is_late:  # it learns of the publishers before it
        standby.crash()
        stage.publish(3)
        standby.start()
        stage.wait(1_000)
    stage.publish(3)
    (party,) = [each.party for each in stage.root.agent.children.of_role("publisher")]
    stage.root.crash()
    stage.is_taken_over = True
    standby.handle(Promote())
    marks = standby.agent.sequencer.replica.publishers
    assert marks.bearers == {party.publisher_id: party.subject}
    assert marks.is_of_another(party.publisher_id, "somebody else")
    assert not marks.is_of_another(party.publisher_id, party.subject)


@pytest.mark.spec("TREE-11")
def test_a_standby_without_a_root_takes_over_by_its_table() -> None:
    stage = Stage(standby=True, replicate="synchronous")
    stage.agent("agent", alternates=(stage.place_of("standby"),))
    stage.up()
    stage.publish(3)
    stage.root.crash()
    stage.is_taken_over = True
    stage.wait(1_200)
    stage.publish(3)
    assert stage.standby is not None
    assert stage.standby.became is not None
    assert stage.standby.became.role == "root"
    assert len(stage.truth(STREAM)) == 6


def test_an_agent_without_rights_above_this_one_or_of_another_tree_is_refused() -> None:
    stage = Stage()
    stage.agent("strict", agents=("friend",))
    stranger = stage.agent("stranger", "strict")
    foreign = stage.agent("foreign", tree="elsewhere")
    stage.up()
    assert stranger.became is None
    assert foreign.became is None
    strict = stage.at_place(stage.place_of("strict"))
    assert strict is not None
    assert "not-allowed" in strict.counters.by_cause("consumers_refused")
    assert "tree" in stage.root.counters.by_cause("consumers_refused")


@pytest.mark.spec("TREE-4", "TREE-7")
def test_an_agent_whose_home_is_below_it_returns_to_its_lost_parent() -> None:
    stage = Stage(reactions=("alternate",))
    patient = BackoffConfig(max_ms=5_000)  # the wait for its parent is longer than the outage
    home, other = stage.agent("home", backoff=patient), stage.agent("other")
    child = stage.agent("child", "home")
    stage.up()
    home.handle(Move("child", stage.place_of("other"), "busy"))
    stage.wait(100)
    stage.root.handle(Move("home", stage.place_of("child"), "busy"))
    stage.wait(100)
    assert home.became is not None
    assert home.became.path == ("root", "other", "child", "home")
    other.crash()
    stage.wait(500)
    other.start()
    stage.wait(1_000)
    assert child.became is not None
    assert child.became.is_rooted
    assert child.became.parent == "other"
    assert home.became.is_rooted
    stage.judge()


@pytest.mark.spec("TREE-4")
@pytest.mark.parametrize("above", ["first", "between"])
def test_agents_below_one_another_do_not_wait_for_each_other(above: str) -> None:
    """`first` lost its parent permanently, and its home is below `second`, which waits for `first`, or for an agent
    between the two."""
    stage = Stage(reactions=("wait",), unrooted=("wait",))
    other, second, home = stage.agent("other"), stage.agent("second"), stage.agent("home", "second")
    first = stage.agent("first", "home")
    stage.agent("between", "first")
    stage.up()
    home.handle(Move("first", stage.place_of("other"), "busy"))
    stage.wait(100)
    stage.root.handle(Move("second", stage.place_of(above), "busy"))
    stage.wait(100)
    assert second.became is not None
    assert second.became.parent == above
    assert "first" in second.became.path
    other.crash()
    stage.wait(2_000)
    assert second.became.parent == "root"
    assert first.became is not None
    assert first.became.path == ("root", "second", "home", "first")
    other.start()
    stage.judge()


@pytest.mark.spec("TREE-2", "TREE-10")
def test_a_slow_agent_misses_nothing_while_it_requests_the_past() -> None:
    """The agent was moved out of live, and does not know that yet when it requests the past on behalf of a child."""
    stage = Stage(queue_packets=16)
    middle, leaf = stage.agent("middle"), stage.agent("leaf", "middle")
    stage.subscriber("first", "middle")
    stage.up()
    stage.publish(50, topic="b")
    live = stage.subscriber("live", "leaf", topic="b")
    live.start()
    stage.wait(100)
    (link,) = [each for each in stage.network.alive() if [end.party for end in each.ends] == [leaf, middle]]
    link.ends[0].is_reading = False
    stage.publish(100, topic="b", padding=1_000)
    late = stage.subscriber("late", "leaf", topic="a", begin=Position("sequence", 40))
    late.start()
    stage.wait(30)
    stage.publish(3, topic="a")
    link.ends[0].is_reading = True
    link.resume()
    stage.wait(300)
    assert stage.got(late) == [151, 152, 153]
    assert stage.got(live) == list(range(51, 151))
    stage.judge()


@pytest.mark.spec("TREE-4", "TREE-6")
def test_a_subscriber_that_moves_to_an_agent_behind_it_learns_which_messages_are_no_longer_in_the_stream() -> None:
    """The root loses the end of its journal: the subscriber has those messages, its next agent does not."""
    stage = Stage(persist="written")
    ahead = stage.agent("ahead")
    stage.agent("between")
    stage.agent("behind", "between")
    reader = stage.subscriber("reader", "ahead")
    stage.up()
    stage.publish(10)
    kept = stage.root.disk.stores[1].durable
    assert kept < 10
    assert stage.got(reader) == list(range(1, 11))
    reader.places = [stage.place_of("behind")]
    stage.network.cut("reader", "behind")
    stage.network.cut("root", "between")
    stage.root.crash()
    ahead.crash()
    stage.root.start()
    stage.wait(500)
    stage.publish(20)  # of a term that `behind` does not know
    stage.root.crash()
    stage.root.start()
    stage.network.mend("root", "between")
    stage.wait(1_000)
    stage.network.mend("reader", "behind")
    stage.wait(500)
    assert stage.stories.diverged_count == 1
    ahead.start()
    stage.judge()
