"""ClientContext: shared by the parts of one client that open sessions with a token of the administration server."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from penstock.base.clock import random_bytes
from penstock.capture.live.reading import Models
from penstock.client.config import ClientConfig
from penstock.client.holding import Manager
from penstock.net.guard import Guard
from penstock.security.core.brokering import Brokered
from penstock.security.live.client import AdminClient

T = TypeVar("T")


class ClientContext(NamedTuple):
    admin: AdminClient
    guard: Guard
    config: ClientConfig
    models: Models
    manager: Manager
    """The client itself."""

    adopt: Callable[[Brokered, Any], None]
    """Registers an opened session with the client, which renews the session's token."""

    def new_party(self) -> str:
        """Return a unique party name for a session, so that a revocation affects this session only."""
        return f"{self.admin.credentials.client[:48]}-{random_bytes(6).hex()}"

    def open(self, receive: tuple[str, ...], make: Callable[[Brokered], T], *, send: tuple[str, ...] = ()) -> T:
        """Open a session with a token for these topics and adopt it. If `make` raises, cancel the subscription."""
        brokered = self.admin.subscribe(receive, send=send)
        try:
            made = make(brokered)
        except BaseException:
            self.admin.cancel(brokered.subscription_id)
            raise
        self.adopt(brokered, made)
        return made
