"""How feeds frame and number their messages: MoldUDP64, SoupBinTCP, IEX-TP, files, captures, text.

What is inside a message is the converter table's business, not theirs. datagram.py says what a format of datagrams
has to know; docs/how-to/write-your-own-feed.md makes one.
"""

from penstock.base.errors import ConfigurationError
from penstock.base.extensions import load_entry_points
from penstock.feed.formats.datagram import DatagramFormat, Segment
from penstock.feed.formats.iextp import IexTp
from penstock.feed.formats.mold import MoldUDP64

DATAGRAM_FORMATS: dict[str, DatagramFormat] = {each.name: each for each in (MoldUDP64(), IexTp())}


def datagram_format(name: str) -> DatagramFormat:
    """A format by the name that configurations use."""
    if name not in DATAGRAM_FORMATS:
        load_entry_points()
    try:
        return DATAGRAM_FORMATS[name]
    except KeyError:
        known = ", ".join(DATAGRAM_FORMATS)
        raise ConfigurationError(
            f"no format of datagrams is called {name!r}",
            hint=f"there are: {known}; modules and entry points add others",
        ) from None


def known_formats() -> list[DatagramFormat]:
    """All formats, those of installed packages among them; the ones that were added last come first."""
    load_entry_points()
    return list(reversed(DATAGRAM_FORMATS.values()))


def register_datagram_format(framing: DatagramFormat) -> None:
    """Make a format of one's own known by its name."""
    if framing.name in DATAGRAM_FORMATS:
        raise ConfigurationError(f"there is a format called {framing.name!r} already")
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
