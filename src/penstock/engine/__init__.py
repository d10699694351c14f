"""The multi-class distribution engine: what a ticker plant, a multiplexer and an edge cache have in common.

It keeps the current record of every item, and gives each consumer its updates by class: critical ones all and in order,
adaptive ones the newest, metered ones no more than so many per second; none can hurt another. It opens no socket and
makes no segment: that is penstock.plant. Read events.py first, then core.py; _distribute.pyx for what happens to an
update, classes.py for the class it is sent in, _conflate.pxd and _metering.pxd for those that are withheld. control.py
is what consumers and nodes say to each other, docs/protocol/distribution.md what consumers read.
"""

from penstock.engine.config import EngineConfig
from penstock.engine.control import PROTOCOL
from penstock.engine.core.classes import Classifier, ClassMap
from penstock.engine.core.engine import DistributionEngine
from penstock.engine.core.kernel._conflate import ConflationPlan, SpanStore
from penstock.engine.core.kernel._event import (
    EVENT_SIZE_MAX,
    Event,
    EventFlag,
    EventKind,
    TransmissionClass,
    make_event,
    read_events,
)
from penstock.engine.core.kernel._metering import Metering
from penstock.engine.core.kernel._sinks import SessionBuffer
from penstock.engine.core.kernel._wheel import TimingWheel
from penstock.engine.core.metering_limits import MeteringLimits
from penstock.engine.core.signals import Relief, SignalThresholds

__all__ = [
    "EVENT_SIZE_MAX",
    "PROTOCOL",
    "ClassMap",
    "Classifier",
    "ConflationPlan",
    "DistributionEngine",
    "EngineConfig",
    "Event",
    "EventFlag",
    "EventKind",
    "Metering",
    "MeteringLimits",
    "Relief",
    "SessionBuffer",
    "SignalThresholds",
    "SpanStore",
    "TimingWheel",
    "TransmissionClass",
    "make_event",
    "read_events",
]
