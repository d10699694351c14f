"""What the data path of an agent has for its core: everything that is not a matter of passing packets on.

Those of one link are in the order of what came on it. And how its streams and links stand, when the core asks.
"""

from typing import NamedTuple, TypeAlias

from penstock.base.counters import Cause


class ControlFrame(NamedTuple):
    """A control message came on a link."""

    link: int
    payload: bytes


class LegBlock(NamedTuple):
    """A portion of a leg's past came from a parent: whole packets, whose beginnings and sizes have been looked at. Live
    packets may follow it, so nothing more is taken from the link before resume()."""

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
    """A child did not keep up: its leg has everything through this sequence, and gets nothing more until it fetches."""

    link: int
    leg: int
    through: int


class LinkEnded(NamedTuple):
    """Nothing more comes on the link and nothing is sent: it is to be closed."""

    link: int
    cause: Cause
    reason: str


Notice: TypeAlias = ControlFrame | LegBlock | PublishedBlock | InfoPacket | NewerTerm | LeftLive | LinkEnded


class StreamState(NamedTuple):
    term: int
    last: int
    """The sequence of the last packet that was accepted."""

    kept_after: int
    """Every packet of the stream that was accepted after this sequence is still in the history."""

    accepted: int
    duplicates: int


class LinkState(NamedTuple):
    waiting: int
    """Bytes that are to be sent."""

    control: int
    """The part of them that is not live packets."""

    packets_in: int
    bytes_in: int
    packets_out: int
    bytes_out: int
    conflated: int
    """Packets left out because newer ones on the same topic took their places."""

    duplicates: int
    dropped: int
    """Packets that were not to be used: of another tree, of no stream of ours, of an older term."""


class Portion(NamedTuple):
    """What a leg wants of its stream's past."""

    packets: bytes
    through: int
    """Every packet of the leg through this sequence is in these, or was before."""

    is_live: bool
    """What comes after it is sent live, behind what is said to the link next."""
