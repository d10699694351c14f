"""The driver of a feed adapter, from configuration to shutdown.

    adapter = LiveAdapter(config)
    await adapter.node.start()
    await adapter.node.run(stop)

The data thread (data_path.py) receives, converts and publishes. The loop's thread has the rest: connections to other
adapters (peering.py), the stream service (subscriber_server.py), the administration server (administration.py), health
and metrics. The loop's thread posts its calls to the data thread's mailbox.
"""

import asyncio
import hashlib
import time
from functools import partial
from pathlib import Path

from penstock.base.clock import NS_PER_SECOND, SystemRandomness
from penstock.base.errors import ConfigurationError
from penstock.base.log import logger
from penstock.base.status_page import Health as PageHealth
from penstock.feed.adapter_config import AdapterConfig
from penstock.feed.core.adapter import FeedAdapter
from penstock.feed.core.events import (
    AdapterInstruction,
    HealthMeasured,
    LineChanged,
    PersistTerm,
    RoleChanged,
    SendPeer,
    ServiceChanged,
    SynchronisationChanged,
    TermPersisted,
)
from penstock.feed.core.models_in_band import ModelsInBand
from penstock.feed.core.service.service import ServiceIdentity, StreamService
from penstock.feed.core.status import PERCENTILES, AdapterStatus, StreamStatus, gauges_of, shown_latency
from penstock.feed.core.sync.health import Health
from penstock.feed.live.administration import Administration, open_to_all
from penstock.feed.live.data_path import DataPath
from penstock.feed.live.health_meter import HealthMeter, Totals
from penstock.feed.live.outbound import Outbound
from penstock.feed.live.peering import Peering
from penstock.feed.live.recorder import Recorder
from penstock.feed.live.service_backend import DataThreadBackend
from penstock.feed.live.service_pump import ServicePump
from penstock.feed.live.sources import RepairSocket, SourceStreams
from penstock.feed.live.stream_sources import ReplaySource, SoupSource
from penstock.feed.live.subscriber_server import SubscriberServer
from penstock.feed.live.term_file import TermFile
from penstock.middleware import Publisher
from penstock.middleware.live.epoch_file import claim_epoch
from penstock.net.secret import Secret, read_secret
from penstock.net.tls import client_context, server_context
from penstock.runtime.node import Node, in_thread
from penstock.security.core.brokering import Revoked
from penstock.security.live.key_lease import ReceivingLease

HEALTH_SECONDS = 0.5
PERSIST_AGAIN_SECONDS = 0.5

log = logger("feed.adapter")


class LiveAdapter:
    """One running adapter. `node` starts and closes it; `status()` describes it after the start."""

    def __init__(self, config: AdapterConfig) -> None:
        self.config = config
        self.node = node = Node(config, label="adapter")
        self._state_directory = Path(config.state_directory)
        self._terms = TermFile(self._state_directory / "terms")
        now_ns = time.monotonic_ns()
        self._counters = self.node.counters("feed.adapter")
        self._sources = SourceStreams(config, node.metrics)
        self._core = FeedAdapter(
            self._sources.arbiters,
            self._sources.converters,
            config.sync_config(),
            term=self._terms.highest(),
            now_ns=now_ns,
            counters=self.node.counters("feed"),
            dates=self._sources.dates,
        )
        self._socket = RepairSocket(config.publish.channel)
        self._answering = ReceivingLease(use="answering", adapter=config.name)
        self._outbound = self._make_outbound(now_ns)
        self._recorder = self._make_recorder()
        self._service_tap = self._outbound.tap()
        self._data = DataPath(
            self._core,
            self._outbound,
            self._sources.datagram_sources,
            self._socket,
            lambda instructions: node.call(self._carry_out, instructions),
            node.fail,
            live_ids=self._sources.live_ids,
            spin=config.spin,
            cpu=config.cpu,
        )
        self._stream_sources: list[ReplaySource | SoupSource] = [
            (SoupSource if each.framing == "soupbintcp" else ReplaySource)(each, self._data)
            for each in config.streams
            if each.framing in ("file", "soupbintcp")
        ]
        self._administration = self._make_administration()
        self._server = self._make_server()
        self._pump = ServicePump(self._service_tap, self._server, self._counters)
        self._peering = Peering(
            config.feed,
            config.index,
            config.peers,
            self._data.submit,
            secret=_secret_in(config.peers.secret_file),
            server_tls=server_context(config.peers.tls),
            client_tls=client_context(config.peers.tls),
            counters=self.node.counters("feed.peers"),
        )
        self._meter = HealthMeter(spins=config.spin)
        self._measured_health = Health()
        self._is_online = True
        node.add("sockets", close=self._close_sockets)
        if self._recorder is not None:
            node.add("recorder", start=self._recorder.start, close=in_thread(self._recorder.stop))
        node.add("server", start=self._server.start, close=self._server.close)
        node.add("service pump", start=self._pump.start, close=self._pump.stop)
        node.add("data path", start=self._data.start, close=in_thread(self._data.stop))
        for source in self._stream_sources:
            node.add("source", start=source.start, close=source.stop)
        node.add("peers", start=self._peering.start, close=self._peering.close)
        if (administration := self._administration) is not None:
            start = partial(self._start_administration, administration)
            node.add("administration", start=start, close=administration.stop)
        node.add("log", start=self._log_start)
        node.add_task(self._measure)
        node.show(self.status, self._health, gauges=lambda: gauges_of(self.status()))

    def _start_administration(self, administration: Administration) -> None:
        administration.start(self._server.port)

    def _log_start(self) -> None:
        log.info("adapter_started", name=self.config.name, feed=self.config.feed, epoch=self._outbound.publisher.epoch)

    def _close_sockets(self) -> None:
        if self._data.is_running:  # it hangs, and still uses them
            return
        for tap in self._outbound.taps:
            tap.close()
        self._sources.close()
        self._socket.close()

    def status(self) -> AdapterStatus:
        """May be called in any thread. Each value is consistent, but values may be of slightly different times."""
        config, synchroniser = self.config, self._core.synchroniser
        state = synchroniser.state(time.monotonic_ns())
        latencies = self._data.latencies()
        return AdapterStatus(
            name=config.name,
            feed=config.feed,
            index=config.index,
            role=synchroniser.role,
            term=synchroniser.term,
            is_online=state.is_online,
            is_synchronised=state.is_synchronised,
            publisher_id=self._outbound.publisher.publisher_id,
            epoch=self._outbound.publisher.epoch,
            service_port=self._server.port,
            peers_port=self._peering.port,
            peers=self._peering.connected,
            is_registered=self._administration is not None and self._administration.is_registered,
            streams=[
                StreamStatus(
                    each.id,
                    each.name,
                    synchroniser.is_synchronised(each.id),
                    self._core.converters[each.id].next_source_sequence,
                    self._core.converters[each.id].next_message_sequence,
                )
                for each in config.streams
            ],
            subscribers=self._server.service.accounts.open_streams(),
            health=self._measured_health,
            score=self._measured_health.score(),
            journal_trouble="" if self._recorder is None else self._recorder.trouble,
            sealing_lease_s=self._outbound.lease.left_s if self._outbound.is_sealed else None,
            sealing_trouble=self._outbound.lease.trouble if self._outbound.is_sealed else "",
            latency_us=shown_latency({q: latencies.percentile(q) for q in PERCENTILES}),
        )

    # Parts

    def _make_outbound(self, now_ns: int) -> Outbound:
        config = self.config.publish
        publisher = Publisher(
            config.publisher_id or publisher_id_of(self.config.feed, self.config.index),
            claim_epoch(self._state_directory / "epoch"),
            config.publisher,
            self.node.counters("publisher"),
            is_authenticated=bool(self.config.admin.url) and config.transport == "multicast",
            lease=self._answering.flag,
            seed=SystemRandomness().below(2**64),
        )
        outlet = self._socket.outlet if config.transport == "multicast" else None
        used = self._sources.models if config.models_in_band else []
        models = ModelsInBand(used, round(config.models_interval_s * NS_PER_SECOND))
        return Outbound(publisher, config.channel, outlet, now_ns=now_ns, is_sealed=config.sealed, models=models)

    def _make_recorder(self) -> Recorder | None:
        config = self.config.journal
        if not config.path:
            return None
        publisher = self._outbound.publisher
        return Recorder(
            self._outbound.tap(),
            Path(config.path),
            config.journal,
            publisher_id=publisher.publisher_id,
            group=self._outbound.group,
            epoch=publisher.epoch,
            counters=self.node.counters("journal"),
        )

    def _make_administration(self) -> Administration | None:
        if not self.config.admin.url:
            return None
        return Administration(
            self.config,
            self._outbound,
            self._sources.model_references(),
            post=self._data.post,
            revoke=self._revoke,
            answering=self._answering,
        )

    def _make_server(self) -> SubscriberServer:
        config = self.config
        contributions = {each.name: each.id for each in config.streams if each.framing == "contribution"}
        identity = ServiceIdentity(
            config.name,
            self._outbound.publisher.publisher_id,
            tuple(each.id for each in config.streams),
            tuple(contributions),
        )
        verify = open_to_all if self._administration is None else self._administration.gate.verify
        counters = self.node.counters("feed.service")
        service = StreamService(identity, verify, config.service, counters, self._outbound.models.messages)
        service.accounts.show_in(self.node.metrics)
        journal_path = Path(config.journal.path) if config.journal.path else None
        backend = DataThreadBackend(self._data, contributions, journal_path)
        return SubscriberServer(
            service,
            backend,
            secret=_secret_in(config.service.secret_file),
            tls=server_context(config.service.tls),
            counters=self.node.counters("feed.service.connections"),
        )

    # Instructions of the core

    def _carry_out(self, instructions: list[AdapterInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case SendPeer(index, message):
                    self._peering.send(index, message)
                case PersistTerm(term):
                    self.node.spawn(self._persist(term))
                case RoleChanged(role, term, why):
                    log.info("role", adapter=self.config.name, role=role, term=term, why=why)
                    self._server.service.term = term
                    if self._administration is not None:
                        self._administration.announce_term(term)
                case SynchronisationChanged(stream_id, is_synchronised, why):
                    if is_synchronised:
                        log.info("synchronised", stream=stream_id, why=why)
                    else:
                        log.warning("unsynchronised", stream=stream_id, why=why)
                case ServiceChanged(is_online, why):
                    self._is_online = is_online
                    log.error("service_changed", adapter=self.config.name, is_online=is_online, why=why)
                case LineChanged(stream_id, line, is_silent):
                    if is_silent:
                        log.warning("line_silent", stream=stream_id, line=line)
                    else:
                        log.info("line_heard", stream=stream_id, line=line)
                case _:
                    log.debug("adapter", instruction=type(instruction).__name__)

    async def _persist(self, term: int) -> None:
        """Write a term to the disk. The adapter uses it only then; waiting is reported."""
        while True:
            try:
                await asyncio.to_thread(self._terms.keep, term)
                break
            except ConfigurationError as error:
                log.error("term_not_kept", term=term, error=str(error))
                await asyncio.sleep(PERSIST_AGAIN_SECONDS)
        self._data.submit(TermPersisted(term))

    async def _measure(self) -> None:
        while True:
            counters = self._outbound.counters
            sent = counters["messages_published"]
            errors = self._sources.errors() + counters["datagrams_unsent"]
            due = sent + self._outbound.messages_unsent
            self._measured_health = self._meter.measure(Totals(errors, sent, due, self._data.lag_ns))
            self._data.submit(HealthMeasured(self._measured_health))
            if self._outbound.is_sealed:
                self._outbound.lease.tell(adapter=self.config.name)
            await asyncio.sleep(HEALTH_SECONDS)

    def _revoke(self, event: Revoked) -> None:
        self._server.revoke(event.reason, subscription_id=event.subscription_id)

    def _health(self) -> PageHealth:
        status = self.status()
        troubles = [] if not status.journal_trouble else [f"not recording: {status.journal_trouble}"]
        if not status.is_online:
            troubles.append("off-line")
        if status.sealing_trouble:
            troubles.append(status.sealing_trouble)
        may_send = status.sealing_lease_s is None or status.sealing_lease_s > 0
        detail = "; ".join([f"{status.role}, term {status.term}, score {status.score}", *troubles])
        return PageHealth(status.is_online and may_send, detail)


def _secret_in(path: str) -> Secret | None:
    return read_secret(Path(path)) if path else None


def publisher_id_of(feed: str, index: int) -> int:
    """A publisher id that is equal at every start, and different for every adapter of every feed."""
    digest = hashlib.blake2b(f"{feed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
