"""Links that end with a reason, and links that are made while the other side does not read."""

from pathlib import Path

import pytest

from integration.tree_kit import AgentHere, Reader, agent_config, agent_here, publish, publisher, root_config
from penstock.tree.core.control import Refused
from waiting import wait_until

COUNT = 3_000


def refuse(agent: AgentHere, name: str, refusal: Refused) -> None:
    """End the link as the driver does when a token has expired or was revoked."""
    (link,) = [each.link for each in agent.agent._core.children if each.party.name == name]
    agent.loop.loop.call_soon_threadsafe(agent.agent._links.refuse, link, refusal)


@pytest.mark.spec("TREE-6")
@pytest.mark.parametrize("is_reading", [True, False])
def test_a_carried_link_is_told_why_it_ends(tmp_path: Path, is_reading: bool) -> None:
    """The reason arrives even if a message was sent only in part."""
    with (
        agent_here(root_config(tmp_path / "root")) as root,
        Reader(root.place, name="reader", is_reading=is_reading) as reader,
        Reader(root.place, name="other") as other,
        publisher(root.place) as source,
    ):
        reader.wait_live(), other.wait_live()
        publish(source, range(1, COUNT + 1))
        refuse(root, "reader", Refused("revoked", "it has not paid"))
        publish(source, range(COUNT + 1, 2 * COUNT + 1))
        if not is_reading:
            reader.read()
        wait_until(lambda: reader.error, "the reason")
        assert "it has not paid" in str(reader.error)
        assert reader.numbers == list(range(1, len(reader.numbers) + 1))
        assert other.wait_for(2 * COUNT) == list(range(1, 2 * COUNT + 1))
        wait_until(lambda: "reader" not in root.children(), "the end of the link")


@pytest.mark.spec("TREE-5", "TREE-10")
def test_a_link_that_is_made_while_nothing_is_read_brings_nothing_before(tmp_path: Path) -> None:
    with (
        agent_here(root_config(tmp_path / "root")) as root,
        agent_here(agent_config("other", root.place)) as other,
        Reader(other.wait_rooted().place) as beside,
        publisher(root.place) as source,
    ):
        beside.wait_live()
        first = AgentHere(agent_config("first", root.place)).wait_rooted()
        with Reader(
            first.place,
            name="behind",
            alternates=(other.place,),
            silence_ms=600,
            inbox_messages_max=100,
            is_reading=False,
        ) as reader:
            reader.wait_live()
            publish(source, range(1, COUNT + 1))
            wait_until(lambda: reader.stream._is_paused, "the subscription to be behind")
            first.close()
            wait_until(lambda: "behind" in other.children(), "the subscription to have another agent")
            waiting = len(reader.stream._inbox)
            publish(source, range(COUNT + 1, 2 * COUNT + 1))
            beside.wait_for(2 * COUNT)
            assert len(reader.stream._inbox) == waiting, "the link accepts no more data"
            reader.read()
            assert reader.wait_for(2 * COUNT) == list(range(1, 2 * COUNT + 1))
