"""The message routers of a document that form pairs: both have the same pair configuration and each other's address.

If the document has an administration server, clients authenticate with tokens, and the links between the routers and
their witness need a secret, even on one machine. For a document without a secret, one is generated.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.assured.node import RouterNodeConfig
from penstock.assured.witnessing import WitnessConfig
from penstock.base.clock import random_bytes
from penstock.base.errors import ConfigurationError
from penstock.base.files import make_directory
from penstock.net.secret import write_private
from penstock.net.stream import is_loopback

SECRET_SIZE = 32
LOOPBACK = "127.0.0.1"


def with_secrets(table: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """A router's or witness's table; its links on this machine that have no secret file have the document's."""
    filled = dict(table)
    pair = filled.get("pair")
    if isinstance(pair, dict) and (path := _secret_path(directory, pair.get("routers"))):
        pair = filled["pair"] = dict(pair)
        pair["link"] = _with_secret(pair.get("link", {}), path)
        if isinstance(voting := pair.get("voting"), dict):
            pair["voting"] = {**voting, "listen": _with_secret(voting.get("listen", {}), path)}
    elif path := _secret_path(directory, filled.get("routers")):
        filled["control"] = _with_secret(filled.get("control", {}), path)
    return filled


def _secret_path(directory: str, routers: object) -> str:
    """Empty if these are no two routers: then something else is refused."""
    if not isinstance(routers, list | tuple) or len(routers) != 2 or not all(isinstance(each, str) for each in routers):
        return ""
    return f"{directory}/{'+'.join(routers)}.secret"


def _with_secret(access: object, path: str) -> object:
    if not isinstance(access, dict) or not is_loopback(str(access.get("host", LOOPBACK))):
        return access
    return {"secret_file": path, **access}


def make_secrets(nodes: Mapping[str, object], directory: str, beside: Path) -> None:
    """Write the document's secrets that are not there yet; `beside` is where its paths begin."""
    for config in nodes.values():
        if isinstance(config, RouterNodeConfig) and config.pair is not None:
            routers, accesses = config.pair.routers, [config.pair.link.secret_file]
            accesses += [config.pair.voting.listen.secret_file] if config.pair.voting is not None else []
        elif isinstance(config, WitnessConfig):
            routers, accesses = config.routers, [config.control.secret_file]
        else:
            continue
        if (path := _secret_path(directory, routers)) in accesses:
            _make_secret(beside / path)


def _make_secret(path: Path) -> None:
    """Several processes may write at once: the first one wins, and the file appears atomically with its content."""
    if path.exists():
        return
    make_directory(path.parent)
    new = path.with_name(f"{path.name}.{random_bytes(6).hex()}.new")
    write_private(new, random_bytes(SECRET_SIZE).hex().encode())
    try:
        os.link(new, path)
    except FileExistsError:
        return
    except OSError as error:
        raise ConfigurationError(f"cannot be written: {error.strerror}", where=str(path)) from None
    finally:
        new.unlink()


def paired(router: RouterNodeConfig, routers: Mapping[str, RouterNodeConfig], where: str) -> RouterNodeConfig:
    """A router of this document, with what the other one of its pair says. Another that it does not have is somewhere
    else, and runs by a document of its own."""
    if router.pair is None:
        return router
    (name,) = set(router.pair.routers) - {router.name}
    other = routers.get(name)
    if other is None:
        return router
    if other.pair is None or other.pair.routers != router.pair.routers:
        raise ConfigurationError(
            f"{router.name} is of the pair {' and '.join(router.pair.routers)}, {name} is not", where=where
        )
    if other.pair.link.port != router.pair.link.port:
        raise ConfigurationError(
            f"{router.name} and {name} have two ports for one link",
            where=where,
            hint=f"link = {{ port = {router.pair.link.port} }} for both",
        )
    if (other.pair.voting is None) != (router.pair.voting is None):
        raise ConfigurationError(
            f"of {router.name} and {name} only one votes", where=where, hint="say `voting` for both, or for neither"
        )
    if router.pair.clients or not other.control.port:
        return router
    clients = other.control.advertised or f"{other.control.host}:{other.control.port}"
    return msgspec.structs.replace(router, pair=msgspec.structs.replace(router.pair, clients=clients))
