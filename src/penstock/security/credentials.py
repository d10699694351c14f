"""What a client knows that nobody else does, read from a file that only its owner can use.

client = "alice"
secret = "…"                    # or secret_file = "…", or key_file = "alice.pem"
ca_file = "ca.pem"              # certificates that the administration server is checked with
"""

from pathlib import Path

from penstock.base.config import Config, parse_toml
from penstock.base.errors import ConfigurationError
from penstock.base.limits import DOCUMENT_SIZE_MAX
from penstock.net.secret import read_private
from penstock.security.brokering import Challenge
from penstock.security.keys import PrivateKey
from penstock.security.proof import SECRET_SIZE_MAX, SECRET_SIZE_MIN, login_statement, prove_secret


class CredentialsDocument(Config, frozen=True):
    client: str
    secret: str | None = None
    secret_file: str | None = None
    key_file: str | None = None
    ca_file: str | None = None


class Credentials:
    """A client's name and how it proves it; never shown. Give either a secret or a key."""

    __slots__ = ("_key", "_secret", "ca_file", "client")

    def __init__(
        self, client: str, *, secret: bytes | None = None, key: PrivateKey | None = None, ca_file: Path | None = None
    ) -> None:
        if (secret is None) == (key is None):
            raise ConfigurationError("credentials have either a secret or a key")
        if secret is not None and not SECRET_SIZE_MIN <= len(secret) <= SECRET_SIZE_MAX:
            raise ConfigurationError(
                f"a secret of {len(secret)} bytes", hint=f"{SECRET_SIZE_MIN} to {SECRET_SIZE_MAX} are taken"
            )
        self.client = client
        self.ca_file = ca_file
        self._secret = secret
        self._key = key

    @staticmethod
    def load(path: str | Path) -> "Credentials":
        """From a TOML file; the files that it names are looked for beside it."""
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
                f"has {len(given)} of the keys secret, secret_file and key_file", where=where, hint="give one of them"
            )
        secret = None if document.secret is None else document.secret.encode()
        if document.secret_file is not None:
            secret = read_private(path.parent / document.secret_file, SECRET_SIZE_MAX + 1).strip()
        key = None if document.key_file is None else PrivateKey.read(path.parent / document.key_file)
        ca_file = None if document.ca_file is None else path.parent / document.ca_file
        try:
            return Credentials(document.client, secret=secret, key=key, ca_file=ca_file)
        except ConfigurationError as error:
            raise ConfigurationError(error.what, where=where, hint=error.hint) from None

    def prove(self, challenge: Challenge) -> bytes:
        """The answer to a challenge: over it and this client's name, so good for nobody else and nothing else."""
        statement = login_statement(self.client, challenge.challenge)
        if self._key is not None:
            return self._key.sign(statement)
        assert self._secret is not None
        return prove_secret(self._secret, challenge.salt, challenge.cost, statement)

    def __repr__(self) -> str:
        return f"Credentials({self.client!r}, hidden)"

    def __reduce__(self) -> str:
        raise TypeError("credentials are not to be pickled")
