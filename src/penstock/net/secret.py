"""Secrets that two nodes share to authenticate each other. They never appear in logs, errors or repr()."""

import hashlib
import hmac
import os
import stat
from pathlib import Path

from penstock.base.errors import ConfigurationError

SECRET_SIZE_MIN = 16
SECRET_SIZE_MAX = 4_096


class Secret:
    """A shared secret, which can only make and check proofs."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if not SECRET_SIZE_MIN <= len(key) <= SECRET_SIZE_MAX:
            raise ConfigurationError(
                f"the secret has {len(key)} bytes",
                hint=f"the limits are {SECRET_SIZE_MIN} and {SECRET_SIZE_MAX}; `openssl rand -hex 32` makes a good one",
            )
        self._key = key

    def prove(self, statement: bytes) -> bytes:
        """The HMAC-SHA256 of the statement: 32 bytes."""
        return hmac.digest(self._key, statement, hashlib.sha256)

    def is_proof(self, proof: bytes, statement: bytes) -> bool:
        return hmac.compare_digest(proof, self.prove(statement))

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __reduce__(self) -> str:
        raise TypeError("a secret cannot be pickled")


def read_secret(path: Path) -> Secret:
    """Read a secret from a file that only its owner can read; surrounding white space is removed."""
    data = read_private(path, SECRET_SIZE_MAX + 1)
    try:
        return Secret(data.strip())
    except ConfigurationError as error:
        raise ConfigurationError(error.what, where=str(path), hint=error.hint) from None


def read_private(path: Path, size_max: int) -> bytes:
    """Read the first `size_max` bytes of a file. Refused unless only its owner (the user or root) can read and write
    it."""
    where = str(path)
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigurationError("is not a regular file", where=where)
            if status.st_mode & 0o077:
                raise ConfigurationError(
                    f"other users can access this file (mode {stat.S_IMODE(status.st_mode):04o})",
                    where=where,
                    hint="chmod 600",
                )
            if status.st_uid not in (0, os.geteuid()):
                raise ConfigurationError("belongs to another user", where=where, hint="the owner could change it")
            return file.read(size_max)
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", where=where) from None


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that only its owner can access; an existing file is not changed."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ConfigurationError(f"cannot be written: {error.strerror}", where=str(path)) from None


def replace_private(path: Path, data: bytes) -> None:
    """Replace the content of a file atomically; only its owner can access it."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    write_private(temporary, data)
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
