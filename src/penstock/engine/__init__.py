"""The multi-class distribution engine: what a ticker plant, a multiplexer and an edge cache have in common.

What consumers and nodes say to each other is in control.py; what becomes of updates that are withheld, in
_conflate.pxd; when they may be sent, in _metering.pxd; which class an update
is sent in, in classes.py.
"""

from penstock.engine._conflate import ConflationPlan, SpanStore
from penstock.engine._metering import Metering
from penstock.engine._wheel import TimingWheel
from penstock.engine.classes import Classifier, ClassMap
from penstock.engine.control import PROTOCOL
from penstock.engine.metering import MeteringLimits
from penstock.engine.signals import Relief, SignalThresholds

__all__ = [
    "PROTOCOL", "ClassMap", "Classifier", "ConflationPlan", "Metering", "MeteringLimits", "Relief",
    "SignalThresholds", "SpanStore", "TimingWheel",
]  # fmt: skip
