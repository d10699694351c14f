"""Model documents: compilation, refusals, and compatibility of versions."""

import pickle
from pathlib import Path

import pytest

from penstock.base.errors import ConfigurationError, ModelError, UnknownKeyError
from penstock.model import MessageModel, shipped, shipped_names
from penstock.model.library import DIRECTORY


def parse(fields: str, head: str = "version = 1") -> MessageModel:
    return MessageModel.parse(f'id = 9\nname = "sample"\n{head}\n{fields}', "sample.toml")


def field(name: str, kind: str, more: str = "") -> str:
    return f'[[field]]\nname = "{name}"\ntype = "{kind}"\n{more}\n'


def test_fields_keep_their_order_and_have_natural_alignment() -> None:
    model = parse(
        field("a", "u8") + field("b", "i64") + field("c", "text", "size = 3") + field("d", "i16") + field("e", "f32")
    )
    assert [(item.name, item.offset, item.size) for item in model.fields] == [
        ("a", 0, 1),
        ("b", 8, 8),
        ("c", 16, 3),
        ("d", 20, 2),
        ("e", 24, 4),
    ]
    assert model.record_size == 32
    assert [(part.name, part.offset, part.size) for part in model.parts] == [("record", 0, 32)]


def test_parts_are_contiguous_and_reserve_space() -> None:
    model = parse(
        field("c", "u8", 'part = "right"') + field("a", "u8", 'part = "left"') + field("b", "i32", 'part = "left"'),
        head='version = 1\nparts = [{name = "left", size = 24}, {name = "right"}]',
    )
    assert [(item.name, item.offset) for item in model.fields] == [("a", 0), ("b", 4), ("c", 24)]
    assert [(part.name, part.offset, part.size) for part in model.parts] == [("left", 0, 24), ("right", 24, 8)]


def test_a_repeated_field_becomes_flat_fields() -> None:
    model = parse(field("level_{n}", "i64", "repeat = 3"))
    assert [item.name for item in model.fields] == ["level_1", "level_2", "level_3"]


@pytest.mark.parametrize(("bit", "size"), [(0, 1), (7, 1), (8, 2), (15, 2), (16, 4), (31, 4)])
def test_flags_are_as_wide_as_their_highest_bit_needs(bit: int, size: int) -> None:
    model = parse(field("state", "flags", f"bits = {{ x = {bit} }}"))
    assert model.fields[0].size == size


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (field("a", "u8") * 2, "duplicate field 'a'"),
        (field("A", "u8"), "'A' is not a name"),
        (field("class", "u8"), "'class' is a Python keyword"),
        (field("topic", "u8"), "'topic' is reserved"),
        (field("to_json", "u8"), "'to_json' is reserved"),
        (field("model", "u8"), "'model' is reserved"),
        (field("_hidden", "u8"), "'_hidden' is not a name"),
        (field("a", "price"), "type 'price' needs 'decimals'"),
        (field("a", "u8", "decimals = 2"), "type 'u8' takes no 'decimals'"),
        (field("a", "text"), "type 'text' needs 'size'"),
        (field("a", "enum", "values = {}"), "'values' is empty"),
        (field("a", "enum", "values = { x = 1, y = 1 }"), "duplicate number"),
        (field("a", "enum", "optional = true\nvalues = { x = 0 }"), "0 means missing"),
        (field("a", "flags", "optional = true\nbits = { x = 0 }"), "flags cannot be optional"),
        (field("a", "text", 'size = 4\nconflate = "sum"'), "text cannot be conflated by sum"),
        (field("a", "u8", "since = 2"), "since 2 is later than the model's version 1"),
        (field("a", "u8", "repeat = 2"), "{n}"),
        (field("a_{n}", "u8"), "{n}"),
        (field("a", "u8", 'part = "left"'), "is not declared"),
        (field("a_{n}", "i64", "repeat = 512") + field("b_{n}", "i64", "repeat = 512"), "above the limit of 512"),
        (field("a_{n}", "text", "size = 1024\nrepeat = 40"), "exceeds the limit of 32768 bytes"),
    ],
)
def test_a_contradictory_document_is_refused(document: str, says: str) -> None:
    with pytest.raises(ModelError) as caught:
        parse(document)
    assert says in str(caught.value)
    assert "sample.toml" in str(caught.value)


def test_inconsistent_parts_are_refused() -> None:
    with pytest.raises(ModelError, match="needs 16 bytes, but its size is 8"):
        parse(field("a_{n}", "i64", 'repeat = 2\npart = "p"'), head='version = 1\nparts = [{name = "p", size = 8}]')
    with pytest.raises(ModelError, match="part 'q' has no field"):
        parse(field("a", "i64", 'part = "p"'), head='version = 1\nparts = [{name = "p"}, {name = "q"}]')
    with pytest.raises(ModelError, match="field\\[0\\] 'a': the field needs a part, one of: p, q"):
        parse(field("a", "i64"), head='version = 1\nparts = [{name = "p"}, {name = "q"}]')
    with pytest.raises(ModelError, match="part 'r' is not one of: p"):
        parse(field("a", "i64", 'part = "r"'), head='version = 1\nparts = [{name = "p"}]')


def test_a_field_older_than_the_one_before_it_is_refused() -> None:
    with pytest.raises(ModelError, match="older than the field before"):
        parse(field("a", "i64", "since = 2") + field("b", "i64"), head="version = 2")


def test_wrong_keys_and_values_are_reported_with_their_place() -> None:
    with pytest.raises(UnknownKeyError, match=r"field\[0\]\.optinal.*did you mean 'optional'"):
        parse(field("a", "u8", "optinal = true"))
    with pytest.raises(ConfigurationError, match=r"sample\.toml: field\[0\]\.type"):
        parse(field("a", "u9"))
    with pytest.raises(ConfigurationError, match="version"):
        parse(field("a", "u8"), head="version = 0")
    with pytest.raises(ConfigurationError, match="missing key 'field'"):
        parse("")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        MessageModel.load(Path("no-such-model.toml"))


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_model_loads(name: str) -> None:
    model = shipped(name)
    assert model.name == name
    assert model.description
    assert all(item.description for item in model.fields)
    assert model.dtype.itemsize == model.record_size == len(model.new())


def test_shipped_models_have_distinct_ids() -> None:
    assert shipped_names() == [
        "agent_account", "agent_intake", "agent_run",
        "bar", "bar_8", "book_event", "book_event_8", "book_snapshot", "book_snapshot_8", "day_statistics",
        "day_statistics_8", "engine_account", "engine_intake", "filter_account", "filter_intake", "instrument", "quote",
        "quote_8", "router_account", "router_run", "spread", "status", "top_of_book", "top_of_book_8", "trade",
        "trade_8", "tree_agents", "tree_order", "tree_path", "tree_position", "tree_revoked", "tree_root",
        "tree_stream",
    ]  # fmt: skip
    assert len({shipped(name).id for name in shipped_names()}) == 33
    assert not shipped("trade").conflate
    assert not shipped("book_event").conflate
    with pytest.raises(ModelError, match="shipped models: agent_account"):
        shipped("qoute")


def test_the_bar_declares_how_it_conflates() -> None:
    bar = shipped("bar").fields_by_name
    assert {name: bar[name].conflate for name in ("open", "high", "low", "close", "volume")} == {
        "open": "first",
        "high": "max",
        "low": "min",
        "close": "last",
        "volume": "sum",
    }


def test_the_quotes_common_part_lies_between_the_sides() -> None:
    assert [part.name for part in shipped("quote").parts] == ["bid", "common", "ask"]


def test_a_model_survives_pickling() -> None:
    model = shipped("quote")
    model.new()
    assert pickle.loads(pickle.dumps(model)) == model


VERSION_1 = field("a", "i64") + field("b", "enum", "values = { x = 1 }")
VERSION_2 = field("a", "i64") + field("b", "enum", "values = { x = 1, y = 2 }") + field("c", "i32", "since = 2")


def test_a_version_that_only_adds_fields_is_compatible_in_both_directions() -> None:
    older, newer = parse(VERSION_1), parse(VERSION_2, head="version = 2")
    assert newer.incompatibilities(older) == []

    new_record = bytes(newer.new(a=5, b="y", c=7))
    seen_by_older = older.view(new_record, version=2)
    assert (seen_by_older.a, seen_by_older.b, seen_by_older.version) == (5, 2, 2)

    old_record = bytes(older.new(a=6, b="x"))
    seen_by_newer = newer.view(old_record, version=1)
    assert seen_by_newer.to_dict() == {"a": 6, "b": "x", "c": None}
    with pytest.raises(ModelError, match="the record has 9 bytes, but version 2 needs"):
        newer.view(old_record[:9], version=2)


@pytest.mark.parametrize(
    ("newer", "says"),
    [
        (field("a", "i32") + field("b", "enum", "values = { x = 1 }"), "type of field 'a' changed from i64 to i32"),
        (field("b", "enum", "values = { x = 1 }") + field("a", "i64"), "offset of field 'a' changed from 0 to 8"),
        (field("a", "i64"), "field 'b' was removed"),
        (field("a", "i64") + field("b", "enum", "values = { x = 2 }"), "no longer has x = 1"),
        (field("a", "i64", "optional = true") + field("b", "enum", "values = { x = 1 }"), "optional of field 'a'"),
        (VERSION_1 + field("c", "i64"), "'c' is new, but declares since = 1"),
    ],
)
def test_a_version_that_changes_existing_fields_is_detected(newer: str, says: str) -> None:
    reasons = parse(newer, head="version = 2").incompatibilities(parse(VERSION_1))
    assert any(says in reason for reason in reasons), reasons


@pytest.mark.parametrize(
    "changed",
    [
        VERSION_1.replace("x = 1", "x = 1, y = 2"),
        VERSION_1 + 'conflate = "never"\n',
        VERSION_1 + field("c", "i32"),
        "conflate = false\n" + VERSION_1,
    ],
)
def test_a_changed_model_needs_a_new_version(changed: str) -> None:
    older = parse(VERSION_1)
    reasons = parse(changed).incompatibilities(older)
    assert "the model has changed, but still has version 1: increase the version" in reasons
    assert not any(
        "increase the version" in reason for reason in parse(changed, head="version = 2").incompatibilities(older)
    )


def test_a_changed_description_needs_no_new_version() -> None:
    worded = 'description = "words"\n' + VERSION_1 + 'description = "more words"\n'
    assert parse(worded).incompatibilities(parse(VERSION_1)) == []


def test_an_unknown_model_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ModelError, match=r"did you mean 'quote'\? shipped models: agent_account, agent_intake"):
        shipped("qoute")


def test_a_moved_part_is_detected() -> None:
    def parted(left: str, version: int) -> MessageModel:
        fields = left + field("z", "i64", 'part = "right"')
        return parse(fields, head=f'version = {version}\nparts = [{{name = "left"}}, {{name = "right"}}]')

    older = parted(field("a", "i64", 'part = "left"'), 1)
    newer = parted(field("a", "i64", 'part = "left"') + field("b", "i64", 'part = "left"\nsince = 2'), 2)
    assert "part 'right' moved from byte 8 to 16" in newer.incompatibilities(older)


def test_a_path_may_be_a_text() -> None:
    assert MessageModel.load(str(DIRECTORY / "trade.toml")) == shipped("trade")


def test_a_model_has_a_readable_repr() -> None:
    assert repr(shipped("trade")) == "<MessageModel trade version 1 (id 2, 11 fields)>"
