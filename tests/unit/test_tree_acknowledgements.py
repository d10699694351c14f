"""A publisher gets an acknowledgement at once, and one for a burst rather than one per message."""

from penstock.tree.core.root.acknowledgements import INTERVAL_NS, WAIT_NS
from unit.tree_stage import Stage


def test_one_message_is_acknowledged_at_once_and_many_together() -> None:
    stage = Stage()
    stage.up()
    publisher = stage.publishers[0]
    told: list[int] = []
    agent = stage.root.agent
    send = agent.outbox.send

    def listen(link: int, *messages: object) -> None:
        told.extend(each.through for each in messages if hasattr(each, "through"))
        send(link, *messages)  # type: ignore[arg-type]

    agent.outbox.send = listen  # type: ignore[method-assign]
    (child,) = agent.children.of_role("publisher")
    publisher_id = child.party.publisher_id
    acknowledgements = agent.sequencer._acknowledgements
    agent.environment.now_ns += INTERVAL_NS
    begun_ns = agent.environment.now_ns
    for number in range(1, 6):
        acknowledgements.kept(publisher_id, number)
    assert told == [1]
    assert acknowledgements.deadline_ns() == begun_ns + WAIT_NS
    agent.environment.now_ns = begun_ns + WAIT_NS
    acknowledgements.tick()
    assert told == [1, 5]
    assert acknowledgements.deadline_ns() is None
    acknowledgements.kept(publisher_id, 6)
    acknowledgements.remove(child.link)
    assert acknowledgements.deadline_ns() is None
    assert publisher.acknowledged == 0
