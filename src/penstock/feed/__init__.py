"""Feed adapters: source streams in, application messages out, an active adapter and its synchronised backups.

core/ is an adapter without I/O, live/ runs it on sockets, threads and disks. formats/ decodes the framings of
exchanges, recorded/ reads recorded feeds. Entitlements are decided elsewhere (penstock.security, penstock.admin). Read
core/events.py first, then core/adapter.py.
"""

from penstock.feed.config import LineConfig, SynchroniserConfig
from penstock.feed.core.adapter import FeedAdapter
from penstock.feed.core.lines.arbiter import LineArbiter
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.feed.core.sync.health import Health
from penstock.feed.core.sync.synchroniser import Synchroniser

__all__ = [
    "FeedAdapter",
    "GeneratorConfig",
    "Health",
    "ItchGenerator",
    "LineArbiter",
    "LineConfig",
    "Synchroniser",
    "SynchroniserConfig",
]
