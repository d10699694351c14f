"""Error codes are for programs: a published code keeps its meaning."""

import penstock.base.errors as errors
from penstock.base.errors import PacketError, PenstockError

CODES = {
    "archive": "ArchiveError",
    "archive-corrupt": "ArchiveCorruptError",
    "archive-full": "ArchiveFullError",
    "archive-locked": "ArchiveLockedError",
    "archive-schema": "ArchiveSchemaError",
    "archive-unsettled": "ArchiveUnsettledError",
    "authentication": "AuthenticationError",
    "config": "ConfigurationError",
    "config-unknown-key": "UnknownKeyError",
    "connection-lost": "ConnectionLostError",
    "filter-expression": "FilterExpressionError",
    "feed-index": "FeedIndexError",
    "frame": "FrameError",
    "journal": "JournalError",
    "journal-corrupt": "JournalCorruptError",
    "journal-failed": "JournalFailedError",
    "journal-full": "JournalFullError",
    "journal-gone": "JournalGoneError",
    "journal-locked": "JournalLockedError",
    "handover": "HandoverError",
    "lease-memory": "LeaseMemoryError",
    "limit": "LimitError",
    "local-protocol": "LocalProtocolError",
    "model": "ModelError",
    "overrun": "OverrunError",
    "packet": "PacketError",
    "penstock": "PenstockError",
    "refused": "RefusedError",
    "producer-gone": "ProducerGoneError",
    "record-unavailable": "RecordUnavailableError",
    "remote-protocol": "RemoteProtocolError",
    "ring-closed": "RingClosedError",
    "shared-memory": "SharedMemoryError",
    "not-synchronised": "NotSynchronisedError",
    "process": "ProcessError",
    "simulation": "SimulationError",
    "state-image": "StateImageError",
    "table": "TableError",
    "task": "TaskError",
    "topic": "TopicError",
    "unreachable": "UnreachableError",
    "no-such-host": "NoSuchHostError",
    "credentials-expired": "CredentialsExpiredError",
    "rate-limited": "RateLimitedError",
    "token": "TokenError",
    "token-expired": "TokenExpiredError",
    "revoked": "RevokedError",
    "not-entitled": "NotEntitledError",
    "forbidden": "ForbiddenError",
    "seal": "SealError",
    "seal-key": "SealKeyError",
    "request": "RequestError",
    "not-found": "NotFoundError",
    "standby": "StandbyError",
    "version": "VersionError",
}


def test_codes_are_stable_and_unique() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PenstockError)]
    assert {kind.code: kind.__name__ for kind in kinds} == CODES
    assert len(kinds) == len(CODES)


def test_text_names_place_problem_and_remedy() -> None:
    error = PenstockError("port 99999 is too large", where="plant.toml: nodes.a.port", hint="at most 65535")
    assert str(error) == "plant.toml: nodes.a.port: port 99999 is too large (at most 65535)"


def test_an_error_of_the_peer_is_not_an_error_of_the_caller() -> None:
    assert issubclass(PacketError, errors.RemoteProtocolError)
    assert not issubclass(PacketError, errors.LocalProtocolError)
