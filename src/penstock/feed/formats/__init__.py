"""Framings of feeds: MoldUDP64, SoupBinTCP, IEX-TP, files, captures, text.

Framings do not interpret messages, which is done by converter tables. datagram.py has the interface of a datagram
format; docs/how-to/write-your-own-feed.md explains how to add one.
"""

from penstock.base.errors import ConfigurationError
from penstock.base.extensions import load_entry_points
from penstock.feed.formats.datagram import DatagramFormat, Segment
from penstock.feed.formats.iextp import IexTp
from penstock.feed.formats.mold import MoldUDP64

DATAGRAM_FORMATS: dict[str, DatagramFormat] = {each.name: each for each in (MoldUDP64(), IexTp())}


def datagram_format(name: str) -> DatagramFormat:
    """Return a format by its configured name."""
    if name not in DATAGRAM_FORMATS:
        load_entry_points()
    try:
        return DATAGRAM_FORMATS[name]
    except KeyError:
        known = ", ".join(DATAGRAM_FORMATS)
        raise ConfigurationError(
            f"unknown datagram format {name!r}",
            hint=f"known formats: {known}; modules and entry points can add more",
        ) from None


def known_formats() -> list[DatagramFormat]:
    """All formats, including those of installed packages; the most recently registered come first."""
    load_entry_points()
    return list(reversed(DATAGRAM_FORMATS.values()))


def register_datagram_format(framing: DatagramFormat) -> None:
    """Register a custom format under its name."""
    if framing.name in DATAGRAM_FORMATS:
        raise ConfigurationError(f"a format named {framing.name!r} exists already")
    DATAGRAM_FORMATS[framing.name] = framing


__all__ = [
    "DATAGRAM_FORMATS",
    "DatagramFormat",
    "IexTp",
    "MoldUDP64",
    "Segment",
    "datagram_format",
    "known_formats",
    "register_datagram_format",
]
