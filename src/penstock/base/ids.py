"""Identifiers in packets, and their text forms."""

import ipaddress
from typing import NewType

from penstock.base.clock import Randomness
from penstock.base.errors import ConfigurationError

PublisherId = NewType("PublisherId", int)
"""Identifies a publisher on all its groups; 64 bits, never 0."""

Group = NewType("Group", int)
"""An IPv4 multicast group as a 32-bit number."""

PUBLISHER_ID_MAX = 2**64 - 1


def random_publisher_id(randomness: Randomness) -> PublisherId:
    """Return a random id; receivers report the (very unlikely) collision of two publishers."""
    return PublisherId(1 + randomness.below(PUBLISHER_ID_MAX))


def parse_group(text: str) -> Group:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        raise ConfigurationError(f"{text!r} is not an IPv4 address", hint="use a group such as 239.1.2.3") from None
    if not address.is_multicast:
        raise ConfigurationError(
            f"{text} is not a multicast group",
            hint="groups are 224.0.0.0 to 239.255.255.255; 239.x.y.z is for private use",
        )
    return Group(int(address))


def format_group(group: int) -> str:
    return str(ipaddress.IPv4Address(group))
