"""A client's name with its secret or private key, read from a file that only the owner can access.

client = "alice"
secret = "…"                    # or secret_file = "…", or key_file = "alice.pem"
ca_file = "ca.pem"              # certificates that the administration server is checked with
server_key = "ed25519:…"        # with key_file: the server's public key, which authenticates the server at each
login
"""

from pathlib import Path

from penstock.base.config import Config, parse_toml
from penstock.base.errors import AuthenticationError, ConfigurationError
from penstock.base.limits import DOCUMENT_SIZE_MAX
from penstock.net.secret import read_private
from penstock.security.core.brokering import Challenge
from penstock.security.core.keys import PrivateKey, PublicKey
from penstock.security.core.proof import (
    SECRET_SIZE_MAX,
    SECRET_SIZE_MIN,
    UNBOUND,
    ScryptCost,
    SecretKeys,
    login_statement,
    server_statement,
)


class CredentialsDocument(Config, frozen=True):
    client: str
    secret: str | None = None
    secret_file: str | None = None
    key_file: str | None = None
    ca_file: str | None = None
    server_key: str | None = None


class LoginAnswer:
    """A client's answer to a challenge, and the check of the server's proof."""

    def __init__(
        self,
        proof: bytes,
        statement: bytes,
        *,
        keys: SecretKeys | None = None,
        server_key: PublicKey | None = None,
    ) -> None:
        self.proof = proof
        self._statement = statement
        self._keys = keys
        self._server_key = server_key

    def check_server(self, proof: bytes) -> None:
        """Raise AuthenticationError if this is not the server that the client was registered with."""
        if self._keys is not None:
            is_server = self._keys.is_server_proof(proof, self._statement)
        else:
            key = self._server_key
            is_server = key is None or key.is_signature(proof, server_statement(self._statement))
        if not is_server:
            raise AuthenticationError(
                "the server does not prove that it is the administration server",
                hint="another program may listen at its address; its session is discarded",
            )


class Credentials:
    """A client's name, and its secret or key; never printed. Give either a secret or a key."""

    __slots__ = ("_derived", "_key", "_secret", "_server_key", "ca_file", "client")

    def __init__(
        self,
        client: str,
        *,
        secret: bytes | None = None,
        key: PrivateKey | None = None,
        ca_file: Path | None = None,
        server_key: PublicKey | None = None,
    ) -> None:
        if (secret is None) == (key is None):
            raise ConfigurationError("credentials need exactly one of secret and key")
        if secret is not None and not SECRET_SIZE_MIN <= len(secret) <= SECRET_SIZE_MAX:
            raise ConfigurationError(
                f"the secret has {len(secret)} bytes", hint=f"the limits are {SECRET_SIZE_MIN} and {SECRET_SIZE_MAX}"
            )
        self.client = client
        self.ca_file = ca_file
        self._secret = secret
        self._key = key
        self._server_key = server_key
        self._derived: tuple[bytes, ScryptCost, SecretKeys] | None = None
        """The keys of the last salt and cost, because each derivation takes tens of milliseconds."""

    @property
    def can_check_server(self) -> bool:
        """False for a key pair without `server_key`: then only TLS authenticates the server."""
        return self._key is None or self._server_key is not None

    @staticmethod
    def load(path: str | Path) -> "Credentials":
        """Load a TOML file. Relative paths in the file start at its directory."""
        path = Path(path)
        where = str(path)
        try:
            text = read_private(path, DOCUMENT_SIZE_MAX).decode()
        except UnicodeDecodeError:
            raise ConfigurationError("is not UTF-8 text", where=where) from None
        document = parse_toml(text, CredentialsDocument, where=where)
        given = [name for name in ("secret", "secret_file", "key_file") if getattr(document, name) is not None]
        if len(given) != 1:
            raise ConfigurationError(
                f"defines {len(given)} of the keys secret, secret_file and key_file",
                where=where,
                hint="give one of them",
            )
        secret = None if document.secret is None else document.secret.encode()
        if document.secret_file is not None:
            secret = read_private(path.parent / document.secret_file, SECRET_SIZE_MAX + 1).strip()
        key = None if document.key_file is None else PrivateKey.read(path.parent / document.key_file)
        ca_file = None if document.ca_file is None else path.parent / document.ca_file
        try:
            server_key = None if document.server_key is None else PublicKey.parse(document.server_key)
            if server_key is not None and key is None:
                raise ConfigurationError(
                    "server_key is allowed only with key_file", hint="a secret authenticates the server, too"
                )
            return Credentials(document.client, secret=secret, key=key, ca_file=ca_file, server_key=server_key)
        except ConfigurationError as error:
            raise ConfigurationError(error.what, where=where, hint=error.hint) from None

    def answer(self, challenge: Challenge, nonce: bytes, binding: bytes = UNBOUND) -> "LoginAnswer":
        """Answer a challenge. The proof covers the challenge, this client's name, a new nonce and the server's
        certificate, so it cannot be used for another login."""
        statement = login_statement(self.client, challenge.challenge, nonce, binding)
        if self._key is not None:
            return LoginAnswer(self._key.sign(statement), statement, server_key=self._server_key)
        keys = self._derive(challenge)
        return LoginAnswer(keys.prove(statement), statement, keys=keys, server_key=self._server_key)

    def _derive(self, challenge: Challenge) -> SecretKeys:
        """Raise AuthenticationError if the cost is out of bounds. The server names the cost before it is
        authenticated."""
        if fault := challenge.cost.fault:
            raise AuthenticationError(
                f"the server asks for an unacceptable {fault}",
                hint="another program may listen at its address; if the cost is that of the policy, replace the "
                "client's entry: `penstock admin client secret`",
            )
        derived = self._derived
        if derived is None or derived[:2] != (challenge.salt, challenge.cost):
            assert self._secret is not None
            keys = SecretKeys.derive(self._secret, challenge.salt, challenge.cost)
            derived = self._derived = (challenge.salt, challenge.cost, keys)
        return derived[2]

    def __repr__(self) -> str:
        return f"Credentials({self.client!r}, hidden)"

    def __reduce__(self) -> str:
        raise TypeError("credentials cannot be pickled")
