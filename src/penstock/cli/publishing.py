"""The publisher of `penstock pub`: whose id it has, and whether the host's filter module gets its packets at once."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from penstock.base.errors import ConfigurationError
from penstock.filter.application.finding import find_filter
from penstock.filter.application.offering import offered_publisher
from penstock.middleware.driver import MulticastPublisher
from penstock.net.udp import Channel
from penstock.security.authentication import PUBLISHERS, scope_of
from penstock.security.client import AdminClient
from penstock.topics import GroupMap


def identity(
    publisher_id: int | None, epochs: Path | None, connect: str | None, credentials: Path | None, name: str | None
) -> dict[str, Any]:
    """What MulticastPublisher is told of its id: by configuration, by the administration server, or nothing."""
    if (publisher_id is None) != (epochs is None):
        raise ConfigurationError("--id and --epochs belong together", hint="the file keeps the publisher's epochs")
    if len({connect is None, credentials is None, name is None}) != 1:
        raise ConfigurationError("--connect, --credentials and --name belong together")
    if connect is None or credentials is None or name is None:
        return {} if publisher_id is None else {"publisher_id": publisher_id, "epoch_path": epochs}
    if publisher_id is not None:
        raise ConfigurationError("the id comes from --id or from --connect, not from both")
    with AdminClient.connect(connect, credentials) as admin:
        claimed = admin.claim_publisher(name)
        told = next(each for each in admin.authentication().scopes if each.scope == PUBLISHERS)
    scope = scope_of(told)
    keys = sorted(scope.keys, key=lambda each: each.key_id == scope.active_key_id)  # the active one is last
    return {"publisher_id": claimed.publisher_id, "epoch": claimed.epoch, "keys": keys}


def publishing(
    channel: Channel, groups: GroupMap | None, known: dict[str, Any], filter_place: str
) -> AbstractContextManager[MulticastPublisher]:
    """A publisher; with a filter module on this host, what it sends is in a ring that the filter reads, too."""
    module = find_filter(filter_place)
    if module is None:
        return MulticastPublisher(channel, groups=groups, **known)
    return offered_publisher(channel, module, groups=groups, **known)
