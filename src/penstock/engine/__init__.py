"""The multi-class distribution engine: what a ticker plant, a multiplexer and an edge cache have in common.

What consumers and nodes say to each other is in control.py; what becomes of updates that are withheld, in
_conflate.pxd; when they may be sent, in _metering.pxd.
"""

from penstock.engine._conflate import ConflationPlan, SpanStore
from penstock.engine._metering import Metering
from penstock.engine._wheel import TimingWheel
from penstock.engine.control import PROTOCOL
from penstock.engine.metering import MeteringLimits

__all__ = ["PROTOCOL", "ConflationPlan", "Metering", "MeteringLimits", "SpanStore", "TimingWheel"]
