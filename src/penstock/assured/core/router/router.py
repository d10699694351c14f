"""The core of a message router: publish, match, store, queue, deliver, settle, delete.

A message is received (Data), checked, matched, given its id and logged (Append); when it is on the disk (Stored), it is
in the queues of its endpoints and its publisher is acknowledged; flows with credit get it (SendData); when every
endpoint has settled it, it is deleted. The work on messages is compiled (_intake, _delivery, _settling, _recovery,
_cleaning, _roles) and operates on the state of a router: messages, endpoints and flows (_tables.pxd), publishers
(_publishers.pxd), the end of the log (_log_writer.pxd), the cache (_record_cache.pxd) and the replication state
(_replication_state.pxd). This file defines the order of work.
"""

from penstock.assured.config import RouterConfig
from penstock.assured.core.pair.transaction_stream import TransactionStream
from penstock.assured.core.router._delivery import deliver_ready, give_credit
from penstock.assured.core.router._intake import PublishBatch, frames_of, replicated, stored
from penstock.assured.core.router._roles import enter_queues, leave_queues
from penstock.assured.core.router._settling import Settling, settle, sweep
from penstock.assured.core.router._tables import Tables
from penstock.assured.core.router.endpoint_lifecycle import EndpointLifecycle
from penstock.assured.core.router.endpoints import EVERY_ID, Endpoints, Models
from penstock.assured.core.router.events import (
    Became,
    Become,
    Data,
    DiskFailed,
    DiskRecovered,
    DiskTroubled,
    EndLink,
    Event,
    Instruction,
    LinkClosed,
    LinkOpened,
    Noted,
    RecordsRead,
    RefusalCode,
    Release,
    Replay,
    RequestReceived,
    SendData,
    SendMessage,
    Start,
    Stop,
    Stored,
)
from penstock.assured.core.router.intake import Intake
from penstock.assured.core.router.links import Link, Links, RefusedRequest
from penstock.assured.core.router.log import EPOCH_BITS, Log
from penstock.assured.core.router.replay import Replays
from penstock.assured.core.router.transactions import Transactions
from penstock.assured.wire._layout import (
    KIND_CREDIT,
    KIND_PUBLISH,
    KIND_SETTLE,
    OUTCOME_DEGRADED,
)
from penstock.assured.wire.control import (
    AlterEndpoint,
    Begin,
    CloseFlow,
    ClosePublisher,
    Commit,
    CreateEndpoint,
    DeleteEndpoint,
    Done,
    EmptyEndpoint,
    FlowOpened,
    OpenFlow,
    OpenPublisher,
    PublisherOpened,
    Refused,
    Rollback,
    RouterMessage,
    RouterRequest,
)
from penstock.base.clock import NS_PER_MS, Randomness
from penstock.base.core import Tick, refuse
from penstock.base.errors import LimitError, NotFoundError, PenstockError, RemoteProtocolError
from penstock.net.core.control import TEXT_SIZE_MAX

REPLICATE_BY = ("endpoint", "publisher", "topic")


def _tables_of(config: RouterConfig, seed: int) -> Tables:
    return Tables(
        seed,
        cache_size=config.cache_bytes,
        section_size_max=config.section_bytes,
        publisher_count_max=config.publishers_max,
        message_count_max=config.messages_max,
        payload_size_max=config.message_bytes_max,
        unsettled_max=config.unsettled_max,
        unsettled_bytes_max=config.unsettled_bytes_max,
        keeps_unmatched=config.retain_s > 0,
        refuses_unmatched=config.unmatched == "refuse",
        replicate_by=REPLICATE_BY.index(config.replicate_by),
    )


class MessageRouter:
    """`models` are those that conditions on payloads refer to."""

    def __init__(self, config: RouterConfig, randomness: Randomness, models: Models | None = None) -> None:
        seed = randomness.below(2**64)
        seeds = randomness.below(2**128).to_bytes(16, "little")
        self.config = config
        self.tables = _tables_of(config, seed)
        self.replication = self.tables.replication
        self.endpoints = Endpoints(config, self.tables, models or {}, seeds)
        self.links = Links(config, self.tables, self.endpoints, seeds)
        self.log = Log(config, self.tables, self.endpoints)
        self.intake = Intake(config, self.tables, self.endpoints, seeds)
        self.transactions = Transactions(config, self.tables, self.intake)
        self.endpoint_lifecycle = EndpointLifecycle(self.tables, self.endpoints, self.links, self.transactions)
        self.replays = Replays(config, self.tables, self.endpoints, self.log)
        self.trouble = ""
        """The reason why messages are refused, if they are."""
        self.is_active = False
        self.waits_for_secondary = False
        """True if synchronous messages wait until they are released."""
        self._becoming: tuple[int, Become] | None = None
        """The future role, effective when the record of this number is on the disk."""
        self._out: list[Instruction] = []
        self.wall_offset_ns = 0
        """Wall-clock time minus the clock of events."""
        self._sweep_ns: int | None = None
        self._is_started = False

    @property
    def epoch(self) -> int:
        return self.log.epoch

    @property
    def newest_id(self) -> int:
        """The newest message id."""
        return self.tables.next_id - 1

    @property
    def is_becoming_active(self) -> bool:
        """True if the router will be active, but the disk does not have the role yet."""
        return self._becoming is not None and self._becoming[1].role == "active"

    def handle(self, event: Event, now_ns: int) -> list[Instruction]:
        self._out = []
        self.tables.set_time(now_ns + self.wall_offset_ns)
        match event:
            case Data(number, data):
                self._data(number, bytes(data))
            case Stored(through):
                self._stored(through)
            case RecordsRead():
                replayed = self.replays.records_read(event)
                if replayed is None:
                    self.log.records_read(event, now_ns)
                else:
                    self._out += replayed
            case LinkOpened():
                self._open_link(event)
            case LinkClosed(number):
                if (link := self.links.get(number)) is not None:
                    self._close_link(link)
            case Replay():
                self.log.recover(event)
                return []
            case Start():
                self._start(event, now_ns)
            case DiskTroubled(why, is_relieved):
                self._trouble(why, is_relieved=is_relieved)
            case DiskFailed(why):
                self._trouble(why)
            case DiskRecovered():
                self._recovered()
            case Become():
                self._become(event)
            case Release(through_id, outcome):
                self.release(through_id, outcome)
            case Stop(reason):
                for link in self.links.all():
                    self._close_link(link)
                    self._out.append(EndLink(link.number, "not_active", reason or "the router stops"))
            case Tick():
                self.log.tick(now_ns)
                self.transactions.tick(now_ns)
            case RequestReceived(number, request):
                self._request(number, request, now_ns)
            case _:
                refuse(self, event)
        self._finish(now_ns)
        out, self._out = self._out, []
        return out

    def next_deadline_ns(self) -> int | None:
        deadlines = (
            self._sweep_ns,
            self._delayed_ns(),
            self.log.next_deadline_ns(),
            self.transactions.next_deadline_ns(),
        )
        return min((each for each in deadlines if each is not None), default=None)

    def _delayed_ns(self) -> int | None:
        """Time at which a message reaches the delay of a consumer's grant."""
        due_ns = self.tables.delayed_due_ns if self.is_active else 0
        return due_ns - self.wall_offset_ns if due_ns else None

    def _finish(self, now_ns: int) -> None:
        """Complete an event: deliveries, acknowledgements, records, cleaning."""
        if not self._is_started:
            return
        if self._sweep_ns is not None and now_ns >= self._sweep_ns:
            if self.is_active:
                sweep(self.tables, self.config.sweep_messages)
            self._sweep_ns = None
        if self.is_active:
            sends, fetches = deliver_ready(self.tables, self.config.fetch_messages_max, self.config.fetch_bytes_max)
            self._out += self.links.names(self.tables.take_mentions())
            self._out += [SendData(link, frames) for link, frames in sends]
            self._out += [self.log.fetch(*each) for each in fetches]
            self._out += self.replays.step()
        self._out += self.links.acknowledgements()
        self._out += self.log.clean()
        self._out += self.log.flush()
        if self._sweep_ns is None and self._needs_sweep():
            self._sweep_ns = now_ns + self.config.sweep_ms * NS_PER_MS

    def _needs_sweep(self) -> bool:
        tables = self.tables
        return bool(
            tables.expiring_count
            or tables.stuck_count
            or self.log.has_work
            or (tables.entry_count and self.endpoints.has_ages)
        )

    # The router's role

    def _start(self, event: Start, now_ns: int) -> None:
        self.wall_offset_ns = event.wall_ns - now_ns
        self.tables.set_time(event.wall_ns)
        self.log.start(event.next_sequence)
        self._is_started = True
        epoch = max(self.log.epoch, event.epoch)
        self._out += self.endpoint_lifecycle.define_configured([*self.config.endpoints])
        if event.role == "standby":  # the log must keep the role that the router had at its end
            leave_queues(self.tables)
            self._out.append(Became("standby", epoch))
        else:
            self._become(Become(event.role, epoch))
        self._note("started", messages=self.tables.message_count, endpoints=len(self.endpoints), epoch=epoch)

    def _become(self, event: Become) -> None:
        """Change the role: standby at once; active, when it is on the disk."""
        self.tables.skip_ids(event.epoch << EPOCH_BITS)
        if event.role == "standby":
            self.is_active = False
            for link in self.links.all():
                self._close_link(link)
                self._out.append(EndLink(link.number, "not_active", f"this router is the standby; go to {event.where}"))
            leave_queues(self.tables)
            self.transactions.forget()
        self._becoming = self.log.append_epoch(event.role, event.epoch), event

    def _stored(self, through: int) -> None:
        stored(self.tables, through)
        self._out += self.transactions.stored(through)
        self._out += self.log.stored(through)
        if not self.waits_for_secondary:
            self.release(EVERY_ID, OUTCOME_DEGRADED)
        if self._becoming is not None and through >= self._becoming[0]:
            event = self._becoming[1]
            self._becoming = None
            if event.role == "active" and not self.is_active:
                enter_queues(self.tables)
            self.is_active = event.role == "active"
            self.replays.take_over()
            self._out.append(Became(event.role, event.epoch))

    def release(self, through_id: int, outcome: int) -> None:
        """Synchronous messages up to this id no longer wait for the standby."""
        # Repeated messages wait for no new record on the disk.
        stored(self.tables, self.log.stored_through)
        self._out += self.transactions.stored(self.log.stored_through)
        replicated(self.tables, through_id, outcome)
        self._out += self.transactions.replicated(through_id, outcome)

    # Methods for the pair

    def pair_up(self, *, is_mirrored: bool) -> None:
        """Note that there is another router. `is_mirrored`: a standby takes over the active router's definitions."""
        self.waits_for_secondary = True
        self.replication.pair_up()
        self.endpoint_lifecycle.is_mirrored = is_mirrored

    @property
    def awaits_release(self) -> bool:
        """True if a message may wait for the standby."""
        is_stored = self.log.stored_through == self.log.newest_sequence
        is_waiting = (
            self.replication.unreplicated_count
            or (self.tables.waiting_count and is_stored)
            or self.tables.is_holding
            or self.transactions.is_waiting
        )
        return bool(is_waiting)

    def stream_transactions(self, streaming: TransactionStream | None) -> None:
        """Set where open transactions are streamed; None: nowhere."""
        self.transactions.streaming = streaming

    def is_replicated(self, batch: PublishBatch) -> bool:
        """True if some of these messages will be replicated, as far as that is known before they are accepted."""
        return self.intake.is_replicated(batch)

    def resume_replays(self) -> None:
        """Check fills after endpoints were created, deleted or changed."""
        self.replays.resume()

    def _trouble(self, why: str, *, is_relieved: bool = False) -> None:
        self.trouble = why
        self.tables.refuse(True)
        self.log.trouble(is_pressed=is_relieved)
        self._note("refuses", why=why, is_trouble=True)

    def _recovered(self) -> None:
        self.trouble = ""
        self.tables.refuse(False)
        self.log.recovered()
        self._note("accepts_again")

    def _note(self, what: str, *, is_trouble: bool = False, **values: str | int) -> None:
        self._out.append(Noted(what, values, is_trouble))

    # Links

    def _open_link(self, event: LinkOpened) -> None:
        try:
            if not self.is_active and not event.is_operator:
                raise RefusedRequest("not_active", "this router is the standby")
            self.links.open(event)
        except RefusedRequest as error:
            self._out.append(EndLink(event.link, error.refusal, error.what))

    def _close_link(self, link: Link) -> None:
        self.transactions.link_closed(link)
        self._out += self.links.close(link)

    def _data(self, number: int, data: bytes) -> None:
        link = self.links.get(number)
        if link is None:
            return
        try:
            for kind, at, size in frames_of(data):
                if kind == KIND_PUBLISH:
                    self._publish(link, data, at, size)
                elif kind == KIND_SETTLE:
                    self._settle(link, Settling(self.tables, number, data, at))
                elif kind == KIND_CREDIT:
                    give_credit(self.tables, number, data, at)
                else:
                    raise RemoteProtocolError(f"clients must not send data frames of kind {kind}")
        except RemoteProtocolError as error:
            self._close_link(link)
            self._out.append(EndLink(number, "malformed", str(error)))

    def _publish(self, link: Link, data: bytes, at: int, size: int) -> None:
        batch = PublishBatch(data, at)
        if batch.publisher not in link.publishers:
            raise RemoteProtocolError(f"there is no publisher {batch.publisher} on this link")
        if batch.transaction:
            # The batch is kept until the commit: copy its bytes only.
            self.transactions.publish(link, PublishBatch(data[at : at + size], 0))
        else:
            self.intake.accept(link, batch)

    def _settle(self, link: Link, settling: Settling) -> None:
        if settling.transaction:
            self.transactions.settle(settling, link)
        elif settling.endpoint:  # otherwise the flow was closed meanwhile: its messages are in the queue again
            settle(self.tables, settling.endpoint, *settling.entries(self.tables))

    # Requests

    def _request(self, link_number: int, request: RouterRequest, now_ns: int) -> None:
        link = self.links.get(link_number)
        if link is None:
            return
        try:
            if not self.is_active:
                self.endpoint_lifecycle.check_standby(link, request)
            self._carry_out(link, request, now_ns)
        except RefusedRequest as error:
            self._refuse(link, request, error.refusal, error.what, error.hint)
        except LimitError as error:
            self._refuse(link, request, "limit", error.what, error.hint)
        except NotFoundError as error:
            self._refuse(link, request, "unknown_endpoint", error.what, error.hint)
        except PenstockError as error:
            self._refuse(link, request, "malformed", str(error))

    def _refuse(self, link: Link, request: RouterRequest, code: RefusalCode, what: str, hint: str = "") -> None:
        self._answer(link, Refused(code, what[:TEXT_SIZE_MAX], request.number, hint[:TEXT_SIZE_MAX]))

    def _answer(self, link: Link, answer: RouterMessage) -> None:
        self._out.append(SendMessage(link.number, answer))

    def _carry_out(self, link: Link, request: RouterRequest, now_ns: int) -> None:
        match request:
            case OpenPublisher(number, publisher):
                self.links.check_owner(link, publisher)
                before = self.tables.publishers.link(publisher)
                if before[1] and (other := self.links.get(before[1])) is not None:
                    self.transactions.publisher_closed(other, before[0])
                handle = self.links.open_publisher(link, publisher)
                _, highest, transaction, _ = self.tables.publishers.state(handle, link.number) or (0, 0, 0, 0)
                self._answer(link, PublisherOpened(number, handle, highest, transaction))
            case ClosePublisher(number, handle):
                self.transactions.publisher_closed(link, handle)
                self.links.close_publisher(link, handle)
                self._answer(link, Done(number))
            case OpenFlow(number, name, credit):
                handle, is_active = self.links.open_flow(link, self.endpoint_lifecycle.endpoint(name), credit)
                self._answer(link, FlowOpened(number, handle, is_active))
            case CloseFlow(number, handle, read):
                if handle not in link.flows:
                    raise RefusedRequest("unknown_flow", f"there is no flow {handle} on this link")
                self.transactions.flow_closed(link, handle)
                self._out += self.links.close_flow(link, handle, read)
                self._answer(link, Done(number))
            case Begin(number, handle, transaction):
                self.transactions.begin(link, handle, transaction, now_ns)
                self._answer(link, Done(number))
            case Commit(number, handle, transaction):
                self._out += self.transactions.commit(link, handle, transaction, number)
            case Rollback(number, _, transaction):
                self.transactions.rollback(link, transaction)
                self._answer(link, Done(number))
            case CreateEndpoint() | AlterEndpoint() | DeleteEndpoint() | EmptyEndpoint():
                self._out += self.endpoint_lifecycle.change(link, request, self.trouble)
                self.replays.resume()
                self._answer(link, Done(request.number))
