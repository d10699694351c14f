"""Notices of an agent's data path for its core: all events other than forwarding of packets.

The notices of one link are in the order of arrival. This module also has the states of streams and links that the core
queries.
"""

from typing import NamedTuple, TypeAlias

from penstock.base.counters import Cause


class ControlFrame(NamedTuple):
    """A control message arrived on a link."""

    link: int
    payload: bytes


class LegBlock(NamedTuple):
    """A portion of a leg's past arrived from a parent: whole packets with checked offsets and sizes. Live packets
    may follow it, so nothing more is accepted from the link before resume()."""

    link: int
    leg: int
    packets: bytes


class PublishedBlock(NamedTuple):
    """A publisher's packets, for Numbering."""

    link: int
    packets: bytes


class InfoPacket(NamedTuple):
    """A checked packet of a neighbour's infostream."""

    link: int
    packet: bytes


class NewerTerm(NamedTuple):
    """A packet of a term that the stream has not reached. Nothing more is accepted from the link before resume()."""

    link: int
    stream: int
    term: int
    sequence: int


class LeftLive(NamedTuple):
    """A child did not keep up: its leg is complete through this sequence, and gets nothing more until it fetches."""

    link: int
    leg: int
    through: int


class LinkEnded(NamedTuple):
    """The link must be closed: nothing more is received or sent on it."""

    link: int
    cause: Cause
    reason: str


Notice: TypeAlias = ControlFrame | LegBlock | PublishedBlock | InfoPacket | NewerTerm | LeftLive | LinkEnded


class StreamState(NamedTuple):
    term: int
    last: int
    """The sequence of the last accepted packet."""

    kept_after: int
    """Every packet of the stream that was accepted after this sequence is still in the history."""

    accepted: int
    duplicates: int


class LinkState(NamedTuple):
    waiting: int
    """Number of bytes to send."""

    control: int
    """The part of them other than live packets."""

    packets_in: int
    bytes_in: int
    packets_out: int
    bytes_out: int
    conflated: int
    """Packets that were replaced by newer ones on the same topic."""

    duplicates: int
    dropped: int
    """Unusable packets: of another tree, of an unknown stream, or of an older term."""


class Portion(NamedTuple):
    """The matching packets of a leg in its stream's past."""

    packets: bytes
    through: int
    """The leg's packets through this sequence are in this portion or an earlier one."""

    is_live: bool
    """Later packets are sent live, behind the control frame that is sent to the link next."""
