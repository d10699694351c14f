"""What the data path of an agent has for its core: everything that is not a matter of passing packets on.

Those of one link are in the order of what came on it.
"""

from typing import NamedTuple, TypeAlias

from penstock.base.counters import Cause


class ControlFrame(NamedTuple):
    """A control message came on a link."""

    link: int
    payload: bytes


class LegBlock(NamedTuple):
    """A portion of a leg's past came from a parent: whole packets, whose beginnings and sizes have been looked at."""

    link: int
    leg: int
    packets: bytes


class PublishedBlock(NamedTuple):
    """A publisher's packets, for Numbering."""

    link: int
    packets: bytes


class InfoPacket(NamedTuple):
    """A packet of a neighbour's infostream, checked."""

    link: int
    packet: bytes


class NewerTerm(NamedTuple):
    """A packet of a term that the stream is not in yet. Nothing more is taken from the link before resume()."""

    link: int
    stream: int
    term: int
    sequence: int


class LeftLive(NamedTuple):
    """A child did not keep up: its leg has everything through this sequence, and gets nothing more unless it fetches."""

    link: int
    leg: int
    through: int


class LinkEnded(NamedTuple):
    """Nothing more comes on the link and nothing is sent: it is to be closed."""

    link: int
    cause: Cause
    reason: str


Notice: TypeAlias = ControlFrame | LegBlock | PublishedBlock | InfoPacket | NewerTerm | LeftLive | LinkEnded
