"""Commands as real processes whose output can be watched while they run."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from integration.nursery import ORDINARY, Forked, nursery, surroundings
from waiting import PATIENCE_SECONDS, wait_until

COMMAND = [sys.executable, "-c", "from penstock.cli.main import main; main()"]
SHOWN_LENGTH_MAX = 10_000
"""Characters of a command's output that a failing test shows."""


class Running:
    """A command that runs, its output in files."""

    def __init__(self, arguments: Sequence[str], directory: Path, prefix: Sequence[str] = ()) -> None:
        self._out, self._err = directory / "out", directory / "err"
        self.process: Forked | subprocess.Popen[bytes]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            if prefix or surroundings() != ORDINARY:
                self.process = subprocess.Popen(
                    [*prefix, *COMMAND, *arguments], stdin=subprocess.PIPE, stdout=out, stderr=err
                )
            else:
                self.process = nursery().start(arguments, out, err)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def write(self, text: str | bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() if isinstance(text, str) else text)
        self.process.stdin.flush()

    def wait_for_output(self, text: str, seconds: float = PATIENCE_SECONDS) -> None:
        wait_until(lambda: text in self.out + self.err or self.process.poll() is not None, text, seconds)
        assert text in self.out + self.err, self.out + self.err

    def wait_for_match(self, pattern: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the standard output has a match of a regular expression."""
        wait_until(lambda: re.search(pattern, self.out) or self.process.poll() is not None, pattern, seconds)
        assert re.search(pattern, self.out), self.out + self.err

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> int:
        """The exit status of the command, once it has ended; its input is closed now."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        return self.process.wait(timeout=PATIENCE_SECONDS)

    def processes(self) -> list[int]:
        """All processes below it. Of a plant: the template, its nodes in the order of their start, others."""
        return descendants_of(self.pid)


@contextlib.contextmanager
def running(*arguments: str, prefix: Sequence[str] = ()) -> Iterator[Running]:
    """A command, ended at the latest with the block. A failure inside the block shows the command's output."""
    with TemporaryDirectory() as directory:
        command = Running(arguments, Path(directory), prefix)
        try:
            yield command
        except BaseException as error:
            for name, text in (("output", command.out), ("errors", command.err)):
                error.add_note(f"{name} of penstock {' '.join(arguments)}:\n{text[-SHOWN_LENGTH_MAX:]}")
            raise
        finally:
            command.process.kill()
            command.end()


def completed(*arguments: str, given: bytes = b"") -> "subprocess.CompletedProcess[str]":
    """Run a command until it ends, with this input, and return its output."""
    with running(*arguments) as command:
        with contextlib.suppress(BrokenPipeError):
            command.write(given)
        status = command.end()
        return subprocess.CompletedProcess(arguments, status, command.out, command.err)


def children_of(pid: int) -> list[int]:
    """Child processes of all threads of the process. A thread or the whole process may end during the reading."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []
    found = []
    for thread in threads:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += [int(word) for word in (thread / "children").read_text().split()]
    return found


def descendants_of(pid: int) -> list[int]:
    children = children_of(pid)
    return [*children, *(each for child in children for each in descendants_of(child))]


def command_line_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_alive(pid: int) -> bool:
    """True if the process runs. A process that has ended, but whose parent has not read its status, does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
