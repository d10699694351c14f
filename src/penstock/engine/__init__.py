"""The multi-class distribution engine of ticker plants, multiplexers and edge caches.

It keeps the current record of every item, and sends each consumer its updates by class: all updates in order
(critical), the newest record (adaptive), or a limited number per second (metered). No consumer slows down another.
Sockets and shared-memory segments are in penstock.plant.

Read core/events.py first, then core/engine.py; core/kernel/_distribute.pyx for what happens to an update,
core/classes.py for the class that it is sent in, core/kernel/_conflate.pxd and _metering.pxd for updates that are
withheld. control.py has the messages between consumers and nodes, client/ the consumer's side.
docs/reference/protocol/distribution.md describes the events that consumers read.
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
