"""A live adapter: everything of a feed adapter in one process, from its configuration to its end.

    async with LiveAdapter(config) as adapter:
        await adapter.run(stop)

The data thread (datapath.py) receives, converts and publishes. The loop's thread has the rest: the channels to the other
adapters (peering.py), the stream service (service_driver.py), the administration server (registration.py), health and
metrics. Control reaches the data thread as mail, between two batches.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from penstock.base.counters import Counters
from penstock.base.endpoint import Endpoint
from penstock.base.endpoint import Health as EndpointHealth
from penstock.base.errors import ConfigurationError
from penstock.base.log import logger
from penstock.base.metrics import Metrics
from penstock.convert import Converter, ConverterTable
from penstock.feed.adapter_config import AdapterConfig
from penstock.feed.adapter_status import AdapterStatus, StatusBoard
from penstock.feed.administration import Administration
from penstock.feed.core import FeedAdapter
from penstock.feed.datapath import DataPath
from penstock.feed.events import (
    AdapterInstruction,
    HealthMeasured,
    LineChanged,
    Paused,
    PersistTerm,
    RoleChanged,
    SendPeer,
    ServiceChanged,
    SynchronisationChanged,
    TermPersisted,
)
from penstock.feed.livesources import UnlinedSource, open_sources
from penstock.feed.measure import HealthMeter
from penstock.feed.outbound import Outbound
from penstock.feed.peering import Peering
from penstock.feed.pump import ServicePump
from penstock.feed.recorder import Recorder
from penstock.feed.service import ServiceIdentity, StreamService
from penstock.feed.service_driver import SubscriberServer
from penstock.feed.serviceside import ServiceSide
from penstock.feed.sources import LinedSource, RepairSocket
from penstock.feed.terms import TermFile
from penstock.middleware import Publisher
from penstock.middleware.driver import claim_epoch
from penstock.net.secret import Secret, read_secret

HEALTH_SECONDS = 0.5
PERSIST_AGAIN_SECONDS = 0.5

log = logger("feed.adapter")
