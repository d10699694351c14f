"""A publisher is told at once what is kept, and not for each message when it publishes many."""

from penstock.tree.core.root.acknowledgements import INTERVAL_NS, WAIT_NS
from unit.tree_stage import Stage


def test_one_message_is_acknowledged_at_once_and_many_together() -> None:
    stage = Stage()
    stage.up()
    publisher = stage.publishers[0]
    told: list[int] = []
    rooting = stage.root.agent.rooting
    board = stage.root.agent.board
    say = board.say

    def listen(link: int, *messages: object) -> None:
        told.extend(each.through for each in messages if hasattr(each, "through"))
        say(link, *messages)  # type: ignore[arg-type]

    board.say = listen  # type: ignore[method-assign]
    link, child = next(each for each in board.children.items() if each[1].party.role == "publisher")
    publisher_id = child.party.publisher_id
    acknowledging = rooting._acknowledging
    board.now_ns += INTERVAL_NS
    begun_ns = board.now_ns
    for number in range(1, 6):
        acknowledging.kept(publisher_id, number)
    assert told == [1]
    assert acknowledging.deadline_ns() == begun_ns + WAIT_NS
    board.now_ns = begun_ns + WAIT_NS
    acknowledging.tick()
    assert told == [1, 5]
    assert acknowledging.deadline_ns() is None
    acknowledging.kept(publisher_id, 6)
    acknowledging.gone(link)
    assert acknowledging.deadline_ns() is None
    assert publisher.acknowledged == 0
