"""Processes of nodes that are copies of one template."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from integration.command_kit import is_alive
from penstock.node.supervisor import Supervisor
from penstock.node.template import ForkedProcess, Template
from waiting import PATIENCE_SECONDS, wait_until

SELF = "integration.test_node_template"


def describe() -> None:
    """Entry point of a copy: what it is, then wait for the end of its input."""
    what = {
        "arguments": sys.argv[1:],
        "name": Path("/proc/self/comm").read_text(),
        "modules": sorted({"decimal", "wave"} & set(sys.modules)),
        "group": os.getpgid(0) == os.getpid(),
        "descriptors": sorted(int(each) for each in os.listdir("/proc/self/fd"))[:-1],
    }
    os.write(1, msgspec.json.encode(what) + b"\n")
    os.read(0, 1)


def fail() -> None:
    sys.exit(7)


def run_out() -> None:
    raise RuntimeError("it does not work")


@pytest.fixture
def template(monkeypatch: pytest.MonkeyPatch) -> Iterator[Template]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    made = Template(["wave"])
    yield made
    made.close()


def read_line(process: ForkedProcess) -> bytes:
    return process.stdout.readline()


def close(process: ForkedProcess) -> int:
    process.stdin.close()
    process.stdout.close()
    return process.wait(PATIENCE_SECONDS)


def test_a_copy_is_as_if_started_by_itself(template: Template) -> None:
    one, two = (template.fork("node", f"{SELF}:describe", ["x", each]) for each in "ab")
    found = [msgspec.json.decode(read_line(each)) for each in (one, two)]
    assert [each["arguments"] for each in found] == [["x", "a"], ["x", "b"]]
    assert [each["name"] for each in found] == ["node\n"] * 2
    assert all("wave" in each["modules"] and each["group"] for each in found)
    assert all(each["descriptors"] == [0, 1, 2] for each in found), "no pipes of other nodes"
    assert one.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        one.wait(0)
    assert (close(one), close(two)) == (0, 0)


def test_how_a_copy_ended_is_known(template: Template) -> None:
    for function, status in (("fail", 7), ("run_out", 1), ("describe", -signal.SIGKILL)):
        process = template.fork("node", f"{SELF}:{function}", [])
        if status < 0:
            process.kill()
        assert process.wait(PATIENCE_SECONDS) == process.poll() == status
        process.kill()  # nothing happens
        process.stdin.close()
        process.stdout.close()


def test_a_template_that_was_killed_is_replaced_and_its_copies_go_on(template: Template) -> None:
    old = template.fork("node", f"{SELF}:describe", ["old"])
    assert template._process is not None
    template._process.kill()
    template._process.wait()
    new = template.fork("node", f"{SELF}:describe", ["new"])
    assert b"new" in read_line(new)
    assert b"old" in read_line(old)
    assert close(new) == 0
    assert close(old) == 1, "nobody knows its status"


def test_a_template_ends_with_its_supervisor(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\n"
        "from penstock.node.template import Template\n"
        "template = Template([])\n"
        f"process = template.fork('node', '{SELF}:describe', [])\n"
        "print(template._process.pid, process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        pids = [int(each) for each in process.stdout.readline().split()]
        process.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "the template and its copy to end")


def test_a_supervisor_reports_how_copies_ended(template: Template) -> None:
    ended: list[str] = []
    lines: list[bytes] = []
    with Supervisor(lambda member: ended.append(member.fault)) as supervisor:
        for function in ("fail", "run_out", "describe"):
            supervisor.start(function, f"{SELF}:{function}", [], lines.append, template=template)
        assert supervisor.wait(lambda: len(ended) == 2 and bool(lines), PATIENCE_SECONDS)
        (left,) = supervisor.members
        left.kill()
        assert supervisor.wait(lambda: len(ended) == 3, PATIENCE_SECONDS)
    assert sorted(ended) == [
        "describe was killed by SIGKILL",
        "fail ended with status 7",
        "run_out ended with status 1",
    ]
