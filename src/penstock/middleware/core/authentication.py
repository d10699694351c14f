"""Authentication checks that publishers and receivers share."""

from penstock.base.counters import Cause, Counters
from penstock.middleware.core.events import DatagramReceived
from penstock.wire import Authenticator
from penstock.wire._authentication import strip_trailer


def authentic_packet(authenticator: Authenticator | None, event: DatagramReceived) -> memoryview | None:
    """Return the packet without its trailer; None if it is not authentic. Without an authenticator every packet is
    accepted."""
    return strip_trailer(event.data) if authenticator is None else authenticator.check(event.data, event.source)


def watch_refused(counters: Counters, authenticator: Authenticator) -> None:
    """Count datagrams that are not authentic, by cause."""
    counters.watch("packets_dropped", lambda: authenticator.unauthenticated, cause=Cause.UNAUTHENTICATED)
    counters.watch("packets_dropped", lambda: authenticator.unknown_key, cause=Cause.UNKNOWN_KEY)
    counters.watch("packets_dropped", lambda: authenticator.unvouched, cause=Cause.UNVOUCHED)
    counters.watch("packets_dropped", lambda: authenticator.forged, cause=Cause.FORGED)
    counters.watch("packets_dropped", lambda: authenticator.lease_ended, cause=Cause.LEASE_ENDED)
