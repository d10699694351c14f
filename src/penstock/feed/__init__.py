"""Feed adapters: source streams in, application messages out, an active adapter and its synchronised backups.

Cores without I/O: `Synchroniser` keeps the adapters of a feed together. Who may receive what is not decided here (that
is penstock.security and penstock.admin). Read events.py first, then sync.py.
"""

from penstock.feed.config import SynchroniserConfig
from penstock.feed.health import Health
from penstock.feed.sync import Synchroniser

__all__ = ["Health", "Synchroniser", "SynchroniserConfig"]
