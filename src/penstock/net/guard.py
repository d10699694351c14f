"""What protects the links of a party that connects."""

import ssl

import msgspec

from penstock.net.place import is_loopback
from penstock.net.secret import Secret


class Guard(msgspec.Struct, frozen=True):
    """Of a party that connects."""

    secret: Secret | None = None
    tls: ssl.SSLContext | None = None
    """To other hosts."""

    is_needed_here: bool = False
    """Whether it is TLS on this host, too."""

    def tls_for(self, host: str) -> ssl.SSLContext | None:
        return None if is_loopback(host) and not self.is_needed_here else self.tls
