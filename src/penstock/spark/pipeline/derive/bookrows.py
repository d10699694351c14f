"""Runs on the workers: turns sorted blocks of events into rows of the book tables."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.spark.pipeline.derive._blocks import decode
from penstock.spark.pipeline.derive._books import EVENT_DTYPE, SIDES, BookKernel
from penstock.spark.pipeline.derive.blocks import ACTIONS, EVENT_NAMES, unpack
from penstock.spark.pipeline.derive.blocks import SIDES as EVENT_SIDES
from penstock.spark.pipeline.derive.protocol import CARRIED
from penstock.wire.term import LINEAGE_SHIFT, SESSION_TAG_SHIFT

EVENTS_MAX = 16_384
"""Number of events applied at a time; keeps the output in the processor's cache."""

PRICE = pa.decimal128(18, 8)


def make(
    levels: int, over: bool | frozenset[int], batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Apply the blocks, stream by stream. The books of streams in `over` are not carried to the next step."""
    stream: StreamBooks | None = None
    for batch in batches:
        contents = batch.column("events")
        for block, content in zip(batch.drop_columns(["events"]).to_pylist(), contents, strict=True):
            if stream is None or stream.number != block["stream"]:
                yield from stream.end(over) if stream is not None else ()
                stream = StreamBooks(block["stream"], levels)
            yield from stream.take(block, content.as_buffer())
    yield from stream.end(over) if stream is not None else ()


class StreamBooks:
    """The books of one stream's instruments in this partition."""

    def __init__(self, number: int, levels: int) -> None:
        self.number = number
        self._kernel = BookKernel(levels)
        self._numbers: dict[tuple[str, str], int] = {}
        self._symbols: list[str] = []
        self._venues: list[str] = []
        self._names: tuple[pa.Array, pa.Array] | None = None
        self._lineage = 0
        self._held = np.empty(0, EVENT_DTYPE)  # events that must wait, because a later block may have earlier ones

    def take(self, block: dict[str, Any], content: pa.Buffer) -> Iterator[tuple[str, pa.RecordBatch]]:
        if block["lineage"] != self._lineage:
            yield from self._apply(len(self._held))
            self._lineage = block["lineage"]
        yield from self._apply(int(np.searchsorted(self._held["seq"], block["first"])))
        events = np.empty(block["count"], EVENT_DTYPE)
        decode(np.frombuffer(content, np.uint8), self._known(unpack(block["instruments"])), events)
        if len(self._held):
            events = np.concatenate([self._held, events])
            events = events[np.argsort(events["seq"], kind="stable")]
        self._held = events

    def end(self, over: bool | frozenset[int]) -> Iterator[tuple[str, pa.RecordBatch]]:
        yield from self._apply(len(self._held))
        if not (over if isinstance(over, bool) else self.number in over):
            yield CARRIED, self._carried(self._kernel.carried())

    def _known(self, names: list[tuple[str, str]]) -> np.ndarray[Any, Any]:
        """Return our numbers of a block's instruments."""
        for name in names:
            if name not in self._numbers:
                self._numbers[name] = self._kernel.instrument()
                self._symbols.append(name[0])
                self._venues.append(name[1])
                self._names = None
        return np.array([self._numbers[name] for name in names], np.uint32)

    def _apply(self, count: int) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Apply this many of the waiting events."""
        ready, self._held = self._held[:count], self._held[count:]
        for first in range(0, count, EVENTS_MAX):
            events = ready[first : first + EVENTS_MAX]
            best, depth = self._kernel.apply(events)
            if len(best["seq"]):
                yield "top_of_book", pa.RecordBatch.from_pydict({**self._keys(best), **_best_columns(best)})
            if len(depth["seq"]):
                yield "depth", pa.RecordBatch.from_pydict({**self._keys(depth), **_depth_columns(depth)})

    def _keys(self, events: Mapping[str, Any] | np.ndarray[Any, Any]) -> dict[str, pa.Array]:
        if self._names is None:
            self._names = pa.array(self._symbols), pa.array(self._venues)
        owners = pa.array(events["instrument"])
        return {
            "stream": pa.array(np.full(len(owners), self.number, np.int32)),
            "seq": pa.array(events["seq"]),
            "source_seq": pa.array(events["source_seq"]),
            "event_time": pa.array(events["event_time"]),
            "symbol": self._names[0].take(owners),
            "venue": self._names[1].take(owners),
        }

    def _carried(self, events: np.ndarray[Any, Any]) -> pa.RecordBatch:
        prices = np.stack([events["price"], events["price"] >> 63], axis=1).ravel()
        columns = {
            **self._keys(events),
            "term": pa.array(np.full(len(events), self._lineage << LINEAGE_SHIFT)),
            "origin": pa.array(events["session"].astype(np.int32) << SESSION_TAG_SHIFT),
            "seq": pa.array(np.full(len(events), -1)),
            "order_id": pa.array(events["order_id"].view(np.int64)),
            "new_order_id": pa.nulls(len(events), pa.int64()),
            "price": _decimals(prices),
            "quantity": pa.array(events["quantity"]),
            "action": pa.array(ACTIONS).take(pa.array(events["action"])),
            "side": pa.array(EVENT_SIDES).take(pa.array(events["side_flags"])),
            "flags": pa.array(np.zeros(len(events), np.int32)),
        }
        return pa.RecordBatch.from_pydict({name: columns[name] for name in EVENT_NAMES})


def _decimals(values: np.ndarray[Any, Any], is_there: np.ndarray[Any, Any] | None = None) -> pa.Array:
    present = None if is_there is None else pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.Array.from_buffers(PRICE, len(values) // 2, [present, pa.py_buffer(values)])


def _best_columns(best: dict[str, Any]) -> dict[str, pa.Array]:
    columns = {}
    for side in SIDES:
        columns[f"{side}_price"] = _decimals(best[side]["price"], best[side]["is_there"])
        columns[f"{side}_size"] = pa.array(best[side]["size"])
        columns[f"{side}_orders"] = pa.array(best[side]["orders"])
    return columns


def _depth_columns(depth: dict[str, Any]) -> dict[str, pa.Array]:
    columns = {"level": pa.array(depth["level"])}
    for side in SIDES:
        levels = pa.StructArray.from_arrays(
            [_decimals(depth[side]["price"]), pa.array(depth[side]["size"]), pa.array(depth[side]["orders"])],
            ["price", "size", "orders"],
        )
        columns[f"{side}s"] = pa.ListArray.from_arrays(pa.array(depth[side]["ends"]), levels)
    return columns
