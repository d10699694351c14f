"""Downstream nodes that receive events by UDP: each has a stream, and nodes with equal rights share one group.

For the engine the group is a consumer, which exists from the first member on and subscribes to the adaptive
subscriptions of all members. Members get the group's events only once (group_sender.py). The first member's rights are
the rights of the group; nodes with other rights get all events in their own streams.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.base.clock import random_bytes
from penstock.base.counters import Counters
from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.engine import control
from penstock.engine.control import RefusalCode
from penstock.engine.core import events
from penstock.middleware.live import MulticastPublisher
from penstock.plant.config import DatagramsConfig
from penstock.plant.core.access import Consumer
from penstock.plant.core.event_blocks import Publish, Sender
from penstock.plant.live.datagrams import DatagramSender
from penstock.plant.live.group_sender import GroupSender
from penstock.security.core.refusal import RefusalError

log = logger("plant.chaining")


class _Shared:
    """A subscription of the group."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.users: set[tuple[int, int]] = set()
        """The members' subscriptions behind it: consumer and number."""


class Admitting(Protocol):
    """The access control of a node."""

    def enter(self, host: str, login: control.Login) -> Consumer: ...


class Distributing(Protocol):
    """A node's data path."""

    def handle(self, event: events.EngineEvent) -> None: ...

    def attach(self, party: Consumer, sender: Sender | None = None) -> object: ...


class DownstreamNodes:
    """Called in the thread of the loop; the methods under "Under the lock" need the data path's lock."""

    def __init__(
        self,
        config: DatagramsConfig,
        access: Admitting,
        data: Distributing,
        counters: Counters,
        publish: Publish = MulticastPublisher,
        random: Callable[[int], bytes] = random_bytes,
    ) -> None:
        self._random = random
        self.senders: dict[int, DatagramSender] = {}  # by consumer
        self._config = config
        self._data = data
        self._counters = counters
        self._publish = publish
        self._group: GroupSender | None = None
        self._party: Consumer | None = None  # the group, as a consumer
        self._members: set[int] = set()
        self._rights = ""  # rights of all members
        self._shared: dict[tuple[str, ...], _Shared] = {}
        self._last_number = 0
        self._lost_members = 0  # members that left since the group's key was made
        if config.group:
            host, _, port = config.group.rpartition(":")
            login = control.Login(f"group-{host}", "datagram", is_node=True, port=int(port))
            self._party = access.enter(host, login)

    # Under the lock

    def open(self, party: Consumer) -> DatagramSender:
        """Create the sender of a node that has been admitted."""
        if not self._config.interface or not party.is_node:
            raise RefusalError(
                RefusalCode.TRANSPORT, "this node sends datagrams only to nodes, and only if `datagrams` is configured"
            )
        group = self._joined(party)
        place = (party.host, party.port)
        sender = DatagramSender(self._config, place, self._counters, group, self._publish, self._random)
        self.senders[party.number] = sender
        return sender

    def subscribed(self, party: Consumer, request: control.Subscribe, topics: Sequence[str]) -> None:
        """Subscribe the group to a member's topics. If there is no room, the member gets these events in its own
        stream."""
        if party.number not in self._members or self._party is None or request.cls != "adaptive":
            return
        shared = self._shared.get(key := tuple(topics))
        if shared is None:
            self._last_number += 1
            shared = _Shared(self._last_number)
            try:
                self._data.handle(events.Subscribe(self._party.number, shared.number, topics, "adaptive"))
            except PenstockError as error:
                log.warning("group_is_full", code=error.code, what=str(error))
                return
            self._shared[key] = shared
        shared.users.add((party.number, request.number))

    def unsubscribed(self, party: Consumer, number: int) -> None:
        self._release(lambda user: user == (party.number, number))

    def missed(self, party: Consumer, said: control.Missed) -> None:
        if (sender := self.senders.get(party.number)) is None:
            return
        sender.missed(said.first_sequence, said.last_sequence)
        if sender.group is None:
            self._leave(party.number)

    # The group's key, which former members know. Each step runs under the lock; the caller waits between steps.

    @property
    def has_lost_members(self) -> bool:
        return self._lost_members > 0 and self._group is not None

    def make_next_key(self) -> None:
        if self._group is not None:
            self._lost_members = 0
            self._group.make_next_key()

    def activate_next_key(self) -> None:
        if self._group is not None:
            self._group.activate_next_key()

    def retire_key(self) -> None:
        if self._group is not None:
            self._group.retire_key()

    def group_keys(self) -> tuple[list[int], control.GroupKeys]:
        """Return the members, and the keys that they have to learn."""
        keys = () if self._group is None else self._group.keys
        return sorted(self._members), control.GroupKeys([control.GroupKey(each.key_id, each.key) for each in keys])

    def leave(self, party: Consumer) -> DatagramSender | None:
        """Remove a node; the caller closes the returned sender."""
        self._leave(party.number)
        return self.senders.pop(party.number, None)

    def _joined(self, party: Consumer) -> GroupSender | None:
        """Return the group, if the node takes group updates and has the rights of the members."""
        if self._party is None or not party.takes_group or (self._members and party.rights.text != self._rights):
            return None
        if self._group is None:
            self._group = GroupSender(self._config, self._counters, self._publish, self._random)
            self._data.attach(self._party, self._group)
        self._rights = party.rights.text
        self._members.add(party.number)
        return self._group

    def _leave(self, consumer: int) -> None:
        if consumer in self._members:
            self._members.discard(consumer)
            self._lost_members += 1
        self._release(lambda user: user[0] == consumer)

    def _release(self, is_gone: Callable[[tuple[int, int]], bool]) -> None:
        for topics, shared in list(self._shared.items()):
            shared.users = {each for each in shared.users if not is_gone(each)}
            if not shared.users and self._party is not None:
                del self._shared[topics]
                self._data.handle(events.Unsubscribe(self._party.number, shared.number, is_told=False))

    # In the loop's thread

    def check_rights(self, party: Consumer, entitled: str) -> None:
        """Refuse a member's renewal with rights that differ from the group's."""
        if party.number in self._members and entitled != self._rights:
            raise RefusalError(RefusalCode.TOKEN, "the new rights differ from the group's: log in again")

    def close(self) -> None:
        """Close all senders."""
        for each in (*self.senders.values(), self._group):
            if each is not None:
                each.close()
