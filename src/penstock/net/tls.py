"""TLS for control connections and streams over TCP, from files that configurations name."""

import ssl

from penstock.base.errors import ConfigurationError
from penstock.net.config import TlsConfig


def server_context(config: TlsConfig | None) -> ssl.SSLContext | None:
    """The TLS context of a listening side."""
    if config is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.certificate, config.private_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"the certificate cannot be used: {error}", where=config.certificate) from None
    return context


def client_context(config: TlsConfig | None) -> ssl.SSLContext | None:
    """The TLS context of a connecting side, which accepts only certificates signed by the configured authority."""
    if config is None:
        return None
    try:
        return ssl.create_default_context(cafile=config.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"the certificates cannot be used: {error}", where=config.ca_file) from None
