"""Conflation keeps the contract of every model, over any updates and any way to cut them into spans."""

import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.conflation import Update, conflated, may_conflate
from oracles.models import models, values_of
from penstock.base.errors import LimitError, LocalProtocolError, ModelError
from penstock.engine.core.kernel._conflate import NO_SPAN, ConflationPlan, SpanStore
from penstock.model import MessageModel, shipped, shipped_names

SHIPPED = [shipped(name) for name in shipped_names()]


@st.composite
def contracted(draw: st.DrawFn) -> MessageModel:
    """A random model whose fields have any contracts that their types allow."""
    model = draw(models())
    fields = []
    for field in model.fields:
        numeric = field.type not in ("text", "enum", "flags")
        rules = ["last", "first", *(["max", "min", "sum"] if numeric else [])]
        fields.append(msgspec.structs.replace(field, conflate=draw(st.sampled_from(rules))))
    return dataclasses.replace(model, fields=tuple(fields))


@st.composite
def updates_of(draw: st.DrawFn, model: MessageModel) -> list[Update]:
    updates = []
    for _ in range(draw(st.integers(1, 8))):
        message = model.new()
        for field in model.fields:
            setattr(message, field.name, draw(values_of(field)))
        version = draw(st.integers(1, model.version))
        record = bytes(message)
        for field in model.fields:
            if field.since > version:
                record = record[: field.offset] + bytes(field.size) + record[field.end :]
        updates.append((version, record))
    return updates


@st.composite
def spans_of(draw: st.DrawFn, updates: list[Update]) -> list[list[Update]]:
    cuts = sorted(draw(st.sets(st.integers(1, len(updates)), max_size=4)) | {len(updates)})
    return [updates[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]


def folded(plan: ConflationPlan, updates: list[Update]) -> Update:
    version, held = updates[0]
    for next_version, record in updates[1:]:
        held = plan.merged(held, record, version, next_version)
        version = next_version
    return version, held


@pytest.mark.spec("METR-1")
@given(data=st.data())
def test_any_contract_over_any_spans_is_what_the_oracle_says(data: st.DataObject) -> None:
    model = data.draw(contracted())
    plan = ConflationPlan.of(model)
    updates = data.draw(updates_of(model))
    for span in data.draw(spans_of(updates)):
        assert folded(plan, span) == conflated(model, span)


@given(data=st.data(), model=st.sampled_from([model for model in SHIPPED if may_conflate(model)]))
def test_shipped_models_keep_their_contract(data: st.DataObject, model: MessageModel) -> None:
    updates = data.draw(updates_of(model))
    for span in data.draw(spans_of(updates)):
        assert folded(ConflationPlan.of(model), span) == conflated(model, span)


@given(data=st.data())
def test_spans_partition_the_updates(data: st.DataObject) -> None:
    """A store of few spans, used by several pairs at once: each update is in exactly one span of each pair."""
    model = data.draw(contracted())
    store = SpanStore(ConflationPlan.of(model), 3)
    updates = data.draw(updates_of(model))
    held = [NO_SPAN] * 3
    taken: list[list[tuple[int, int, int]]] = [[], [], []]
    for number, (version, record) in enumerate(updates, start=1):
        for pair in range(3):
            held[pair] = store.put(held[pair], record, version, number)
        for pair in data.draw(st.sets(st.integers(0, 2))) | ({0, 1, 2} if number == len(updates) else set()):
            first, last, merged, span_version, span_record = store.take(held[pair])
            held[pair] = NO_SPAN
            taken[pair].append((first, last, merged))
            assert (span_version, span_record) == conflated(model, updates[first - 1 : last])
    assert store.in_use == 0
    for spans in taken:
        numbers = [number for first, last, _ in spans for number in range(first, last + 1)]
        assert numbers == list(range(1, len(updates) + 1))
        assert [merged for _, _, merged in spans] == [last - first + 1 for first, last, _ in spans]


@pytest.mark.parametrize("model", SHIPPED, ids=lambda model: model.name)
def test_what_never_conflates_is_refused(model: MessageModel) -> None:
    plan = ConflationPlan.of(model)
    assert plan.is_conflatable == may_conflate(model)
    assert plan.needs_accumulator == (plan.is_conflatable and any(f.conflate != "last" for f in model.fields))
    if not plan.is_conflatable:
        with pytest.raises(LocalProtocolError):
            plan.merged(bytes(model.new()), bytes(model.new()))


@pytest.mark.parametrize(("name", "is_conflatable"), [("trade", False), ("book_event", False), ("status", False)])
def test_trades_cancellations_and_states_never_conflate(name: str, is_conflatable: bool) -> None:
    assert ConflationPlan.of(shipped(name)).is_conflatable == is_conflatable


def test_a_store_has_bounds() -> None:
    model = shipped("quote")
    record = bytes(model.new())
    store = SpanStore(ConflationPlan.of(model), 2)
    numbers = [store.put(NO_SPAN, record, 1, 1) for _ in range(2)]
    with pytest.raises(LimitError):
        store.put(NO_SPAN, record, 1, 1)
    with pytest.raises(ModelError):
        store.put(numbers[0], b"", 1, 2)
    with pytest.raises(LocalProtocolError):
        SpanStore(ConflationPlan.of(shipped("trade")), 2)
    store.take(numbers[0])
    for gone in (numbers[0], 99):
        with pytest.raises(LocalProtocolError):
            store.take(gone)
    assert store.put(NO_SPAN, record + bytes(64), 2, 3) == numbers[0], "a newer version's records may be longer"
    assert store.take(numbers[0])[4] == record + bytes(64)
    assert store.in_use == 1
