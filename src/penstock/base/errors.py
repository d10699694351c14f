"""One tree of errors. Each has a stable code for programs, a sentence for people, and what to do about it.

A caller's mistake (LocalProtocolError and its kin) and a peer's misbehaviour (RemoteProtocolError) are different
branches, so that hostile input can never look like a bug of ours. Codes never change their meaning; a test pins them.
"""


class PenstockError(Exception):
    """Anything Penstock raises on purpose.

    `where` names the place (a file, a key path, a byte offset), `hint` what to do about it.
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
    """A configuration document cannot be used."""

    code = "config"


class UnknownKeyError(ConfigurationError):
    """A configuration document has a key that means nothing."""

    code = "config-unknown-key"


class ModelError(PenstockError):
    """A message model cannot be used, or a value does not fit its field."""

    code = "model"


class TableError(ConfigurationError):
    """A converter table or a source format cannot be used."""

    code = "table"


class TopicError(PenstockError):
    """A topic or an interest is not well formed."""

    code = "topic"


class FilterExpressionError(PenstockError):
    """A filter expression is not well formed, or does not fit the message model."""

    code = "filter-expression"


class LimitError(PenstockError):
    """Something would grow beyond its configured bound."""

    code = "limit"


class LocalProtocolError(PenstockError):
    """This side used a protocol wrongly: a bug in the caller."""

    code = "local-protocol"


class RemoteProtocolError(PenstockError):
    """The other side broke the protocol, or the bytes were damaged on the way."""

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
    """Records that were acknowledged are damaged or missing; nothing was changed on disk."""

    code = "journal-corrupt"


class JournalFullError(JournalError):
    """The disk has no room; appends are refused until it has."""

    code = "journal-full"


class JournalFailedError(JournalError):
    """The disk failed again and again; this writer accepts nothing more."""

    code = "journal-failed"


class JournalLockedError(JournalError):
    """Another writer has the journal open."""

    code = "journal-locked"


class JournalGoneError(JournalError):
    """Records that a reader asked for are no longer kept; `first_sequence` is the oldest that is."""

    code = "journal-gone"

    def __init__(self, what: str, *, first_sequence: int, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.first_sequence = first_sequence


class LeaseMemoryError(PenstockError):
    """What a voter for a lease has promised cannot be read: without it, it must not vote."""

    code = "lease-memory"


class ArchiveError(PenstockError):
    """An archive of tables cannot be opened, written or read."""

    code = "archive"


class ArchiveCorruptError(ArchiveError):
    """Documents or files of an archive are damaged or missing; nothing was changed on disk."""

    code = "archive-corrupt"


class ArchiveFullError(ArchiveError):
    """The disk has no room; nothing of what was written last was committed."""

    code = "archive-full"


class ArchiveLockedError(ArchiveError):
    """Another process writes the archive."""

    code = "archive-locked"


class ArchiveSchemaError(ArchiveError):
    """A column of the new rows differs in type from the table's column; none of these rows was committed."""

    code = "archive-schema"


class ArchiveUnsettledError(ArchiveError):
    """A commit was made, or may have been made, and is not finished; opening the archive for writing finishes it."""

    code = "archive-unsettled"


class TaskError(PenstockError):
    """A task of a Spark job failed, again and again if Spark is told to; nothing came of the job."""

    code = "task"


class StateImageError(RemoteProtocolError):
    """An image of a conversion state cannot be read, does not fit, or could not be finished; nothing was changed."""

    code = "state-image"


class FeedIndexError(PenstockError):
    """The index of a recorded feed cannot be made, or is damaged; the feed itself is as it was."""

    code = "feed-index"


class FrameError(RemoteProtocolError):
    """A byte stream cannot be cut into frames; `frames` has the whole ones of the same call, which came before."""

    code = "frame"

    def __init__(self, what: str, *, frames: list[bytes] | None = None) -> None:
        super().__init__(what)
        self.frames = frames or []


class VersionError(RemoteProtocolError):
    """The two sides speak versions of a protocol that do not go together."""

    code = "version"


class AuthenticationError(RemoteProtocolError):
    """The other side did not show that it knows the secret, or does not want to."""

    code = "authentication"


class CredentialsExpiredError(AuthenticationError):
    """The credentials were right, but their time is over."""

    code = "credentials-expired"


class RateLimitedError(PenstockError):
    """Too many attempts; one more may be made after `retry_after_s`."""

    code = "rate-limited"

    def __init__(self, what: str, *, retry_after_s: int = 1, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.retry_after_s = retry_after_s


class TokenError(RemoteProtocolError):
    """A token is not one of ours, was changed, or is for something else."""

    code = "token"


class TokenExpiredError(TokenError):
    """A token was good, but its time is over."""

    code = "token-expired"


class RevokedError(PenstockError):
    """An entitlement was taken back; the text says why."""

    code = "revoked"


class NotEntitledError(PenstockError):
    """No rule of the policy gives this client what it asks for."""

    code = "not-entitled"


class ForbiddenError(PenstockError):
    """The request needs a role that this client does not have."""

    code = "forbidden"


class SealError(RemoteProtocolError):
    """A sealed message was changed on the way, or is not what it says it is."""

    code = "seal"


class SealKeyError(SealError):
    """A sealed message needs a key that is not held here (yet); `key_id` says which."""

    code = "seal-key"

    def __init__(self, what: str, *, key_id: int, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.key_id = key_id


class RequestError(RemoteProtocolError):
    """A request to a server is not well formed."""

    code = "request"


class NotFoundError(PenstockError):
    """A server has nothing of that name."""

    code = "not-found"


class StandbyError(PenstockError):
    """This server only follows another one, which has to be asked instead."""

    code = "standby"


class RefusedError(PenstockError):
    """The other side refused us; what it said is in the text, its error code in `peer_code`."""

    code = "refused"

    def __init__(self, what: str, *, peer_code: str, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.peer_code = peer_code


class UnreachableError(PenstockError):
    """Nobody answers at an address."""

    code = "unreachable"


class NoSuchHostError(UnreachableError):
    """A host's name stands for no address."""

    code = "no-such-host"


class ConnectionLostError(PenstockError):
    """A connection ended without a goodbye."""

    code = "connection-lost"


class SharedMemoryError(PenstockError):
    """Shared memory cannot be had, or what was handed over is no segment of ours."""

    code = "shared-memory"


class OverrunError(SharedMemoryError):
    """The producer has overwritten events that this reader had not read yet.

    `sequence` is the first event that is lost, `found` what stands in its place.
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
    """The producer has closed the ring, and everything in it was read."""

    code = "ring-closed"


class ProducerGoneError(SharedMemoryError):
    """The producer's process is gone without closing the ring, and everything in it was read."""

    code = "producer-gone"


class RecordUnavailableError(SharedMemoryError):
    """No coherent version of the record was there within the bound; its writer may have died inside a write."""

    code = "record-unavailable"


class HandoverError(PenstockError):
    """A segment was not handed over: the other side refused, or is not who it should be."""

    code = "handover"


class NotSynchronisedError(PenstockError):
    """A feed adapter's numbers may not be used now."""

    code = "not-synchronised"


class ProcessError(PenstockError):
    """A process of a plant did not do what it was started for."""

    code = "process"


class SimulationError(PenstockError):
    """A checker of the simulator found a broken promise; `hint` says how to replay it."""

    code = "simulation"
