"""Secrets are read from files that only their owner can read, and are never shown."""

import io
import pickle
from pathlib import Path

import pytest

from penstock.base import log
from penstock.base.errors import ConfigurationError
from penstock.net import Secret, read_secret

TEXT = "0123456789abcdef"


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.spec("OPS-2")
def test_white_space_around_a_secret_is_ignored(tmp_path: Path) -> None:
    secret = read_secret(written(tmp_path / "a", f"{TEXT}\n"))
    assert secret.prove(b"x") == Secret(TEXT.encode()).prove(b"x")
    assert secret.is_proof(Secret(TEXT.encode()).prove(b"x"), b"x")
    assert not secret.is_proof(Secret(TEXT.encode()).prove(b"x"), b"y")


@pytest.mark.spec("OPS-2")
@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660, 0o620])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigurationError, match="chmod 600") as caught:
        read_secret(written(tmp_path / "a", TEXT, mode))
    assert TEXT not in str(caught.value)


@pytest.mark.parametrize("text", ["", "short", " " * 40, "x" * 5_000])
def test_sizes_are_limited(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match="bytes"):
        read_secret(written(tmp_path / "a", text))


def test_invalid_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_secret(tmp_path / "missing")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_secret(tmp_path)
    with pytest.raises(ConfigurationError, match="not a regular file"):
        read_secret(Path("/dev/null"))


@pytest.mark.spec("OPS-2")
def test_a_secret_is_never_shown(lines: io.StringIO) -> None:
    secret = Secret(TEXT.encode())
    log.configure(stream=lines)
    log.logger("test").info("said", thing=secret, nested=[{"deep": secret}])
    for shown in (repr(secret), str(secret), f"{[secret]}", lines.getvalue()):
        assert TEXT not in shown
    with pytest.raises(TypeError):
        pickle.dumps(secret)
