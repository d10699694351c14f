"""Limits of a filter module: applications, interests, conditions and groups; and sharing of copies."""

import pytest

from penstock.base.counters import Cause
from penstock.base.errors import (
    FilterExpressionError,
    LimitError,
    LocalProtocolError,
    ModelError,
    PenstockError,
    TopicError,
)
from penstock.filter.core.events import Attach, ChangeMap, Detach, ForgetModels, Interests, LearnModel, Want
from penstock.model import MessageModel, shipped
from penstock.topics import GroupMap
from penstock.wire import (
    Extension,
    MessageFlag,
    Packer,
    decode_interest_mask,
    encode_destination,
    encode_extensions,
    encode_tags,
)
from unit.filter_module_kit import GROUP, MS, OTHER_GROUP, PUBLISHER_ID, Harness, harness, packets, stream


def refused(module: Harness, event: object, error: type[PenstockError]) -> None:
    """A refusal that changes neither the table nor the deliveries to others."""
    interests, joined, consumers = len(module.module.table), set(module.joined), dict(module.consumers)
    with pytest.raises(error):
        module.handle(event)
    assert (len(module.module.table), module.joined, module.consumers) == (interests, joined, consumers)


def test_applications_are_limited() -> None:
    module = harness(applications_max=2)
    module.attach(1, "a")
    module.attach(2, "a")
    refused(module, Attach(3, ("10.0.0.2", 9)), LimitError)
    module.detach(1)
    module.attach(3, "a")
    refused(module, Attach(3, ("10.0.0.2", 9)), LocalProtocolError)
    refused(module, Attach(4, ("10.0.0.2", 5_003)), LocalProtocolError)
    refused(module, Want(9, add=[Interests(["a"])]), LocalProtocolError)


def test_a_flood_of_interests_is_refused_without_effect_on_other_applications() -> None:
    module = harness(interests_max=100, interests_per_application_max=60)
    module.attach(1, "a")
    module.attach(2)
    module.attach(3)
    module.take(stream("a"))
    flood = [f"t.{number}" for number in range(61)]
    refused(module, Want(2, add=[Interests(flood)]), LimitError)
    module.want(2, *flood[:60])
    refused(module, Want(2, add=[Interests(["one.more"])]), LimitError)
    module.handle(Want(2, add=[Interests(["one.more"])], remove=[Interests(flood[:1])]))
    refused(module, Want(3, add=[Interests(flood[:40])]), LimitError)
    module.want(3, *flood[:39])
    module.take(stream("xa", first=2))
    assert module.got(1) == [(1, 0, "a"), (3, 1, "a")]
    module.detach(2)
    assert len(module.module.table) == 40


def test_conditions_and_groups_are_limited() -> None:
    module = harness(conditions_per_application_max=2, conditions_max=3, groups_max=2)
    for number in (1, 2, 3):
        module.attach(number)
    module.want(1, "a")
    module.want(1, "a", content=b"1")
    refused(module, Want(1, add=[Interests(["a"], content=b"2")]), LimitError)
    module.want(2, "a")
    refused(module, Want(3, add=[Interests(["a"])]), LimitError)
    refused(module, Want(2, add=[Interests(["b"], groups=[GROUP + 7])]), LimitError)
    module.unwant(1, "a", content=b"1")
    module.want(3, "a")


@pytest.mark.parametrize(
    ("interests", "error"),
    [
        (Interests(["good", "bad..one"]), TopicError),
        (Interests(["good", "a*b"]), TopicError),
        (Interests(["good", "/(/"]), TopicError),
        (Interests(["good", "also.good", "/(/"]), TopicError),
        (Interests(["good"], where="no such syntax ("), FilterExpressionError),
        (Interests(["good"], where="no_such_field > 1"), FilterExpressionError),
        (Interests(["good"], where="bid_price > 1", content=b"x"), LocalProtocolError),
    ],
)
def test_a_malformed_request_is_refused_as_a_whole(interests: Interests, error: type[PenstockError]) -> None:
    module = harness(models=[shipped("quote")])
    module.attach(1, "good", "a")
    first = Interests(["also.good.*", "x"], content=b"1")
    refused(module, Want(1, add=[first, interests], remove=[Interests(["a"])]), error)
    module.take(stream("ax"))
    assert module.got(1) == [(1, 0, "a")]
    module.handle(Want(1, add=[first]))


@pytest.mark.spec("FILT-6")
def test_equal_interests_count_once_whatever_their_text() -> None:
    module = harness()
    module.attach(1, "n.[..20]", "n.[0..20]", "n.[0..20]")
    assert len(module.module.table) == 1
    module.unwant(1, "n.[0..20]", "not.there")
    assert len(module.module.table) == 0
    assert module.joined == set()


@pytest.mark.spec("FILT-6")
def test_negative_interests_and_conditions_are_combined() -> None:
    module = harness()
    module.attach(1, "*", "!b")
    module.want(1, "b", content=b"2")
    module.take(stream("abcb"))
    assert module.got(1) == [(1, 0, "a"), (2, 0, "b"), (3, 0, "c")]


@pytest.mark.spec("FILT-6")
def test_conditions_on_fields_apply_to_every_model_that_has_the_fields() -> None:
    module = harness()
    module.attach(1)
    refused(module, Want(1, add=[Interests(["*"], where="bid_price > 100")]), FilterExpressionError)
    quote = shipped("quote")
    module.handle(LearnModel(quote))
    module.want(1, "*", where="bid_price > 100")
    packer = Packer(PUBLISHER_ID, GROUP, 1)
    for price in (99, 101, 150):
        packer.add("q", quote.new(bid_price=price), model_id=quote.id, model_version=quote.version)
    packer.add("other", b"101", model_id=quote.id + 1)
    module.take([packer.flush()])  # type: ignore[list-item]
    (packet,) = module.sent[module.attached[1].consumer]
    assert [quote.view(message.payload).bid_price for message in packet] == [101, 150]


@pytest.mark.spec("FILT-6")
def test_an_unused_model_is_forgotten_when_no_condition_needs_it() -> None:
    quote, trade = shipped("quote"), shipped("trade")
    module = harness(models=[trade])
    module.attach(1)
    module.attach(2)
    module.handle(LearnModel(quote))
    module.want(1, "*", where="bid_price > 100")
    module.handle(ForgetModels((quote.id, trade.id, 4_711)))
    module.want(2, "a", where="bid_price > 200")  # a condition still needs it
    module.handle(Detach(1))
    module.want(2, "b", where="bid_price > 300")
    module.handle(Detach(2))
    module.attach(3)
    refused(module, Want(3, add=[Interests(["*"], where="bid_price > 100")]), FilterExpressionError)
    module.want(3, "*", where="price > 100")  # a model of the configuration
    module.handle(LearnModel(quote))
    module.want(3, "*", where="bid_price > 100")


@pytest.mark.spec("FILT-6", "FILT-16")
def test_tags_and_direct_messages_are_delivered() -> None:
    module = harness()
    module.attach(1, "#halted")
    module.attach(2, "none")
    packer = Packer(PUBLISHER_ID, GROUP, 1)
    packer.add("a", b"1", extensions=encode_extensions({Extension.TAGS: encode_tags(["halted"])}))
    packer.add("a", b"2")
    direct = encode_extensions({Extension.DESTINATION: encode_destination(2)})
    packer.add("", b"3", flags=int(MessageFlag.DIRECT), extensions=direct)
    module.take([packer.flush()])  # type: ignore[list-item]
    contents = {
        number: [
            bytes(message.payload) for packet in module.sent[module.attached[number].consumer] for message in packet
        ]
        for number in (1, 2)
    }
    assert contents == {1: [b"1"], 2: [b"3"]}


@pytest.mark.spec("FILT-8", "ADM-7")
def test_only_equally_entitled_applications_of_a_host_share_a_copy() -> None:
    module = harness()
    module.attach(1, "a", delivery="shared", host="h", entitlement="gold")
    module.attach(2, "b", delivery="shared", host="h", entitlement="gold")
    module.attach(3, "a", delivery="shared", host="h", entitlement="silver")
    module.attach(4, "a", delivery="shared", host="other", entitlement="gold")
    module.attach(5, "a")
    shared = {number: (each.consumer, each.bit, each.address) for number, each in module.attached.items()}
    assert shared[1][0] == shared[2][0]
    assert len({each[0] for each in shared.values()}) == 4
    assert len({each[2] for each in shared.values()}) == 4
    assert (shared[1][1], shared[2][1]) == (0, 1)
    assert module.attached[1].delivery == "mask"
    module.take(stream("abxab"))
    assert module.got(1) == [(1, 0, "a"), (2, 0, "b"), (4, 1, "a"), (5, 0, "b")]
    assert module.got(3) == [(1, 0, "a"), (4, 2, "a")]
    for number in (1, 2, 3, 4, 5):
        module.detach(number)
    assert (module.consumers, module.joined) == ({}, set())


@pytest.mark.spec("FILT-8")
@pytest.mark.parametrize("mode", ["mask", "residual"])
def test_shared_delivery_carries_the_masks_or_leaves_matching_to_the_receiver(mode: str) -> None:
    module = harness(shared=mode)
    module.attach(1, "a", "c", delivery="shared", host="h")
    module.attach(2, "b", "c", delivery="shared", host="h")
    module.take(packets([("a", b""), ("b", b""), ("c", b""), ("d", b"")]))
    (packet,) = module.sent[module.attached[1].consumer]
    assert [message.topic for message in packet] == ["a", "b", "c"]
    masks = [message.extensions.get(Extension.INTEREST_MASK) for message in packet]
    if mode == "mask":
        assert [decode_interest_mask(mask) for mask in masks if mask is not None] == [0b01, 0b10, 0b11]
    else:
        assert masks == [None, None, None]
    repair, *_ = module.nack(2, (1, 1))
    assert bytes(repair.data)[48:] == bytes(packet.data)[48:]


@pytest.mark.spec("FILT-12")
def test_only_needed_groups_are_joined() -> None:
    module = harness()
    module.attach(1, "a", groups=[GROUP])
    assert module.joined == {GROUP}
    module.attach(2, "a", groups=[OTHER_GROUP])
    module.attach(3, "a")
    assert module.joined == {GROUP, OTHER_GROUP}
    module.take(stream("aa"))
    module.take(stream("a", group=OTHER_GROUP))
    assert [len(module.got(number)) for number in (1, 2, 3)] == [2, 1, 3]
    module.detach(3)
    module.unwant(1, "a")
    assert module.joined == {OTHER_GROUP}
    module.take(stream("a", first=3))
    assert module.got(1) == []
    assert module.module.counters.by_cause("packets_dropped") == {Cause.UNEXPECTED: 1}
    module.want(1, "a", groups=[GROUP])
    module.take(stream("aa", first=9))  # no application listened in between: it starts again, with nothing missing
    assert module.got(1) == [(9, 0, "a"), (10, 0, "a")]
    assert [each.next_sequence for each in module.positions(1)] == [1, 9]


MAP = """
version = 1
default = "239.1.1.1"
[[rules]]
topics = ["moved.>"]
group = "{}"
"""


@pytest.mark.spec("FILT-12")
def test_a_map_is_changed_at_run_time_without_loss() -> None:
    module = harness(group_map=GroupMap.parse(MAP.format("239.1.1.1")), map_transition_ms=1_000)
    module.attach(1, "moved.x", "stays")
    module.attach(2, "moved.*")
    assert module.joined == {GROUP}
    module.handle(ChangeMap(GroupMap.parse(MAP.format("239.1.1.2"))))
    assert module.joined == {GROUP, OTHER_GROUP}
    module.take(packets([("moved.x", b"")]))
    module.take(packets([("moved.x", b"")], group=OTHER_GROUP))
    assert len(module.got(1)) == len(module.got(2)) == 2
    module.tick(999 * MS)
    assert module.joined == {GROUP, OTHER_GROUP}
    module.tick(1 * MS)
    assert module.joined == {GROUP, OTHER_GROUP}  # the first application still has an interest there
    module.unwant(1, "stays")
    assert module.joined == {OTHER_GROUP}
    module.unwant(1, "moved.x")
    module.unwant(2, "moved.*")
    assert module.joined == set()
    too_many = GroupMap.parse('version = 1\n[hash]\nfirst = "239.1.1.1"\ncount = 4')
    refused(harness(groups_max=3), ChangeMap(too_many), LimitError)


def test_streams_are_limited() -> None:
    module = harness(receiver={"streams_max": 2})
    module.attach(1, "a")
    for publisher_id in (1, 2):
        module.take(stream("a", publisher_id=publisher_id))
    module.now_ns += 5_000_000_000
    for publisher_id in (1, 2):
        module.take(stream("a", publisher_id=publisher_id, first=2))  # they have proven themselves
    module.take(stream("a", publisher_id=3))
    assert len(module.got(1)) == 4
    assert module.module.counters.by_cause("packets_dropped") == {Cause.STREAM_LIMIT: 1}


def test_a_readded_application_with_other_groups_is_served_there() -> None:
    module = harness()
    module.attach(1, "a", "b", groups=[GROUP])
    module.want(1, "a", groups=[OTHER_GROUP])
    assert module.joined == {GROUP, OTHER_GROUP}
    module.want(1, "b", groups=[OTHER_GROUP])
    assert module.joined == {OTHER_GROUP}
    assert len(module.module.table) == 2
    module.handle(Want(1, add=[Interests(["a"], groups=[GROUP])], remove=[Interests(["a", "b"])]))
    assert module.joined == {GROUP}
    assert len(module.module.table) == 1


def test_addresses_of_shared_delivery_end_with_the_multicast_range() -> None:
    module = harness(shared_group="239.255.255.255")
    module.attach(1, "a", delivery="shared", host="one")
    with pytest.raises(LimitError):
        module.attach(2, "a", delivery="shared", host="two")
    for application in range(3, 18):  # no consumer was lost
        module.attach(application, "a")


def test_groups_that_were_named_once_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.filter.core.interests.TOPIC_GROUPS_REMEMBERED_MAX", 8)
    module = harness()
    module.attach(1)
    for number in range(100):
        module.want(1, "a", groups=[GROUP + number])
    assert len(module.module._interests._remembered) <= 8
    assert module.joined == {GROUP + 99}


def test_prepared_interests_are_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module = harness(models=[shipped("trade")])
    module.attach(1)
    want = Want(1, add=[Interests(["a.*"], where="price > 1")])
    module.module.prepare(want)
    read: list[str] = []
    monkeypatch.setattr("penstock.filter.core.interests._predicates", lambda where, models: read.append(where) or {})
    module.handle(want)
    assert read == []
    module.handle(LearnModel(shipped("quote")))  # the condition is parsed again with a new model
    assert read == ["price > 1"]
    monkeypatch.undo()
    with pytest.raises(TopicError):
        module.module.prepare(Want(1, add=[Interests(["a.>.b"])]))
    with pytest.raises(FilterExpressionError):
        harness(models=[shipped("quote")]).module.prepare(Want(1, add=[Interests(["a"], where="price >")]))
    with pytest.raises(LocalProtocolError):
        module.module.prepare(Want(1, add=[Interests(["a"], where="price > 1", content=b"1")]))


def model_of(version: int, *fields: str, name: str = "m") -> MessageModel:
    """Its fields exist since version 1, 2 and so on."""
    parts = [
        f'[[field]]\nname = "{field}"\ntype = "u32"\nsince = {since}\n' for since, field in enumerate(fields, start=1)
    ]
    return MessageModel.parse(f'name = "{name}"\nid = 60000\nversion = {version}\n' + "".join(parts), where="here")


@pytest.mark.spec("FILT-6")
def test_no_application_changes_a_model_that_others_use() -> None:
    known = model_of(2, "a", "b")
    module = harness(models=[known])
    module.attach(1)
    module.want(1, "*", where="b > 100")
    for other in (model_of(2, "b", "a"), model_of(1, "b"), model_of(3, "b", "a", "c"), model_of(2, "a", "b", name="n")):
        refused(module, LearnModel(other), ModelError)
    module.handle(LearnModel(model_of(1, "a")))  # older, and no change
    module.handle(LearnModel(known))
    newest = model_of(3, "a", "b", "c")
    module.handle(LearnModel(newest))
    packer = Packer(PUBLISHER_ID, GROUP, 1)
    for version, b in ((2, 101), (2, 99), (3, 102), (1, 103), (4, 104)):
        packer.add("x", newest.new(a=1, b=b, c=1), model_id=known.id, model_version=version)
    module.take([packer.flush()])  # type: ignore[list-item]
    (packet,) = module.sent[module.attached[1].consumer]
    # a version newer than all known ones has their fields
    assert [newest.view(message.payload).b for message in packet] == [101, 102, 104]
