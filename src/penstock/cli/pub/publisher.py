"""The publisher of `penstock pub`: the source of its id, and the shared memory for the host's filter module."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import penstock
from penstock.base.errors import ConfigurationError
from penstock.filter.client.discovery import find_filter
from penstock.filter.client.ring_offer import offered_publisher
from penstock.middleware.live import MulticastPublisher
from penstock.net.udp import Channel
from penstock.topics import GroupMap


@contextmanager
def publishing(
    channel: Channel,
    groups: GroupMap | None,
    filter_place: str,
    *,
    publisher_id: int | None,
    epochs: Path | None,
    connect: str | None,
    credentials: Path | None,
    name: str | None,
) -> Iterator[MulticastPublisher]:
    """Create a publisher with an id from the options, from the administration server, or a random one. If this host
    has a filter module, the filter reads the packets from a ring. A publisher of the administration server follows
    its key rotations."""
    if (publisher_id is None) != (epochs is None):
        raise ConfigurationError("--id and --epochs require each other", hint="the file keeps the publisher's epochs")
    if len({connect is None, credentials is None, name is None}) != 1:
        raise ConfigurationError("--connect, --credentials and --name require each other")
    if connect is not None and publisher_id is not None:
        raise ConfigurationError("the id comes from --id or from --connect, not from both")
    with ExitStack() as stack:
        make: Callable[..., MulticastPublisher] = MulticastPublisher
        identity: dict[str, Any] = {}
        if connect is not None and credentials is not None:
            make = stack.enter_context(penstock.connect(connect, credentials=credentials)).publisher
            identity = {"name": name}
        elif publisher_id is not None:
            identity = {"publisher_id": publisher_id, "epoch_path": epochs}
        module = find_filter(filter_place)
        made: AbstractContextManager[MulticastPublisher] = (
            make(channel, groups=groups, **identity)
            if module is None
            else offered_publisher(channel, module, groups=groups, make=make, **identity)
        )
        yield stack.enter_context(made)
