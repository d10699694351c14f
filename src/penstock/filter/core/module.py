"""The filter module: receives packets of all publishers, and sends each consumer packets with only its messages.

The parts: pass_through.py receives packets in order, traffic.py forwards them, repairs.py answers repair requests of
applications; consumers.py, interests.py and joined_groups.py have the applications, their interests, and the groups.
"""

from collections.abc import Iterable, Sequence

from penstock.base.clock import NS_PER_MS, Randomness
from penstock.base.core import Tick, refuse
from penstock.base.counters import Cause, Counters
from penstock.base.errors import LimitError
from penstock.filter.config import FilterConfig
from penstock.filter.core.consumers import Application, Audience
from penstock.filter.core.events import (
    Attach,
    ChangeMap,
    DatagramReceived,
    DatagramsReceived,
    Detach,
    FilterEvent,
    FilterInstruction,
    ForgetModels,
    Join,
    LearnModel,
    Leave,
    Want,
)
from penstock.filter.core.forwarded_stream import ForwardedStream
from penstock.filter.core.interests import InterestBook
from penstock.filter.core.joined_groups import Changes, JoinedGroups
from penstock.filter.core.kernel._forward import Forwarder
from penstock.filter.core.ledger import Entry, Ledger
from penstock.filter.core.pass_through import PassThroughReceiver
from penstock.filter.core.repairs import Repairs
from penstock.filter.core.traffic import Traffic
from penstock.middleware import Address, StreamKey, Unicast
from penstock.middleware.core.events import ReceiverInstruction
from penstock.middleware.core.incoming_stream import IncomingStream
from penstock.model import MessageModel
from penstock.topics import GroupMap, InterestTable, TableLimits
from penstock.topics.table import SEED_SIZE
from penstock.wire import Authenticator, DatagramBatch, Kind, Outbox, Packet


class FilterModule:
    """The core of one module. Interests without groups use those of the map or, without a map, all `groups`;
    conditions can refer to the `models`. With an `authenticator`, datagrams from the network that are not authentic
    change nothing, and datagrams between the module and an application have trailers with random keys of the
    registration (Attached)."""

    def __init__(
        self,
        config: FilterConfig,
        randomness: Randomness,
        counters: Counters | None = None,
        *,
        groups: Sequence[int] = (),
        group_map: GroupMap | None = None,
        models: Iterable[MessageModel] = (),
        keeps_books: bool = False,
        authenticator: Authenticator | None = None,
    ) -> None:
        self.config = config
        self.counters = counters or Counters("filter")
        limits = TableLimits(interests_max=config.interests_max + config.interests_per_application_max)
        seed = bytes(randomness.below(256) for _ in range(SEED_SIZE))
        self.table = InterestTable(limits, seed=seed)
        self.forwarder = Forwarder(
            self.table,
            consumers_max=config.applications_max,
            slots_max=config.conditions_max,
            outbox=Outbox.for_consumers(config.applications_max),
            seed=randomness.below(2**64),
        )
        self.receiver = PassThroughReceiver(config, self, randomness, self.counters, authenticator)
        self._authenticator = authenticator
        random = None if authenticator is None else lambda size: bytes(randomness.below(256) for _ in range(size))
        self._audience = Audience(config, self.forwarder, random)
        self._interests = InterestBook(config, self.table, self.forwarder, groups, group_map, models)
        self._groups = JoinedGroups(config.groups_max)
        self._ledger = Ledger() if keeps_books else None
        self._traffic = Traffic(config, self.forwarder, self._audience, self._ledger)
        self._repairs = Repairs(config, self.forwarder, self.counters)
        forwarder = self.forwarder
        self.counters.watch("messages_unwanted", lambda: forwarder.messages_unwanted)
        self.counters.watch("messages_delivered", lambda: forwarder.messages_out)
        self.counters.watch("packets_sent", lambda: forwarder.packets_out)

    def handle(self, event: FilterEvent, now_ns: int) -> list[FilterInstruction]:
        self._traffic.begin()
        match event:
            case DatagramsReceived():
                self._traffic.carry(self.receiver.receive_batch(event.batch, now_ns), now_ns)
            case DatagramReceived():
                self._traffic.carry(self.receiver.handle(event, now_ns), now_ns)
            case Tick():
                return self._tick(now_ns)
            case Attach():
                instructions = self._audience.attach(event)
                self._trust_applications()
                return instructions
            case Want():
                return self._want(event)
            case Detach():
                return self._detach(event)
            case ChangeMap():
                return self._change_map(event, now_ns)
            case LearnModel():
                self._interests.learn(event.model, self._audience.applications.values())
            case ForgetModels(model_ids):
                self._interests.forget(model_ids, self._audience.applications.values())
            case _:
                refuse(self, event)
        return self._traffic.answers()

    def prepare(self, want: Want) -> None:
        """Parse a Want before it is handled, so that handling is fast; raises errors early. May be called in any
        thread."""
        self._interests.prepare(want)

    def receive_rest(self, batch: DatagramBatch, start: int, now_ns: int) -> list[FilterInstruction]:
        """Continue handle(DatagramsReceived) with the datagrams from `start` on: receiver.in_order has taken the
        earlier ones, which are already forwarded and sent (live/_relay.pyx)."""
        self._traffic.begin()
        self._traffic.carry(self.receiver.receive_rest(batch, None, now_ns, start=start), now_ns)
        return self._traffic.answers()

    def accounts(self) -> list[Entry]:
        """Return the accounts closed since the last call, and all open ones. Only a module that `keeps_books` has
        accounts; then call it regularly."""
        if self._ledger is None:
            return []
        return self._ledger.take(self._traffic.streams.values(), self._audience.consumers.values())

    @property
    def applications(self) -> list[int]:
        """The attached applications."""
        return list(self._audience.applications)

    def streams(self) -> list[ForwardedStream]:
        """The current streams, including recently ended ones."""
        return list(self._traffic.streams.values())

    def next_deadline_ns(self) -> int | None:
        deadlines = (
            self.receiver.next_deadline_ns(),
            self._traffic.next_deadline_ns(),
            self._groups.next_deadline_ns(),
        )
        return min((each for each in deadlines if each is not None), default=None)

    # Called by the receiver

    def listens(self, group: int) -> bool:
        return group in self._groups

    def starts(self, stream: IncomingStream) -> None:
        self._traffic.incoming[stream.key, stream.epoch] = stream

    def changes_source(self, stream: IncomingStream) -> None:
        self._traffic.tell_source(stream.key, stream.epoch)

    def source_of_ended(self, key: StreamKey, epoch: int) -> Address | None:
        stream = self._traffic.ended(key, epoch)
        return stream.source if stream is not None else None

    def hear(
        self, key: StreamKey, packet: Packet, event: DatagramReceived, now_ns: int
    ) -> list[ReceiverInstruction] | None:
        if self.config.repair == "receivers":
            return self._pass_on(key, packet, event)
        if packet.kind != Kind.NACK:
            return None
        application = self._audience.at(event.source)
        if application is not None:
            return [*self._repair(key, packet, application, now_ns)]
        if self.config.receiver.nack == "multicast":
            return None  # another module requested the packets, and all modules get the answer
        self.counters.add("packets_dropped", cause=Cause.UNKNOWN_APPLICATION)
        return []

    def _repair(self, key: StreamKey, packet: Packet, application: Application, now_ns: int) -> list[Unicast]:
        stream = self._traffic.streams.get(key)
        if stream is None or stream.epoch != packet.epoch or key.group not in application.listening:
            self.counters.add("packets_dropped", cause=Cause.UNKNOWN_STREAM)
            return []
        if application.key is not None and not application.requests.admits(packet.sequence, packet.gap):
            self.counters.add("packets_dropped", cause=Cause.STALE_REQUEST)
            return []
        return self._repairs.answer(stream, application, packet.ranges, now_ns)

    def _pass_on(self, key: StreamKey, packet: Packet, event: DatagramReceived) -> list[ReceiverInstruction] | None:
        """Pass on a message about a stream that applications repair themselves."""
        stream = self._traffic.streams.get(key)
        if stream is None or stream.epoch != packet.epoch:
            return None
        is_answer = packet.kind == Kind.GONE and event.source == stream.source
        if not is_answer and not (packet.kind == Kind.NACK and self.config.receiver.nack == "multicast"):
            return None
        listeners = self._traffic.listeners(key.group)
        return [each.unicast(bytes(packet.data)) for each in listeners if each.address != event.source]

    # Applications

    def _want(self, event: Want) -> list[FilterInstruction]:
        application = self._audience.known(event.application)
        needed, freed = self._interests.change(application, event, self._groups.check)
        return self._change(application, self._groups.change(application, needed, freed))

    def _detach(self, event: Detach) -> list[FilterInstruction]:
        application = self._audience.applications.get(event.application)
        if application is None:
            return []
        self._interests.clear(application)
        self._interests.forget((), self._audience.applications.values())
        answers = self._change(application, self._groups.forget(application))
        answers += self._audience.detach(application)
        self._trust_applications()
        return answers

    def _trust_applications(self) -> None:
        """Repair requests of applications are authentic under the keys of their registrations; all other packets,
        even from an application's address, under the keys of publishers."""
        if self._authenticator is not None:
            applications = self._audience.applications.values()
            peers = {each.address: (each.key,) for each in applications if each.key is not None}
            self._authenticator.trust(peers, requests_only=True)

    def _change_map(self, event: ChangeMap, now_ns: int) -> list[FilterInstruction]:
        if len(event.groups.groups) > self.config.groups_max:
            raise LimitError(f"the map has {len(event.groups.groups)} groups", hint="raise groups_max")
        answers: list[FilterInstruction] = []
        applications = self._audience.applications
        at_ns = now_ns + self.config.map_transition_ms * NS_PER_MS
        for number, (needed, freed) in self._interests.change_map(event.groups, applications.values()).items():
            self._groups.retire(applications[number], freed, at_ns)
            answers += self._change(applications[number], self._groups.change(applications[number], needed))
        return answers

    def _change(self, application: Application, changes: Changes) -> list[FilterInstruction]:
        """Apply changed groups."""
        for group in changes.new_to_application:
            self._traffic.listen(application, group, is_new_to_consumer=group in changes.new_to_consumer)
        for group in changes.old_to_consumer:
            self._traffic.leave(application.consumer.number, group)
        for group in changes.left:
            self._traffic.forget(group)
            self.receiver.forget(group)
        joins: list[FilterInstruction] = [Join(group) for group in changes.joined]
        return joins + self._traffic.answers() + [Leave(group) for group in changes.left]

    def _tick(self, now_ns: int) -> list[FilterInstruction]:
        answers: list[FilterInstruction] = []
        for number, freed in self._groups.retired(now_ns):
            application = self._audience.applications[number]
            answers += self._change(application, self._groups.change(application, freed=freed))
        self._traffic.carry(self.receiver.handle(Tick(), now_ns), now_ns)
        self._traffic.expire(now_ns)
        return answers + self._traffic.answers()
