"""The secret of links, typed at a terminal or read from a file."""

import os
import pty
import sys
from pathlib import Path

import pytest

from children import child_environment
from command_here import run_here
from penstock.base.errors import ConfigurationError
from penstock.cli.common.secrets import TYPED, given_secret
from penstock.net.secret import Secret, write_private

SECRET = "a secret that is long enough"
PROGRAM = """
from penstock.cli.common.secrets import TYPED, given_secret
print(given_secret(TYPED).prove(b"statement").hex())
"""


def test_a_secret_is_typed_without_being_shown() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", PROGRAM], child_environment())
    shown = b""
    while b"Secret: " not in shown:
        shown += os.read(terminal, 4_096)
    os.write(terminal, f"{SECRET}\n".encode())
    proof = Secret(SECRET.encode()).prove(b"statement").hex().encode()
    while len(shown) < len(proof) + len("Secret: ") and (more := os.read(terminal, 4_096)):
        shown += more
    assert os.waitpid(pid, 0)[1] == 0
    os.close(terminal)
    assert proof in shown
    assert SECRET.encode() not in shown


def test_a_secret_comes_from_a_file_of_its_owner(tmp_path: Path) -> None:
    assert given_secret(None) is None
    write_private(tmp_path / "secret", f"{SECRET}\n".encode())
    secret = given_secret(tmp_path / "secret")
    assert secret is not None
    assert secret.is_proof(Secret(SECRET.encode()).prove(b"statement"), b"statement")
    (tmp_path / "secret").chmod(0o644)
    with pytest.raises(ConfigurationError, match="other users can access this file"):
        given_secret(tmp_path / "secret")
    assert Path("-") == TYPED


@pytest.mark.parametrize("words", [("list",), ("drain", "q"), ("publish", "a.b", "text"), ("delete", "q")])
def test_queue_commands_say_at_once_that_no_router_listens(words: tuple[str, ...]) -> None:
    command, *rest = words
    done = run_here("queue", command, "127.0.0.1:1,127.0.0.1:2", *rest)
    assert done.returncode == 1
    assert "127.0.0.1:1, 127.0.0.1:2: no message router listens (start it with `penstock up`" in done.stderr
    assert "dialling" not in done.stderr  # no attempt of a session, which waits for routers that start
