"""Where the pages of nodes are: in a plant.toml, or as given."""

from collections.abc import Iterable

import msgspec

from penstock.base.errors import ConfigurationError
from penstock.node.plant import Plant

UNKNOWN = "it has not been started here, and its metrics_port is 0"


class Place(msgspec.Struct, frozen=True):
    name: str
    url: str
    """Empty where it is not known; then `why_unknown` says why."""

    why_unknown: str = ""


def places_of_plant(plant: Plant) -> list[Place]:
    """Every node that shows itself, in the plant's order; players do not."""
    return [Place(name, url, "" if url else UNKNOWN) for name in plant.nodes if (url := plant.page(name)) is not None]


def places_given(addresses: Iterable[str]) -> list[Place]:
    """HOST:PORT or http://HOST:PORT, each."""
    return [_place_given(address) for address in addresses]


def _place_given(address: str) -> Place:
    bare = address.removeprefix("http://").rstrip("/")
    host, colon, port = bare.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536 or "/" in bare:
        raise ConfigurationError(f"{address!r} is no address of a node's page", hint="write HOST:PORT")
    return Place(bare, f"http://{bare}")
