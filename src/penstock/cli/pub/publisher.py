"""The publisher of `penstock pub`: the source of its id, and the shared memory for the host's filter module."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import penstock
from penstock.base.errors import ConfigurationError
from penstock.middleware import PublisherConfig
from penstock.middleware.live import MulticastPublisher
from penstock.net.udp import Channel
from penstock.topics import GroupMap

NONE = "none"
"""No filter module: the default of --filter."""

CONFIG = PublisherConfig(linger_ms=200)
QUIET_SECONDS, SETTLE_SECONDS = 0.1, 2.0


def settle(publisher: MulticastPublisher, is_over: Callable[[], bool]) -> None:
    """Wait until no receiver has requested a repair for QUIET_SECONDS, at most SETTLE_SECONDS."""
    deadline = time.monotonic() + SETTLE_SECONDS
    repaired = -1
    while repaired != (repaired := publisher.counters["repairs_sent"]) and not is_over():
        time.sleep(max(0.0, min(QUIET_SECONDS, deadline - time.monotonic())))
        if time.monotonic() >= deadline:
            return


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
        make: Callable[..., Any] = MulticastPublisher
        identity: dict[str, Any] = {"config": CONFIG}
        if connect is not None and credentials is not None:
            make = stack.enter_context(penstock.connect(connect, credentials=credentials)).publisher
            identity["name"] = name
        elif publisher_id is not None:
            identity |= {"publisher_id": publisher_id, "epoch_path": epochs}
        if filter_place != NONE:
            from penstock.filter.client import find_filter, offered_publisher

            if (module := find_filter(filter_place)) is not None:
                make = partial(offered_publisher, address=module, make=make)
        yield stack.enter_context(make(channel, groups=groups, **identity))
