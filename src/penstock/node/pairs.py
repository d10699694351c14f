"""The message routers of a document that form pairs: both have the same pair configuration and each other's address."""

from collections.abc import Mapping

import msgspec

from penstock.assured.node_config import RouterNodeConfig
from penstock.base.errors import ConfigurationError


def paired(router: RouterNodeConfig, routers: Mapping[str, RouterNodeConfig], where: str) -> RouterNodeConfig:
    """Complete a router's configuration with the address of its peer. A peer that is not in this document runs
    elsewhere, with its own document."""
    if router.pair is None:
        return router
    (name,) = set(router.pair.routers) - {router.name}
    other = routers.get(name)
    if other is None:
        return router
    if other.pair is None or other.pair.routers != router.pair.routers:
        raise ConfigurationError(
            f"{router.name} is in the pair {' and '.join(router.pair.routers)}, {name} is not", where=where
        )
    if other.pair.link.port != router.pair.link.port:
        raise ConfigurationError(
            f"{router.name} and {name} have different ports for the same link",
            where=where,
            hint=f"link = {{ port = {router.pair.link.port} }} for both",
        )
    if (other.pair.voting is None) != (router.pair.voting is None):
        raise ConfigurationError(
            f"only one of {router.name} and {name} has `voting`",
            where=where,
            hint="set `voting` for both, or for neither",
        )
    if router.pair.clients or not other.control.port:
        return router
    clients = other.control.advertised or f"{other.control.host}:{other.control.port}"
    return msgspec.structs.replace(router, pair=msgspec.structs.replace(router.pair, clients=clients))
