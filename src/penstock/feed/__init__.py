"""Feed adapters: source streams in, application messages out, an active adapter and its synchronised backups.

Formats cut what an exchange sends into messages (formats/), lines.py makes several lines one source stream, sync.py
keeps the adapters of a feed together, core.py is a whole adapter; all of these are cores without I/O. Who may receive
what is not decided here (that is penstock.security and penstock.admin). Read events.py first, then core.py.
"""

from penstock.feed.config import LineConfig, SynchroniserConfig
from penstock.feed.core import FeedAdapter
from penstock.feed.generator import GeneratorConfig, ItchGenerator
from penstock.feed.health import Health
from penstock.feed.lines import LineArbiter
from penstock.feed.sync import Synchroniser

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
