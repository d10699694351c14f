"""Counters with one vocabulary, so that the same thing has the same name in every core, log and dashboard.

A core counts with plain integers; base.metrics shows them to Prometheus. Whatever is dropped, conflated, refused or
lost is counted under the Cause it had: no silent loss.
"""

from collections.abc import Callable, ItemsView, Iterator
from enum import StrEnum

from penstock.base.errors import LocalProtocolError


class Cause(StrEnum):
    """Why something did not go the ordinary way."""

    # bytes that are no packet of ours
    FOREIGN = "foreign"
    VERSION = "version"
    TRUNCATED = "truncated"
    LENGTH = "length"
    CHECKSUM = "checksum"
    KIND = "kind"
    # datagrams that fail the check of their authentication trailer
    UNAUTHENTICATED = "unauthenticated"
    UNKNOWN_KEY = "unknown_key"
    UNVOUCHED = "unvouched"
    FORGED = "forged"
    LEASE_ENDED = "lease_ended"
    STALE_REQUEST = "stale_request"
    # packets that are well formed, but not wanted
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
    # messages of redundant streams that are not to be used
    FENCED = "fenced"
    UNSYNCHRONISED = "unsynchronised"
    # a sealed feed without a stream key that may be used
    NO_KEY = "no_key"
    # what a receiver had to give up
    GONE = "gone"
    NO_ANSWER = "no_answer"
    WINDOW = "window"
    MEMORY = "memory"
    RESTARTED = "restarted"
    EXPIRED = "expired"
    FRAGMENT = "fragment"
    # what a filter module leaves to its applications to ask for
    UNREPAIRED = "unrepaired"
    # what is wrong with a source message
    NUMBER = "number"
    RANGE = "range"
    MISSING = "missing"
    ENUMERATION = "enumeration"
    TEXT = "text"
    FUNCTION = "function"
    VALUE = "value"
    STATE_LIMIT = "state_limit"
    # source messages about what was never received
    UNKNOWN_ORDER = "unknown_order"
    UNKNOWN_TRADE = "unknown_trade"
    UNKNOWN_INSTRUMENT = "unknown_instrument"
    DUPLICATE_ORDER = "duplicate_order"
    EXCESS = "excess"
    DECIMALS = "decimals"
    # a clean end
    GOODBYE = "goodbye"
    # a model in band that contradicts one that is known
    MODEL_CONFLICT = "model_conflict"
    # why a connection was refused or ended
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
    # who was given no shared memory, besides
    FOREIGN_USER = "foreign_user"
    UNKNOWN_SEGMENT = "unknown_segment"


CATALOGUE = {
    "packets_sent": "Packets handed to the network for the first time",
    "packets_received": "Well-formed packets taken from the network",
    "packets_dropped": "Packets thrown away, by cause",
    "messages_published": "Messages accepted from the application",
    "messages_delivered": "Messages handed to the application",
    "messages_judged": "Messages that a filter module looked at",
    "sessions_deferred": "Consumers that had no room for the running sessions and receive them later",
    "records_withdrawn": "Current records that a distribution node withdrew, because their session was over",
    "messages_unwanted": "Messages of those that none of its applications wants",
    "messages_lost": "Messages known to be lost, by cause",
    "messages_conflated": "Messages that an agent left out for newer ones on their topics, as a slow child wants it",
    "source_messages": "Messages of a source stream, each counted once: by lines, and by converters with their type",
    "source_messages_malformed": "Source messages that could not be converted, by cause",
    "source_messages_unmatched": "Source messages about what the converter does not know, by cause",
    "source_messages_repeated": "Source messages that had been converted before",
    "messages_converted": "Application messages made from source messages, by output",
    "messages_merged": "Messages of redundant streams that were the first of their number",
    "messages_suppressed": "Messages of redundant streams that were not used, by cause",
    "messages_degraded": "Messages that a root acknowledged without the standby's copy that it is to wait for",
    "messages_dropped": "Messages that a client did not show to its application, by cause",
    "messages_held": "Messages held back until what was missing before them came from another stream",
    "discontinuities": "Times that the numbers of a source stream did not go on, by reason",
    "packets_lost": "Packets reported lost, by cause",
    "packets_left": "Packets that a filter module missed and left to the receivers to ask for",
    "keep_alives_sent": "Empty packets sent to show that the publisher lives",
    "nacks_sent": "Repair requests sent",
    "nacks_received": "Repair requests received",
    "stream_sources_changed": "Times that the newest authentic packet of a stream came from another address",
    "nacks_limited": "Repair requests that were dropped, or answered in part, because too much was asked for",
    "nacks_suppressed": "Repair requests not sent, because somebody else had asked",
    "repairs_sent": "Packets sent again",
    "repairs_received": "Packets received that were sent again",
    "repairs_suppressed": "Repairs not sent, because the same one had just been sent",
    "repairs_unavailable": "Packets asked for that are no longer kept",
    "datagrams_unsent": "Datagrams that the operating system would not send, by its error",
    "messages_unsealed": "Messages of a sealed feed that were not sent, because there was no key that may be used",
    "datagrams_overflowed": "Datagrams that the kernel threw away because a socket's buffer was full",
    "datagrams_discarded": "Datagrams thrown away on purpose, to show what loss does",
    "streams_started": "Streams (publisher, group, epoch) met for the first time",
    "streams_ended": "Streams that ended, by cause",
    "records_written": "Journal records that are on the disk",
    "syncs": "Batches of journal records brought to the disk",
    "disk_failures": "Writes and syncs that failed, by the system's error",
    "segments_created": "Journal segments begun",
    "segments_removed": "Journal segments removed, because they were too old or too many",
    "records_served": "Journal records sent to followers",
    "connections_opened": "Connections whose handshake succeeded",
    "connections_refused": "Connections that ended before their handshake was done, by cause",
    "connections_closed": "Connections that ended after their handshake, by cause",
    "parents_lost": "Times that a subscriber or publisher of a tree lost its agent",
    "votes_unsent": "What a voter of a pair of routers had to say to one that was not there",
    "messages_skipped": "Control messages passed over, by cause",
    "clock_samples": "Exchanges of timestamps that went into an estimate",
    "clock_jumps": "Times that a clock was seen to have been set, here or at the peer",
    "subscriptions_opened": "Streams that an adapter opened for a subscriber over TCP",
    "subscriptions_refused": "Streams over TCP that an adapter did not open, by cause",
    "subscriptions_ended": "Streams over TCP that ended, by cause",
    "messages_committed_inline": "Messages that a router committed and acknowledged inline, without its event loop",
    "messages_streamed": "Messages sent to subscribers over TCP",
    "packets_streamed": "Packets sent to subscribers over TCP",
    "bytes_streamed": "Bytes of packets sent to subscribers over TCP",
    "messages_contributed": "Messages taken from subscribers that contribute",
    "packets_unrecorded": "Published packets that are missing in the adapter's journal, by cause",
    "packets_overrun": "Published packets that were overwritten before the stream service took them",
    "terms_claimed": "Times that an adapter became the active one of its feed, by reason",
    "source_messages_sent": "Messages that a player sent, each counted once",
    "source_requests_answered": "Requests for lost source messages that a player answered",
    "source_requests_refused": "Requests for source messages that a player could not answer, by cause",
    "source_duplicates": "Messages of a source stream that another line had brought before",
    "source_messages_lost": "Messages of a source stream that no line and no request brought, by cause",
    "source_resets": "Times that a source was seen to count anew without having said so",
    "retransmissions_requested": "Requests for messages of a source stream to be sent again",
    "lines_silent": "Times that a line of a source stream fell silent",
    "applications_attached": "Applications that a filter module began to serve",
    "applications_refused": "Applications that a filter module did not serve, or no longer, by cause",
    "requests_refused": "Requests of applications or consumers that a node did not carry out, by cause",
    "consumers_attached": "Consumers that a distribution node began to serve",
    "consumers_refused": "Consumers that a distribution node did not serve, or no longer, by cause",
    "upstream_missed": "Packets of a group of distribution nodes that did not come, but are made up for",
    "upstream_lost": "Times that a distribution node lost the node above, or its feed lost messages",
    "handovers_granted": "Segments of shared memory handed to a consumer",
    "handovers_refused": "Consumers that were given no segment, by cause",
    "rings_overrun": "Rings of shared memory whose reader was too slow and lost its place",
}
"""Every counter there is, with its help text."""


class Counters:
    """The counters of one component; `labels` tell several of its kind apart.

    One thread counts, any other may read meanwhile: reading begins with a copy, which the interpreter makes in one go.
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
        """Something on the hot path counts by itself: ask it whenever the counter is read. What it says comes on top
        of what was added, and of what others say."""
        _check_name(name)
        self._watched.append((name, cause, value))

    def __getitem__(self, name: str) -> int:
        """The counter's value, summed over its causes."""
        return sum(value for (known, _), value in self._snapshot() if known == name)

    def by_cause(self, name: str) -> dict[str, int]:
        return {cause: value for (known, cause), value in self._snapshot() if known == name}

    def _snapshot(self) -> ItemsView[tuple[str, str], int]:
        """For readers in other threads. A list of the items would not do: making it allocates, which may start a
        garbage collection and let another thread in; copying a dictionary does not."""
        values = self._values.copy()
        for name, cause, value in self._watched:
            if counted := value():
                values[name, cause] = values.get((name, cause), 0) + counted
        return values.items()

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """(name, cause, value) of everything counted so far."""
        for (name, cause), value in self._snapshot():
            yield name, cause, value


def _check_name(name: str) -> None:
    if name not in CATALOGUE:
        raise LocalProtocolError(f"no counter is called {name!r}", hint="add it to base.counters.CATALOGUE")
