"""Adaptive updates for several downstream nodes at once, by multicast
(docs/reference/protocol/distribution-datagrams.md).

For the engine the group is one consumer with the interests of all its members: an update is written once and sent to
all of them in one datagram. Packets are not kept for repair; GroupSender tracks the records that a node has missed.
"""

from collections.abc import Callable, Sequence

from penstock.base.clock import random_bytes
from penstock.base.counters import Counters
from penstock.engine import EventKind, TransmissionClass
from penstock.middleware.live import MulticastPublisher
from penstock.net.udp import Channel
from penstock.plant.config import DatagramsConfig
from penstock.plant.core.event_blocks import FORGETFUL, TOPIC, Cut, Publish, blocks_of, cut_events, joined
from penstock.wire import AuthenticationKey
from penstock.wire.authentication import KEY_SIZE

PACKED_SIZE_MAX = 1_200
"""Maximum size of events sent together. They fit into one packet, so that a lost packet costs few events."""

GROUP_KEY_ID = 2
VERSION_MAX = 2**64 - 1


class NewestSent:
    """The last sent update of each item, with its packets."""

    def __init__(self) -> None:
        self._sent: dict[int, tuple[int, int, Cut]] = {}  # by item; the last sent ones are last

    def note(self, update: Cut, first_sequence: int, last_sequence: int) -> None:
        """Record an update sent in these packets, the newest ones."""
        self._sent.pop(update.item, None)
        self._sent[update.item] = (first_sequence, last_sequence, update)

    def forget(self, item: int) -> None:
        self._sent.pop(item, None)

    def missed(self, first_sequence: int, last_sequence: int) -> list[Cut]:
        """Return the updates that a node without these packets lacks, in the order of sending. An item that was sent
        again since is left out: the node has the later update, or reports it as missed too."""
        found: list[Cut] = []
        for first, last, update in reversed(self._sent.values()):
            if last < first_sequence:
                break
            if first <= last_sequence:
                found.append(update)
        return found[::-1]


class GroupSender:
    """Sends the events of the group's consumer, in one thread at a time."""

    def __init__(
        self,
        config: DatagramsConfig,
        counters: Counters,
        publish: Publish = MulticastPublisher,
        random: Callable[[int], bytes] = random_bytes,
    ) -> None:
        self.channel = Channel.parse(config.group, interface=config.interface)
        self._random = random
        self.key = AuthenticationKey(GROUP_KEY_ID, random(KEY_SIZE))
        """All members have this key, so each of them could forge packets of the group."""

        self.next_key: AuthenticationKey | None = None
        """A key that members already accept, but that is not yet used for sending."""
        self._publisher = publish(self.channel, counters=counters, config=FORGETFUL, keys=(self.key,))
        self._publisher.publish(TOPIC, b"")  # the stream is alive from now on, and members can receive it
        self._newest = NewestSent()
        self._brings_after: dict[int, int] = {}  # by item: updates with higher versions are sent to the group

    @property
    def publisher_id(self) -> int:
        return self._publisher.publisher_id

    @property
    def port(self) -> int:
        """The source port of packets."""
        return self._publisher.address[1]

    @property
    def next_sequence(self) -> int:
        return self._publisher.next_sequence

    @property
    def keys(self) -> tuple[AuthenticationKey, ...]:
        """The keys under which members accept packets."""
        return (self.key,) if self.next_key is None else (self.key, self.next_key)

    def make_next_key(self) -> None:
        """Create the next key, because a former member knows the current ones. Members get it before
        activate_next_key()."""
        newest = self.key if self.next_key is None else self.next_key
        self.next_key = AuthenticationKey(newest.key_id + 1, self._random(KEY_SIZE))
        self._publisher.authenticate(self.keys, self.key.key_id)

    def activate_next_key(self) -> None:
        """Use the next key from the next packet on. Members still accept packets under the old key."""
        if self.next_key is not None:
            self._publisher.authenticate(self.keys, self.next_key.key_id)

    def retire_key(self) -> None:
        """Drop the old key. The caller tells the members."""
        if self.next_key is not None:
            self.key, self.next_key = self.next_key, None
            self._publisher.authenticate(self.keys, self.key.key_id)

    def brings(self, update: Cut) -> bool:
        """True if the group carries this update or a newer one to its members."""
        return (
            update.kind == EventKind.UPDATE
            and update.cls == TransmissionClass.ADAPTIVE
            and update.version > self._brings_after.get(update.item, VERSION_MAX)
        )

    def send(self, data: bytes) -> None:
        """Send complete events. Only adaptive updates go to the group: each member gets other events in its own
        stream."""
        updates: list[Cut] = []
        for event in cut_events(data):
            if event.kind == EventKind.REMOVE:
                self._brings_after.pop(event.item, None)
                self._newest.forget(event.item)
            elif event.kind == EventKind.WITHDRAW:
                self._newest.forget(event.item)
            elif event.kind == EventKind.REFRESH:
                self._brings_after.setdefault(event.item, event.version)
            elif event.kind == EventKind.UPDATE and event.cls == TransmissionClass.ADAPTIVE:
                self._brings_after.setdefault(event.item, event.version - 1)
                updates.append(event)
        self.send_updates(updates)

    def send_updates(self, updates: Sequence[Cut]) -> None:
        """Send updates to all members."""
        for block in blocks_of(updates, PACKED_SIZE_MAX):
            first = self._publisher.next_sequence
            self._publisher.publish(TOPIC, joined(block))
            last = self._publisher.next_sequence - 1
            for each in block:
                self._newest.note(each, first, last)

    def missed(self, first_sequence: int, last_sequence: int) -> list[Cut]:
        return self._newest.missed(first_sequence, last_sequence)

    def close(self) -> None:
        self._publisher.close(linger=False)
