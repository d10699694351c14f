"""Secrets of the links between a document's nodes: adapters of a feed, and routers of a pair with their witness.

If the document has an administration server, clients authenticate with tokens, and these links need a secret, even on
one machine: otherwise any process of the machine could impersonate the other node. If the document names no secret
file, the links have a secret that is generated in the document's directory.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.assured.node_config import RouterNodeConfig, WitnessConfig
from penstock.base.clock import random_bytes
from penstock.base.errors import ConfigurationError
from penstock.base.files import make_directory
from penstock.feed.adapter_config import AdapterConfig
from penstock.net.place import is_loopback
from penstock.net.secret import write_private

SECRET_SIZE = 32
LOOPBACK = "127.0.0.1"


def with_feed_secret(peers: object, feed: object, directory: str) -> object:
    """An adapter's `peers` table. If it names no secret file and its links stay on this machine, the document's secret
    file is filled in."""
    if not isinstance(peers, dict) or not isinstance(feed, str):
        return peers
    others = peers.get("others", ())
    hosts = [each.get("host", LOOPBACK) if isinstance(each, dict) else "" for each in others]
    if not all(is_loopback(str(host)) for host in hosts):
        return peers
    return _with_secret(peers, _feed_secret_path(directory, feed))


def _feed_secret_path(directory: str, feed: str) -> str:
    return f"{directory}/{feed}.secret"


def with_secrets(table: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """Complete a router's or witness's table: links on this machine without a secret file use the document's secret."""
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
    """The secret file of a pair; empty if the document does not describe two routers, which another check refuses."""
    if not isinstance(routers, list | tuple) or len(routers) != 2 or not all(isinstance(each, str) for each in routers):
        return ""
    return f"{directory}/{'+'.join(routers)}.secret"


def _with_secret(access: object, path: str) -> object:
    if not isinstance(access, dict) or not is_loopback(str(access.get("host", LOOPBACK))):
        return access
    return {"secret_file": path, **access}


def make_secrets(nodes: Mapping[str, object], directory: str, beside: Path) -> None:
    """Write the document's missing secrets; relative paths start at `beside`."""
    for config in nodes.values():
        if isinstance(config, AdapterConfig):
            if config.peers.secret_file == (own := _feed_secret_path(directory, config.feed)):
                _make_secret(beside / own)
            continue
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
    """Write a secret. If several processes write at once, the first one wins; the file appears atomically."""
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
