"""The supervisor's side of a supervised process: starts and ends it, reads its reports, sends orders."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.base.files import create_or_open
from penstock.node.template import ForkedProcess, Template

LINE_SIZE_MAX = 1 << 20
END_SECONDS = 5.0


class Member:
    """One process of a plant. `take(line)` is called with every line of its reports, a JSON document."""

    def __init__(
        self,
        name: str,
        main: str,
        arguments: Sequence[str],
        take: Callable[[bytes], None],
        *,
        log: Path | None = None,
        template: Template | None = None,
    ) -> None:
        """`main` is the entry point of the process, as MODULE:FUNCTION; the process is a copy of the template if there
        is one. The file `log` gets what the process writes to standard error; by default, standard error is the
        supervisor's."""
        self.name = name
        self.is_running = True
        self.fault = ""
        """The reason why the process failed."""
        self._take = take
        self._pending = b""
        errors = None if log is None else create_or_open(log, os.O_WRONLY | os.O_APPEND)
        try:
            self.process: subprocess.Popen[bytes] | ForkedProcess = (
                _started(main, arguments, errors) if template is None else template.fork(name, main, arguments, errors)
            )
        finally:
            if errors is not None:
                os.close(errors)

    @property
    def pid(self) -> int:
        return self.process.pid

    def fileno(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def order(self, word: str) -> None:
        assert self.process.stdin is not None
        if not self.is_running:
            return
        try:
            os.write(self.process.stdin.fileno(), word.encode() + b"\n")
        except BrokenPipeError:
            self.process.poll()  # the process is dead or dying: the end of its output reports it

    def read(self) -> bool:
        """Read reports. True if more may follow."""
        data = os.read(self.fileno(), 65_536)
        if not data:
            return False
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._take(line)
        return len(self._pending) < LINE_SIZE_MAX

    def reap(self) -> None:
        """Wait for a process that has closed its output, and note whether it failed."""
        self.close()
        status = self.process.returncode
        assert status is not None
        if status < 0:
            self.fault = f"{self.name} was killed by {signal.Signals(-status).name}"
        elif status > 0:
            self.fault = f"{self.name} ended with status {status}"

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        """End the process if it still runs."""
        self.is_running = False
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()  # a process that waits for orders ends when its input ends
        self.process.stdout.close()
        try:
            self.process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _started(main: str, arguments: Sequence[str], errors: int | None) -> subprocess.Popen[bytes]:
    module, function = main.split(":")
    # a process group of its own: Ctrl-C in the terminal only reaches the supervisor
    return subprocess.Popen(
        [sys.executable, "-c", f"from {module} import {function}; {function}()", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        process_group=0,
    )
