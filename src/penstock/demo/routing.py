"""The demo's pair of message routers and its witness, as written in plant.toml."""

from collections.abc import Callable
from typing import NamedTuple

from penstock.demo.ports import Ports

ROUTERS = ("router-a", "router-b")
WITNESS = "witness"
LEASE_MS = 1_500
"""Short, so that a takeover is visible: a dead router is replaced in about this time."""


class Routing(NamedTuple):
    document: str
    places: str
    """Addresses for clients, separated by a comma."""


def routing(
    ports: Ports, *, credentials: str, operator: str, endpoint: str, topics: list[str], accounts: Callable[[str], str]
) -> Routing:
    """Return two routers with one endpoint, replicated to the second router, and a witness."""
    places = [f"127.0.0.1:{port}" for port in ports.routers]
    votes = dict(zip((*ROUTERS, WITNESS), ports.voters, strict=True))
    routers = [
        _ROUTER.format(
            name=name,
            port=ports.routers[number],
            endpoint=endpoint,
            topics=topics,
            operator=operator,
            credentials=credentials,
            accounts=accounts(name),
            routers=list(ROUTERS),
            link=ports.link,
            other=places[1 - number],
            witness=WITNESS,
            listen=votes[name],
            voters=", ".join(f'{voter} = "127.0.0.1:{port}"' for voter, port in votes.items() if voter != name),
            lease_ms=LEASE_MS,
        )
        for number, name in enumerate(ROUTERS)
    ]
    third = _WITNESS.format(name=WITNESS, routers=list(ROUTERS), port=votes[WITNESS], lease_ms=LEASE_MS)
    return Routing("".join([*routers, third]), ",".join(places))


_ROUTER = """
[[router]]
name = "{name}"
control.port = {port}
endpoints = [{{ name = "{endpoint}", wants = [{{ topics = {topics} }}], replication = "synchronous" }}]
operators = ["{operator}"]
admin = {{ credentials = "{credentials}.toml" }}
{accounts}
[router.pair]
routers = {routers}
link.port = {link}
clients = "{other}"
voting = {{ witness = "{witness}", listen.port = {listen}, voters = {{ {voters} }}, lease_ms = {lease_ms} }}
"""

_WITNESS = """
[[witness]]
name = "{name}"
routers = {routers}
control.port = {port}
lease_ms = {lease_ms}
"""
