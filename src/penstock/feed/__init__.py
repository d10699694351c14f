"""Feed adapters: source streams in, application messages out, an active adapter and its synchronised backups.

formats/ cuts what an exchange sends into messages, lines/ makes several lines one source stream, sync/ keeps the
adapters of a feed together, service/ serves subscribers over TCP, play/ plays an exchange. core.py is a whole adapter
without I/O, driver.py one that runs. Who may receive what is not decided here (that is penstock.security and
penstock.admin). Read events.py first, then core.py.
"""

from penstock.feed.config import LineConfig, SynchroniserConfig
from penstock.feed.core import FeedAdapter
from penstock.feed.lines.arbiter import LineArbiter
from penstock.feed.play.generator import GeneratorConfig, ItchGenerator
from penstock.feed.sync.health import Health
from penstock.feed.sync.synchroniser import Synchroniser

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
