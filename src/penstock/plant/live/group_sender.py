"""Adaptive updates for several nodes below at once, by multicast (docs/reference/protocol/distribution-datagrams.md).

To the engine the group is one consumer, which wants what its members want: an update is written once, and one datagram
brings it to all of them. Nothing is kept for repair. Which records a node has missed, and not got since, is known here.
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
"""Bytes of events that are sent together: they fit into one packet, so that little is lost with it."""

GROUP_KEY_ID = 2
VERSION_MAX = 2**64 - 1


class NewestSent:
    """Of each item the update that was sent last, and in which packets."""

    def __init__(self) -> None:
        self._sent: dict[int, tuple[int, int, Cut]] = {}  # by item; those sent last are last

    def note(self, update: Cut, first_sequence: int, last_sequence: int) -> None:
        """Sent in these packets, which are the newest."""
        self._sent.pop(update.item, None)
        self._sent[update.item] = (first_sequence, last_sequence, update)

    def forget(self, item: int) -> None:
        self._sent.pop(item, None)

    def missed(self, first_sequence: int, last_sequence: int) -> list[Cut]:
        """What somebody lacks who did not get these packets, in the order in which it was sent. An item that was sent
        again since is not among it: what came later makes up for it, or is missed itself."""
        found: list[Cut] = []
        for first, last, update in reversed(self._sent.values()):
            if last < first_sequence:
                break
            if first <= last_sequence:
                found.append(update)
        return found[::-1]


class GroupSender:
    """The events of the group, as a consumer of this node; one thread at a time."""

    def __init__(
        self,
        config: DatagramsConfig,
        counters: Counters,
        publish: Publish = MulticastPublisher,
        random: Callable[[int], bytes] = random_bytes,
    ) -> None:
        self.channel = Channel.parse(config.group, interface=config.interface)
        self.key = AuthenticationKey(GROUP_KEY_ID, random(KEY_SIZE))
        """All members get it, so each of them could forge packets of the group."""
        self._publisher = publish(self.channel, counters=counters, config=FORGETFUL, keys=(self.key,))
        self._publisher.publish(TOPIC, b"")  # from now on it is alive, and can be heard
        self._newest = NewestSent()
        self._brings_after: dict[int, int] = {}  # by item: updates with later versions go to the group

    @property
    def publisher_id(self) -> int:
        return self._publisher.publisher_id

    @property
    def port(self) -> int:
        """From which packets come."""
        return self._publisher.address[1]

    @property
    def next_sequence(self) -> int:
        return self._publisher.next_sequence

    def brings(self, update: Cut) -> bool:
        """Whether members get this one, or a newer one, by the group."""
        return (
            update.kind == EventKind.UPDATE
            and update.cls == TransmissionClass.ADAPTIVE
            and update.version > self._brings_after.get(update.item, VERSION_MAX)
        )

    def send(self, data: bytes) -> None:
        """Whole events. Only adaptive updates go to the group: the rest each member has from its own stream."""
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
        """To all members."""
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
