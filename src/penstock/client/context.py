"""ClientContext: what the parts of one client share that open something with a token of its administration server."""

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
    """Makes what is opened the client's own, whose token is renewed."""

    def new_party(self) -> str:
        """A name for what is opened. Each is a party of its own: what is revoked of one is nothing to the others."""
        return f"{self.admin.credentials.client[:48]}-{random_bytes(6).hex()}"

    def open(self, receive: tuple[str, ...], make: Callable[[Brokered], T], *, send: tuple[str, ...] = ()) -> T:
        """What `make` opens with the token for these topics, adopted; if it raises, the token is given back."""
        brokered = self.admin.subscribe(receive, send=send)
        try:
            made = make(brokered)
        except BaseException:
            self.admin.cancel(brokered.subscription_id)
            raise
        self.adopt(brokered, made)
        return made
