"""Counters with one vocabulary: the same name in every core, log and dashboard.

A core counts with plain integers, which base.metrics exports to Prometheus. Every dropped, conflated, refused or lost
item is counted with a Cause: no silent loss.
"""

from collections.abc import Callable, ItemsView, Iterator
from enum import StrEnum

from penstock.base.errors import LocalProtocolError


class Cause(StrEnum):
    """Why an item was not handled normally."""

    # bytes that are not a Penstock packet
    FOREIGN = "foreign"
    VERSION = "version"
    TRUNCATED = "truncated"
    LENGTH = "length"
    CHECKSUM = "checksum"
    KIND = "kind"
    # datagrams that fail the check of their authentication tag
    UNAUTHENTICATED = "unauthenticated"
    UNKNOWN_KEY = "unknown_key"
    UNVOUCHED = "unvouched"
    FORGED = "forged"
    LEASE_ENDED = "lease_ended"
    STALE_REQUEST = "stale_request"
    # valid packets that are not wanted
    DUPLICATE = "duplicate"
    BEFORE_JOIN = "before_join"
    STALE_EPOCH = "stale_epoch"
    STALE_TERM = "stale_term"
    REPLAY = "replay"
    ID_COLLISION = "id_collision"
    UNKNOWN_STREAM = "unknown_stream"
    OTHER_PLAN = "other_plan"
    UNEXPECTED = "unexpected"
    STREAM_LIMIT = "stream_limit"
    UNKNOWN_APPLICATION = "unknown_application"
    # messages of redundant streams that are not used
    FENCED = "fenced"
    UNSYNCHRONISED = "unsynchronised"
    # a sealed feed without a valid stream key
    NO_KEY = "no_key"
    # missing messages that a receiver gave up
    GONE = "gone"
    NO_ANSWER = "no_answer"
    WINDOW = "window"
    MEMORY = "memory"
    RESTARTED = "restarted"
    EXPIRED = "expired"
    FRAGMENT = "fragment"
    # packets that a filter module leaves to its applications to repair
    UNREPAIRED = "unrepaired"
    # errors in a source message
    NUMBER = "number"
    RANGE = "range"
    MISSING = "missing"
    ENUMERATION = "enumeration"
    TEXT = "text"
    FUNCTION = "function"
    VALUE = "value"
    STATE_LIMIT = "state_limit"
    # source messages that refer to something never received
    UNKNOWN_ORDER = "unknown_order"
    UNKNOWN_TRADE = "unknown_trade"
    UNKNOWN_INSTRUMENT = "unknown_instrument"
    DUPLICATE_ORDER = "duplicate_order"
    EXCESS = "excess"
    DECIMALS = "decimals"
    # a clean shutdown
    GOODBYE = "goodbye"
    # a model in band that conflicts with a known one
    MODEL_CONFLICT = "model_conflict"
    # reasons to refuse or end a connection
    CLOSED = "closed"
    CUT = "cut"
    SILENT = "silent"
    SLOW = "slow"
    CONNECTION_LIMIT = "connection_limit"
    HANDSHAKE = "handshake"
    AUTHENTICATION = "authentication"
    MESSAGE = "message"
    REFUSED = "refused"
    FAILED = "failed"
    # additional reasons to refuse shared memory
    FOREIGN_USER = "foreign_user"
    UNKNOWN_SEGMENT = "unknown_segment"


CATALOGUE = {
    "packets_sent": "Packets sent for the first time, without repairs",
    "packets_received": "Well-formed packets received",
    "packets_dropped": "Packets dropped, by cause",
    "messages_published": "Messages accepted from the application",
    "messages_delivered": "Messages delivered to the application",
    "messages_judged": "Messages that a filter module evaluated",
    "sessions_deferred": "Consumers without room for the running sessions, which they receive later",
    "records_withdrawn": "Current records that a distribution node withdrew, because their session ended",
    "messages_unwanted": "Evaluated messages that no application of the filter module wants",
    "messages_lost": "Messages known to be lost, by cause",
    "messages_conflated": "Messages that an agent replaced by newer ones on the same topics, for a slow child",
    "source_messages": "Messages of a source stream, each counted once: by receivers, and by converters by type",
    "source_messages_malformed": "Source messages that could not be converted, by cause",
    "source_messages_unmatched": "Source messages that refer to something unknown to the converter, by cause",
    "source_messages_repeated": "Source messages that were already converted",
    "messages_converted": "Application messages made from source messages, by output",
    "messages_merged": "Messages of redundant streams that arrived first with their number",
    "messages_suppressed": "Messages of redundant streams that were suppressed, by cause",
    "messages_degraded": "Messages that a root acknowledged without the required copy on its standby",
    "messages_dropped": "Messages that a client did not deliver to its application, by cause",
    "messages_held": "Messages held back until another stream filled the gap before them",
    "discontinuities": "Discontinuities in the numbers of a source stream, by reason",
    "packets_lost": "Packets reported lost, by cause",
    "packets_left": "Packets that a filter module missed and left to its applications to repair",
    "keep_alives_sent": "Keep-alive packets sent",
    "nacks_sent": "Repair requests sent",
    "nacks_received": "Repair requests received",
    "stream_sources_changed": "Changes of the source address of a stream's newest authentic packet",
    "nacks_limited": "Repair requests dropped, or answered in part, because of the rate limit",
    "nacks_suppressed": "Repair requests suppressed, because another receiver sent the same request",
    "repairs_sent": "Packets retransmitted",
    "repairs_received": "Retransmitted packets received",
    "repairs_suppressed": "Retransmissions suppressed, because the same packet was just retransmitted",
    "repairs_unavailable": "Requested packets that are no longer in the retransmission buffer",
    "datagrams_unsent": "Datagrams that the operating system refused to send, by error",
    "messages_unsealed": "Messages of a sealed feed not sent for lack of a valid key",
    "datagrams_overflowed": "Datagrams that the kernel dropped because a socket's buffer was full",
    "datagrams_discarded": "Datagrams dropped on purpose, to simulate loss",
    "streams_started": "Streams (publisher, group, epoch) seen for the first time",
    "streams_ended": "Streams that ended, by cause",
    "records_written": "Journal records synced to disk",
    "syncs": "Syncs of journal records to disk",
    "disk_failures": "Failed writes and syncs, by error",
    "segments_created": "Journal segments created",
    "segments_removed": "Journal segments removed by retention",
    "records_served": "Journal records sent to followers",
    "connections_opened": "Connections whose handshake succeeded",
    "connections_refused": "Connections that ended before their handshake completed, by cause",
    "connections_closed": "Connections that ended after their handshake, by cause",
    "parents_lost": "Times that a subscriber or publisher of a tree lost its agent",
    "votes_unsent": "Votes that a voter of a router pair could not send to an unreachable router",
    "messages_skipped": "Control messages skipped, by cause",
    "clock_samples": "Timestamp exchanges used for an estimate",
    "clock_jumps": "Detected clock changes, here or at the peer",
    "subscriptions_opened": "Streams that an adapter opened for a subscriber over TCP",
    "subscriptions_refused": "Streams over TCP that an adapter refused, by cause",
    "subscriptions_ended": "Streams over TCP that ended, by cause",
    "messages_committed_inline": "Messages that a router stored and acknowledged by inline commit",
    "messages_streamed": "Messages sent to subscribers over TCP",
    "packets_streamed": "Packets sent to subscribers over TCP",
    "bytes_streamed": "Bytes of packets sent to subscribers over TCP",
    "messages_contributed": "Messages accepted from contributing subscribers",
    "packets_unrecorded": "Published packets that are missing in the adapter's journal, by cause",
    "packets_overrun": "Published packets overwritten before the stream service read them",
    "terms_claimed": "Times that an adapter became the active one of its feed, by reason",
    "source_messages_sent": "Messages that a player sent, each counted once",
    "source_requests_answered": "Requests for lost source messages answered by a player",
    "source_requests_refused": "Requests for source messages refused by a player, by cause",
    "source_duplicates": "Messages of a source stream already received on another line",
    "source_messages_lost": "Messages of a source stream received neither on a line nor on request, by cause",
    "source_resets": "Unannounced restarts of a source's numbering",
    "retransmissions_requested": "Requests to retransmit messages of a source stream",
    "lines_silent": "Times that a line of a source stream fell silent",
    "applications_attached": "Applications that a filter module began to serve",
    "applications_refused": "Applications that a filter module refused or detached, by cause",
    "requests_refused": "Requests of applications or consumers that a node refused, by cause",
    "consumers_attached": "Consumers that a distribution node began to serve",
    "consumers_refused": "Consumers that a distribution node refused or detached, by cause",
    "upstream_missed": "Packets missing from a group of distribution nodes, but replaced by other packets",
    "upstream_lost": "Losses of the connection to the upstream node, or of messages of its feed",
    "handovers_granted": "Shared memory segments handed over to consumers",
    "handovers_refused": "Shared memory handovers refused, by cause",
    "rings_overrun": "Shared memory rings overrun because of a slow reader",
}
"""Every counter, with its help text."""


class Counters:
    """The counters of one component; `labels` distinguish components of the same kind.

    One thread counts; any other thread may read, because reading begins with a copy that the interpreter makes
    atomically.
    """

    __slots__ = ("_values", "_watched", "component", "labels")

    def __init__(self, component: str, **labels: str) -> None:
        self.component = component
        self.labels = labels
        self._values: dict[tuple[str, str], int] = {}
        self._watched: list[tuple[str, str, Callable[[], int]]] = []

    def add(self, name: str, amount: int = 1, cause: str = "") -> None:
        key = (name, cause)
        try:
            self._values[key] += amount
        except KeyError:
            _check_name(name)
            self._values[key] = amount

    def watch(self, name: str, value: Callable[[], int], cause: str = "") -> None:
        """Read this counter from a function, for a hot path that counts by itself. The result is added to counts of
        add() and of other functions.
        """
        _check_name(name)
        self._watched.append((name, cause, value))

    def __getitem__(self, name: str) -> int:
        """Return the counter's value, summed over its causes."""
        return sum(value for (known, _), value in self._snapshot() if known == name)

    def by_cause(self, name: str) -> dict[str, int]:
        return {cause: value for (known, cause), value in self._snapshot() if known == name}

    def _snapshot(self) -> ItemsView[tuple[str, str], int]:
        """Return a snapshot for readers in other threads. Copying a dictionary is atomic; a list of its items is not,
        because allocating the list may start a garbage collection and let another thread run.
        """
        values = self._values.copy()
        for name, cause, value in self._watched:
            if counted := value():
                values[name, cause] = values.get((name, cause), 0) + counted
        return values.items()

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """Yield (name, cause, value) of all counts."""
        for (name, cause), value in self._snapshot():
            yield name, cause, value


def _check_name(name: str) -> None:
    if name not in CATALOGUE:
        raise LocalProtocolError(f"unknown counter {name!r}", hint="add it to base.counters.CATALOGUE")
