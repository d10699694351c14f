"""Happening: an entry in the list of recent happenings on the status page of an agent or router."""

from collections.abc import Mapping
from typing import Any

import msgspec


class Happening(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened to a node, for its status page."""

    time_ns: int
    what: str
    values: Mapping[str, Any]
    direction: str = ""
    """`said` or `heard` for messages of the infostream of a tree; otherwise empty."""

    party: str = ""
    """The receiver or sender of the message; empty: all children."""
