"""One HTTP request to an administration server, and its errors."""

import contextlib
import hashlib
import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.base import errors
from penstock.base.decoding import DECODE_ERRORS, json_decoder
from penstock.base.errors import (
    ConfigurationError,
    ConnectionLostError,
    PenstockError,
    RefusedError,
    RemoteProtocolError,
    UnreachableError,
)
from penstock.net.place import is_loopback
from penstock.security.core.brokering import ErrorDocument
from penstock.security.core.proof import UNBOUND

DEFAULT_PORT = 7_400
ANSWER_SIZE_MAX = 32 * 1024 * 1024
PLAIN, TLS = "penstock", "penstocks"

_ERRORS: dict[str, type[PenstockError]] = {
    kind.code: kind
    for kind in (
        errors.AuthenticationError, errors.ConfigurationError, errors.CredentialsExpiredError, errors.ForbiddenError,
        errors.LimitError, errors.NotEntitledError, errors.NotFoundError, errors.RateLimitedError, errors.RequestError,
        errors.RevokedError, errors.StandbyError, errors.TokenError, errors.TokenExpiredError, errors.TopicError,
        errors.UnknownKeyError,
    )
}  # fmt: skip

A = TypeVar("A")


class AdminAddress(msgspec.Struct, frozen=True):
    host: str
    port: int
    is_tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{TLS if self.is_tls else PLAIN}://{host}:{self.port}"


def parse_addresses(url: str) -> list[AdminAddress]:
    """Parse "penstock://host:port,host:port"; addresses without TLS must be loopback addresses."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in (PLAIN, TLS):
        raise ConfigurationError(f"{url!r} is not an address", hint=f"write {PLAIN}://host:port or {TLS}://host:port")
    return [_address(word, scheme == TLS, url) for word in rest.rstrip("/").split(",")]


def _address(word: str, is_tls: bool, url: str) -> AdminAddress:
    host, separator, port = word.rpartition(":") if not word.endswith("]") else (word, "", "")
    host, port = (host, port) if separator else (word, str(DEFAULT_PORT))
    host = host.removeprefix("[").removesuffix("]")
    if not host or any(c in host for c in "/@?# ") or not (port.isascii() and port.isdigit() and len(port) < 6):
        raise ConfigurationError(f"{word!r} is not HOST:PORT", where=url)
    if not 0 < int(port) < 65_536:
        raise ConfigurationError(f"{port} is not a port number", where=url)
    if not is_tls and not is_loopback(host):
        raise ConfigurationError(
            f"{host} is not a loopback address, and the connection would not be encrypted",
            where=url,
            hint=f"write {TLS}://",
        )
    return AdminAddress(host, int(port), is_tls)


class HttpAnswer(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    where: str
    binding: bytes = UNBOUND
    """SHA-256 of the server's certificate; zeros without TLS."""

    def decode(self, kind: type[A] | None) -> A:
        """Decode the document of a successful answer, or raise the refusal as an error."""
        if self.status >= 400:
            raise self._refusal()
        try:
            return json_decoder(kind).decode(self.body)
        except DECODE_ERRORS as error:
            raise RemoteProtocolError(f"cannot decode the answer: {error}", where=self.where) from None

    def _refusal(self) -> PenstockError:
        try:
            document = json_decoder(ErrorDocument).decode(self.body)
        except DECODE_ERRORS:
            what = f"answered with status {self.status} without a reason"
            return RemoteProtocolError(what, where=self.where)
        kind = _ERRORS.get(document.code)
        if kind is None:
            return RefusedError(document.what, peer_code=document.code, hint=document.hint)
        error = kind(document.what, where=document.where, hint=document.hint)
        if isinstance(error, errors.RateLimitedError):
            error.retry_after_s = document.retry_after_s
        return error


class HttpCaller:
    """Opens a connection per request, so that any thread may call. close() ends waiting calls."""

    def __init__(self, ca_file: Path | None, timeout_s: float) -> None:
        self._ca_file = ca_file
        self._timeout_s = timeout_s
        self._tls: ssl.SSLContext | None = None
        self._lock = threading.Lock()
        self._open: set[http.client.HTTPConnection] = set()
        self.is_closed = False

    def call(
        self,
        address: AdminAddress,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        wait_s: float = 0.0,
    ) -> HttpAnswer:
        where = str(address)
        connection = self._connection(address)
        try:
            self._connect(connection, where)
            if connection.sock is not None:
                connection.sock.settimeout(self._timeout_s + wait_s)
            connection.request(method, path, body, {"Content-Type": "application/json", **headers})
            binding = _binding_of(connection.sock)
            response = connection.getresponse()
            data = response.read(ANSWER_SIZE_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionLostError(f"no answer: {error or type(error).__name__}", where=where) from None
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()
        if len(data) > ANSWER_SIZE_MAX:
            raise RemoteProtocolError(f"its answer has more than {ANSWER_SIZE_MAX} bytes", where=where)
        headers_told = {name.lower(): text for name, text in response.getheaders()}
        return HttpAnswer(response.status, headers_told, data, where, binding)

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
            sockets = [each.sock for each in self._open if each.sock is not None]
            for each in sockets:
                with contextlib.suppress(OSError):  # the connection has ended already
                    each.shutdown(socket.SHUT_RDWR)

    def _connection(self, address: AdminAddress) -> http.client.HTTPConnection:
        if not address.is_tls:
            return http.client.HTTPConnection(address.host, address.port, timeout=self._timeout_s)
        if self._tls is None:
            try:
                self._tls = ssl.create_default_context(cafile=None if self._ca_file is None else str(self._ca_file))
            except OSError as error:
                raise ConfigurationError(f"cannot load certificates: {error}", where=str(self._ca_file)) from None
        return http.client.HTTPSConnection(address.host, address.port, timeout=self._timeout_s, context=self._tls)

    def _connect(self, connection: http.client.HTTPConnection, where: str) -> None:
        try:
            connection.connect()
        except ssl.SSLCertVerificationError as error:
            hint = "set ca_file in the credentials to the certificate that signed the server's"
            what = f"its certificate is not trusted: {error.verify_message}"
            raise UnreachableError(what, where=where, hint=hint) from None
        except OSError as error:
            raise UnreachableError(f"no server answers: {error}", where=where) from None
        with self._lock:
            if self.is_closed:
                raise ConnectionLostError("this client was closed")
            self._open.add(connection)


def _binding_of(sock: socket.socket | None) -> bytes:
    certificate = sock.getpeercert(binary_form=True) if isinstance(sock, ssl.SSLSocket) else None
    return UNBOUND if certificate is None else hashlib.sha256(certificate).digest()


def certificate_digest(path: Path) -> bytes:
    """SHA-256 of the first certificate in a PEM file, which is the one that the server presents."""
    try:
        pem = path.read_text(encoding="ascii")
        begin, end = ssl.PEM_HEADER, ssl.PEM_FOOTER
        first = pem[pem.index(begin) : pem.index(end) + len(end)]
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).digest()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"contains no certificate: {error}", where=str(path)) from None
