"""Protection of outgoing links."""

import ssl

import msgspec

from penstock.net.place import is_loopback
from penstock.net.secret import Secret


class Guard(msgspec.Struct, frozen=True):
    """The TLS settings of a party that connects."""

    secret: Secret | None = None
    tls: ssl.SSLContext | None = None
    """For links to other hosts."""

    is_needed_here: bool = False
    """True if links on this host use TLS, too."""

    def tls_for(self, host: str) -> ssl.SSLContext | None:
        return None if is_loopback(host) and not self.is_needed_here else self.tls
