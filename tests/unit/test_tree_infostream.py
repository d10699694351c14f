"""Messages between agents: every kind is decoded unchanged, and all else is refused."""

import pytest

from penstock.base.errors import PacketError
from penstock.model import shipped
from penstock.tree.core.infostream import (
    KINDS,
    Alternates,
    Conflated,
    Diverged,
    Gone,
    Info,
    Infostream,
    Lagging,
    Load,
    MoveTo,
    Neighbour,
    ParentFound,
    ParentLost,
    Path,
    ReturnTo,
    Revoked,
    Root,
    Siblings,
    Stopping,
    StreamDefined,
    Through,
    decode_info,
    id_of,
    portions,
)
from penstock.wire import Packer

SAID: list[Info] = [
    Path("a", ("root", "a"), True, 3),
    ParentLost("a", "root", 3),
    ParentFound("a", ("root", "b", "a"), "b", True, 4),
    Through(1, 70, 3),
    Lagging(1, 5, 2, 3),
    Conflated(1, 3, 9),
    Gone(1, 2, 3, 4),
    Diverged(1, 2, 3, 4),
    Siblings((Neighbour("x", "10.0.0.1:7420", 30), Neighbour("y", "10.0.0.2:7420"))),
    Alternates(()),
    MoveTo("10.0.0.1:7420", "busy"),
    ReturnTo("a", "room again"),
    Stopping("a", "maintenance"),
    Load("a", 40),
    Revoked(("md.>", "news.*"), "not paid"),
    StreamDefined(1, "md", ("md.>",), 65_536, 4),
    Root(65_536, "10.0.0.1:7420", ""),
]


@pytest.mark.spec("TREE-3")
def test_every_kind_is_decoded_unchanged_and_numbered() -> None:
    stream = Infostream("leaf")
    heard = [decode_info(stream.encode(each)) for each in SAID]
    assert [each.info for each in heard] == SAID
    assert [each.sequence for each in heard] == list(range(1, len(SAID) + 1))
    assert {each.publisher_id for each in heard} == {id_of("leaf")}
    assert {type(each) for each in SAID} == set(KINDS)


def test_damaged_or_unknown_messages_are_ignored() -> None:
    packet = Infostream("leaf").encode(Siblings((Neighbour("x", "h:1", 3),)))
    for size in range(len(packet)):
        with pytest.raises(PacketError):
            decode_info(packet[:size])
    for group, topic, model in (
        (0, "infostream.nonsense", 41),
        (0, "infostream.through", 40),
        (5, "infostream.load", 43),
    ):
        packer = Packer(7, group, 1)
        packer.add(topic, bytes(2_000), model_id=model, model_version=1)
        packet = packer.flush() or b""
        with pytest.raises(PacketError):
            decode_info(packet)


def test_an_invalid_agent_description_is_ignored() -> None:
    model = shipped("tree_agents")
    packer = Packer(7, 0, 1, packet_size_max=4_096)
    packer.add("infostream.siblings", bytes(model.new(agents="x,h:1")), model_id=model.id, model_version=1)
    with pytest.raises(PacketError, match="is no agent"):
        decode_info(packer.flush() or b"")


def test_a_long_list_is_divided_into_several_messages() -> None:
    topics = tuple(f"md.{number:04}.>" for number in range(300))
    parts = portions(topics)
    assert tuple(topic for part in parts for topic in part) == topics
    for part in parts:
        assert decode_info(Infostream("a").encode(Revoked(part))).info == Revoked(part)
