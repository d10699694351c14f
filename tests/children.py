"""Child processes of tests: processes that import what the tests import, and suspended ones."""

import os
import signal
import sys
from pathlib import Path

from waiting import wait_until


def child_environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each), **more}


def suspend(pid: int) -> None:
    """Stop the process with SIGSTOP: on return none of its threads runs."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: is_suspended(pid), f"process {pid} to be suspended")


def is_suspended(pid: int) -> bool:
    try:
        states = [each.read_text().rpartition(")")[2].split()[0] for each in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):  # a thread has just ended
        return False
    return set(states) == {"T"}


def resume(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
