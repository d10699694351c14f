"""The clients of a router: their open publishers and flows, and their rights."""

import hashlib
from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from penstock.assured.config import EndpointConfig, RouterConfig
from penstock.assured.core.router._cleaning import own_publisher
from penstock.assured.core.router._delivery import active_flow, close_flow, flows_of, open_flow
from penstock.assured.core.router._intake import PublishBatch
from penstock.assured.core.router._tables import Tables
from penstock.assured.core.router.endpoints import Endpoint, Endpoints
from penstock.assured.core.router.events import Instruction, LinkOpened, RefusalCode, SendData, SendMessage
from penstock.assured.wire.control import EndpointNamed, FlowActive, tell_last
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import PenstockError
from penstock.security.core.entitlement import Entitlement
from penstock.security.core.token import Grant
from penstock.topics.table import InterestTable

ALL = 2**64 - 1
DELAY_NS_MAX = 2**61
"""Longer than any retention time; the sum with a wall-clock time fits into 63 bits."""


class RefusedRequest(PenstockError):
    """A client's request is refused; the router continues."""

    def __init__(self, code: RefusalCode, what: str, *, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.refusal: RefusalCode = code


class Link:
    def __init__(self, event: LinkOpened, seed: bytes) -> None:
        self.number = event.link
        self.name = event.name
        self.is_operator = event.is_operator
        self._may_define = event.may_define
        self.publishers: set[int] = set()
        self.flows: dict[int, int] = {}
        """By handle: the number of the endpoint."""
        self.told: dict[int, EndpointConfig] = {}
        """Endpoints whose numbers were sent to the client, with the sent configuration."""
        self._sends = _table(event.grants, "send", seed)
        self._receives = None if event.grants is None else Entitlement(event.grants, seed=seed)

    @property
    def is_free_to_send(self) -> bool:
        return self._sends is None

    def entitled(self, batch: PublishBatch) -> NDArray[numpy.uint8] | None:
        """For each message, True if this client may publish it; None: all of them."""
        if self._sends is None:
            return None
        offsets, _ = self._sends.match_batch(memoryview(batch.data), batch.topic_offsets, batch.topic_sizes)
        return (offsets[1:] > offsets[:-1]).astype(numpy.uint8)

    def consume_delay_s(self, endpoint: str) -> int | None:
        """The minimum age of the endpoint's messages for this client (0: live), or None if the client may not consume.
        The right is that to receive the endpoint's own topic."""
        return 0 if self._receives is None else self._receives.receive_delay_s(f"queue.{endpoint}")

    def may_consume(self, endpoint: str) -> bool:
        return self.consume_delay_s(endpoint) is not None

    @property
    def may_define(self) -> bool:
        """True if it may create, change and delete endpoints."""
        return self.is_operator or (self._may_define and self._receives is None)


def _table(grants: tuple[Grant, ...] | None, action: str, seed: bytes) -> InterestTable | None:
    if grants is None:
        return None
    table = InterestTable(seed=seed)
    for grant in grants:
        if grant.action == action:
            table.add(grant.pattern, 0)
    return table


def _owner(link: Link) -> int:
    """A hash of the client's name for the log; never 0."""
    return int.from_bytes(hashlib.blake2b(link.name.encode(), digest_size=8).digest(), "little") or 1


class Links:
    def __init__(self, config: RouterConfig, tables: Tables, endpoints: Endpoints, seed: bytes) -> None:
        self._config = config
        self._tables = tables
        self._endpoints = endpoints
        self._seed = seed
        self._links: dict[int, Link] = {}

    def __len__(self) -> int:
        return len(self._links)

    def get(self, link: int) -> Link | None:
        return self._links.get(link)

    def open(self, event: LinkOpened) -> None:
        if len(self._links) >= self._config.links_max:
            raise RefusedRequest("limit", f"{len(self._links)} clients are connected already")
        self._links[event.link] = Link(event, self._seed)

    def close(self, link: Link) -> list[Instruction]:
        """Close a link with its publishers and flows."""
        for handle in link.publishers:
            self._tables.publishers.close(handle, self._tables.wall_ns)
        found = [each for handle in list(link.flows) for each in self.close_flow(link, handle)]
        del self._links[link.number]
        return found

    def open_publisher(self, link: Link, publisher: int) -> int:
        """Open a publisher and return its handle; it leaves its previous link."""
        if not 0 < publisher < 2**64:
            raise RefusedRequest("malformed", f"invalid publisher id {publisher}")
        handle, before = self._tables.publishers.link(publisher)
        if before and (other := self._links.get(before)) is not None:
            other.publishers.discard(handle)
            self._tables.publishers.close(handle, self._tables.wall_ns)
        handle = self._tables.open_publisher(publisher, link.number)
        own_publisher(self._tables, handle, _owner(link))
        link.publishers.add(handle)
        return handle

    def check_owner(self, link: Link, publisher: int) -> None:
        """Refuse a publisher of another client: it could use up the publisher's numbers, whose later messages would
        count as known."""
        if self._tables.publishers.owner(publisher) not in (0, _owner(link)):
            raise RefusedRequest("not_entitled", f"publisher {publisher} belongs to another client")

    def close_publisher(self, link: Link, handle: int) -> None:
        if handle not in link.publishers:
            raise RefusedRequest("unknown_publisher", f"there is no publisher {handle} on this link")
        link.publishers.discard(handle)
        self._tables.publishers.close(handle, self._tables.wall_ns)

    def open_flow(self, link: Link, endpoint: Endpoint, credit: int) -> tuple[int, bool]:
        """Open a flow. Return its handle, and True if it gets messages."""
        delay_s = link.consume_delay_s(endpoint.name)
        if delay_s is None:
            raise RefusedRequest("not_entitled", f"this client may not consume from {endpoint.name}")
        delay_ns = min(delay_s * NS_PER_SECOND, DELAY_NS_MAX)
        handle = open_flow(
            self._tables, link.number, endpoint.number, min(credit, 2**63), self._config.flows_max, delay_ns
        )
        link.flows[handle] = endpoint.number
        is_active = endpoint.config.consumers == "shared"
        return handle, is_active or active_flow(self._tables, endpoint.number)[0] == handle

    def close_flow(self, link: Link, handle: int, read: int | None = None) -> list[Instruction]:
        """Close a flow; at an exclusive endpoint, the next one becomes active. `read` is that of CloseFlow."""
        number = link.flows.pop(handle)
        endpoint = self._endpoints.by_number(number)
        is_exclusive = endpoint is not None and endpoint.config.consumers == "exclusive"
        was_active = is_exclusive and active_flow(self._tables, number)[0] == handle
        close_flow(self._tables, handle, link.number, ALL if read is None else read)
        if not was_active:
            return []
        next_handle, next_link = active_flow(self._tables, number)
        return [SendMessage(next_link, FlowActive(next_handle))] if next_handle else []

    def acknowledgements(self) -> list[Instruction]:
        """Return the acknowledgements for publishers, after the names of endpoints that they refer to."""
        found: list[Instruction] = []
        for link, frames, full in self._tables.publishers.take_acknowledgements():
            found += self.names([(link, number) for number in full])
            found.append(SendData(link, frames))
        return found

    def names(self, mentions: Sequence[tuple[int, int]]) -> list[Instruction]:
        """Send the names of endpoints that links know only by number."""
        found: list[Instruction] = []
        for number, endpoint in mentions:
            link, named = self._links.get(number), self._endpoints.by_number(endpoint)
            if link is not None and named is not None and link.told.get(endpoint) is not named.config:
                tell_last(link.told, endpoint, named.config)
                config = named.config
                message = EndpointNamed(endpoint, config.name, config.messages_max, config.bytes_max)
                found.append(SendMessage(number, message))
        return found

    def flows_of(self, endpoint: Endpoint) -> list[tuple[int, int]]:
        """(handle, link) of each flow."""
        return flows_of(self._tables, endpoint.number)

    def all(self) -> list[Link]:
        return list(self._links.values())
