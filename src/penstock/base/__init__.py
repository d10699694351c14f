"""Foundation of all other packages: errors, identifiers, limits, configuration, time, counters, metrics, logs.

This package knows nothing of messages, networks or disks. Read errors.py and core.py first: they define how Penstock's
parts fail and how its protocol cores are driven.
"""

from penstock.base.clock import Clock, Randomness, SystemClock, SystemRandomness
from penstock.base.config import Config, load_toml, parse_toml
from penstock.base.core import Core
from penstock.base.counters import Cause, Counters
from penstock.base.errors import LocalProtocolError, PenstockError, RemoteProtocolError
from penstock.base.ids import Group, PublisherId, format_group, parse_group

__all__ = [
    "Cause",
    "Clock",
    "Config",
    "Core",
    "Counters",
    "Group",
    "LocalProtocolError",
    "PenstockError",
    "PublisherId",
    "Randomness",
    "RemoteProtocolError",
    "SystemClock",
    "SystemRandomness",
    "format_group",
    "load_toml",
    "parse_group",
    "parse_toml",
]
