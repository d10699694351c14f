"""connect(): the entry point to a plant."""

import ssl
from pathlib import Path

from penstock.client.client import Client
from penstock.client.config import ClientConfig
from penstock.client.service import Protection
from penstock.net.secret import Secret
from penstock.security import Credentials
from penstock.security.live.client import AdminClient


def connect(
    url: str,
    *,
    credentials: Credentials | str | Path,
    interface: str | None = None,
    tls: ssl.SSLContext | None = None,
    secret: Secret | None = None,
    config: ClientConfig | None = None,
) -> Client:
    """Connect to the plant whose administration servers are at "penstock://host:port[,host:port]" (penstocks:// with
    TLS). The client logs in at once, so that wrong credentials raise here.

    `interface` is the address of the interface for multicast; by default, that of the route to publishers. `tls` and
    `secret` protect connections to adapters on other hosts.
    """
    admin = AdminClient.connect(url, credentials)
    try:
        admin.login()
    except BaseException:
        admin.close()
        raise
    if tls is None and admin.credentials.ca_file is not None:
        tls = ssl.create_default_context(cafile=str(admin.credentials.ca_file))
    return Client(admin, Protection(tls, secret), interface=interface, config=config)
