"""Links to other agents that are being opened."""

from typing import Literal, TypeAlias

import msgspec

Purpose: TypeAlias = Literal["parent", "peer", "probe"]


class Attempt(msgspec.Struct):
    """A link that is being opened."""

    number: int
    place: str
    purpose: Purpose
    deadline_ns: int
    home: str = ""
    link: int | None = None
    name: str = ""
    is_welcome: bool = False
    """Whether it waits only for everything that is wanted to come live."""
