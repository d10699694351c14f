"""The multi-class distribution engine: what a ticker plant, a multiplexer and an edge cache have in common.

What consumers and nodes say to each other is in control.py; what becomes of updates that are withheld, in
_conflate.pxd.
"""

from penstock.engine._conflate import ConflationPlan, SpanStore
from penstock.engine._wheel import TimingWheel
from penstock.engine.control import PROTOCOL

__all__ = ["PROTOCOL", "ConflationPlan", "SpanStore", "TimingWheel"]
