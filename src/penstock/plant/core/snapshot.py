"""Static reads of a node's current records (TP-1)."""

from collections.abc import Sequence

from penstock.base.errors import LimitError
from penstock.engine import DistributionEngine, EventKind, make_event
from penstock.engine.control import EVENTS_SIZE_MAX


def snapshot(engine: DistributionEngine, topics: Sequence[str], items_max: int) -> list[bytes]:
    """Return DEFINE and REFRESH events of the current records, in blocks. Raise LimitError above `items_max` items."""
    found = engine.current(topics, items_max + 1)
    if len(found) > items_max:
        raise LimitError(f"more than {items_max} items match, the limit of a snapshot", hint="ask for fewer topics")
    blocks: list[bytes] = []
    block: list[bytes] = []
    size = 0
    for each in found:
        if each.record is None:
            continue
        model = {"item": each.item, "model_id": each.model_id, "model_version": each.model_version}
        define = make_event(EventKind.DEFINE, body=each.topic, **model)
        refresh = make_event(EventKind.REFRESH, body=each.record, number=each.number, version=each.version, **model)
        if size + len(define) + len(refresh) > EVENTS_SIZE_MAX:
            blocks.append(b"".join(block))
            block, size = [], 0
        block += [define, refresh]
        size += len(define) + len(refresh)
    return [*blocks, b"".join(block)]
