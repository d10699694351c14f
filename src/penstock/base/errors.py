"""The hierarchy of errors. Each has a stable code for programs, a sentence for people, and a hint on the next step.

A caller's mistake (LocalProtocolError and similar) and a peer's misbehaviour (RemoteProtocolError) are different
branches, so that hostile input never looks like a bug of Penstock. Codes never change their meaning; a test pins them.
"""


class PenstockError(Exception):
    """Base class of all errors that Penstock raises deliberately.

    `where` names the place (a file, a key path, a byte offset), `hint` the next step.
    """

    code = "penstock"

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text} ({self.hint})" if self.hint else text


class ConfigurationError(PenstockError):
    """A configuration document is invalid."""

    code = "config"


class UnknownKeyError(ConfigurationError):
    """A configuration document has an unknown key."""

    code = "config-unknown-key"


class ModelError(PenstockError):
    """A message model is invalid, or a value does not fit its field."""

    code = "model"


class TableError(ConfigurationError):
    """A converter table or a source format is invalid."""

    code = "table"


class TopicError(PenstockError):
    """A topic or an interest is malformed."""

    code = "topic"


class FilterExpressionError(PenstockError):
    """A filter expression is malformed, or does not fit the message model."""

    code = "filter-expression"


class LimitError(PenstockError):
    """A size or number would exceed its configured limit."""

    code = "limit"


class LocalProtocolError(PenstockError):
    """This side misused a protocol: a bug in the caller."""

    code = "local-protocol"


class RemoteProtocolError(PenstockError):
    """The peer violated the protocol, or the bytes were damaged in transit."""

    code = "remote-protocol"


class PacketError(RemoteProtocolError):
    """A packet cannot be decoded; `cause` is one of base.counters.Cause."""

    code = "packet"

    def __init__(self, what: str, *, cause: str, where: str = "") -> None:
        super().__init__(what, where=where)
        self.cause = cause


class JournalError(PenstockError):
    """A journal cannot be opened, written or read."""

    code = "journal"


class JournalCorruptError(JournalError):
    """Acknowledged records are damaged or missing; nothing was changed on disk."""

    code = "journal-corrupt"


class JournalFullError(JournalError):
    """The disk is full; appends are refused until there is space."""

    code = "journal-full"


class JournalFailedError(JournalError):
    """The disk failed repeatedly; this writer accepts nothing more."""

    code = "journal-failed"


class JournalLockedError(JournalError):
    """Another writer has the journal open."""

    code = "journal-locked"


class JournalGoneError(JournalError):
    """The requested records are no longer kept; `first_sequence` is the oldest available one."""

    code = "journal-gone"

    def __init__(self, what: str, *, first_sequence: int, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.first_sequence = first_sequence


class LeaseMemoryError(PenstockError):
    """A voter cannot read the promises it made for a lease; without them it must not vote."""

    code = "lease-memory"


class ArchiveError(PenstockError):
    """An archive of tables cannot be opened, written or read."""

    code = "archive"


class ArchiveCorruptError(ArchiveError):
    """Documents or files of an archive are damaged or missing; nothing was changed on disk."""

    code = "archive-corrupt"


class ArchiveFullError(ArchiveError):
    """The disk is full; the last commit was not made."""

    code = "archive-full"


class ArchiveLockedError(ArchiveError):
    """Another process writes the archive."""

    code = "archive-locked"


class ArchiveSchemaError(ArchiveError):
    """A column of the new rows differs in type from the table's column; none of these rows was committed."""

    code = "archive-schema"


class ArchiveUnsettledError(ArchiveError):
    """A commit is incomplete, or may be; opening the archive for writing completes it."""

    code = "archive-unsettled"


class TaskError(PenstockError):
    """A task of a Spark job failed, repeatedly if Spark is configured to retry; the job had no effect."""

    code = "task"


class StateImageError(RemoteProtocolError):
    """An image of a conversion state is invalid, does not fit, or could not be completed; nothing was changed."""

    code = "state-image"


class FeedIndexError(PenstockError):
    """The index of a recorded feed cannot be built, or is damaged; the feed itself is unchanged."""

    code = "feed-index"


class FrameError(RemoteProtocolError):
    """A byte stream cannot be split into frames; `frames` has the complete frames before the error."""

    code = "frame"

    def __init__(self, what: str, *, frames: list[bytes] | None = None) -> None:
        super().__init__(what)
        self.frames = frames or []


class VersionError(RemoteProtocolError):
    """The two sides use incompatible versions of a protocol."""

    code = "version"


class AuthenticationError(RemoteProtocolError):
    """The peer did not prove that it knows the secret, or refused authentication."""

    code = "authentication"


class CredentialsExpiredError(AuthenticationError):
    """The credentials are correct but expired."""

    code = "credentials-expired"


class RateLimitedError(PenstockError):
    """Too many attempts; the next one is allowed after `retry_after_s`."""

    code = "rate-limited"

    def __init__(self, what: str, *, retry_after_s: int = 1, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.retry_after_s = retry_after_s


class TokenError(RemoteProtocolError):
    """A token is forged, was modified, or is for another purpose."""

    code = "token"


class TokenExpiredError(TokenError):
    """A token is valid but expired."""

    code = "token-expired"


class RevokedError(PenstockError):
    """An entitlement was revoked; the text gives the reason."""

    code = "revoked"


class NotEntitledError(PenstockError):
    """No rule of the policy grants the request to this client."""

    code = "not-entitled"


class ForbiddenError(PenstockError):
    """The request needs a role that this client does not have."""

    code = "forbidden"


class SealError(RemoteProtocolError):
    """A sealed message was modified in transit, or its content contradicts its header."""

    code = "seal"


class SealKeyError(SealError):
    """A sealed message needs a key that is not available (yet); `key_id` identifies the key."""

    code = "seal-key"

    def __init__(self, what: str, *, key_id: int, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.key_id = key_id


class RequestError(RemoteProtocolError):
    """A request to a server is malformed."""

    code = "request"


class NotFoundError(PenstockError):
    """A server has nothing with this name."""

    code = "not-found"


class StandbyError(PenstockError):
    """This server is a standby; send the request to the active server."""

    code = "standby"


class RefusedError(PenstockError):
    """The peer refused the request; the text has its reason, `peer_code` its error code."""

    code = "refused"

    def __init__(self, what: str, *, peer_code: str, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.peer_code = peer_code


class UnreachableError(PenstockError):
    """No answer from an address."""

    code = "unreachable"


class NoSuchHostError(UnreachableError):
    """A host name has no address."""

    code = "no-such-host"


class ConnectionLostError(PenstockError):
    """A connection ended without a goodbye."""

    code = "connection-lost"


class SharedMemoryError(PenstockError):
    """Shared memory is not available, or a handed-over descriptor is not a Penstock segment."""

    code = "shared-memory"


class OverrunError(SharedMemoryError):
    """The producer has overwritten events before this reader read them.

    `sequence` is the first lost event, `found` the event in its place.
    """

    code = "overrun"

    def __init__(self, sequence: int, found: str) -> None:
        super().__init__(
            f"event {sequence} was overwritten before it was read: {found}",
            hint="ask the producer to restart the ring, then call restart()",
        )
        self.sequence = sequence
        self.found = found


class RingClosedError(SharedMemoryError):
    """The producer has closed the ring, and all its events were read."""

    code = "ring-closed"


class ProducerGoneError(SharedMemoryError):
    """The producer's process ended without closing the ring, and all its events were read."""

    code = "producer-gone"


class RecordUnavailableError(SharedMemoryError):
    """No coherent version of the record was found within the bound; its writer may have died during a write."""

    code = "record-unavailable"


class HandoverError(PenstockError):
    """A segment was not handed over: the peer refused, or is not the expected one."""

    code = "handover"


class NotSynchronisedError(PenstockError):
    """A feed adapter's numbers must not be used now."""

    code = "not-synchronised"


class ProcessError(PenstockError):
    """A process of a plant failed to do its task."""

    code = "process"


class SimulationError(PenstockError):
    """A checker of the simulator found a broken guarantee; `hint` gives the command that replays the run."""

    code = "simulation"
