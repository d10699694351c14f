"""Happening: an entry of the list of what happened, on the status page of an agent or router."""

from collections.abc import Mapping
from typing import Any

import msgspec


class Happening(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened to a node, for its status page."""

    time_ns: int
    what: str
    values: Mapping[str, Any]
    direction: str = ""
    """Of a message of a tree's infostream: said or heard."""

    party: str = ""
    """Whom it was said to, or by whom; empty: to all children."""
