"""`penstock demo` and `penstock up`: whole plants of real processes, and every way to end them."""

import contextlib
import html
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from first_plant_kit import free_first_port
from integration.command_kit import (
    COMMAND,
    PATIENCE_SECONDS,
    Running,
    children_of,
    descendants_of,
    is_alive,
    kill,
    running,
)
from integration.console_kit import Browser, Talk
from waiting import wait_until

QUICK = ("--no-critical-path", "--rate", "2000", "--symbols", "50", "--no-tree", "--no-router")
WITH_TREE = ("--no-critical-path", "--rate", "1000", "--symbols", "20", "--seconds", "inf", "--no-router")
WITH_ROUTER = ("--no-critical-path", "--rate", "2000", "--symbols", "20", "--no-tree")
PROCESSES = 13
# an administration server, two adapters, a filter module, plant, multiplexer and edge cache, two subscribers, three
# consumers, the exchange


def made(command: Running) -> int:
    found = re.search(r"the adapters made ([\d,]+)\.", command.out)
    assert found, command.out + command.err
    return number(found[1])


def delivered(command: Running) -> list[int]:
    return [number(each) for each in re.findall(r"  subscriber-\d \([^)]+\): ([\d,]+), ", command.out)]


def details(page: Path) -> str:
    """The text of the page that --report wrote."""
    return html.unescape(re.sub("<[^>]+>", "", page.read_text(encoding="utf-8")))


def number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.mark.spec("SYNC-7", "SYNC-8")
def test_the_active_adapter_is_killed_and_nobody_misses_anything(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    with running("demo", "--seconds", "4", "--kill-active", "--loss", "0.05", "--report", str(page), *QUICK) as demo:
        assert demo.end() == 0, demo.out + demo.err
        killed = re.search(r"kill -9 of the active adapter, adapter-([ab])\n", demo.out)
        assert killed is not None, demo.out
        assert f"adapter-{'b' if killed[1] == 'a' else 'a'} took over" in demo.out
        assert f"Result: every consumer got everything; details: {page}" in demo.out
        filtered, direct = delivered(demo)
        assert direct == made(demo) > filtered > 0
        told = details(page)
        assert "(every message it wants, once)" in told
        assert "(every message, once)" in told
        assert "subscriber-1 with it and subscriber-2 without it saw the same messages on the same topics" in told
        assert len(re.findall(r"[1-9][\d,]* copies from the other adapter suppressed", told)) == 2
        assert len(re.findall(r"longest gap between two deliveries [\d,.]+ ms around the kill", told)) == 2
        assert re.search(r"algorithm \(critical, by mux\): [1-9][\d,]* trades, every one, once; 0 lost", demo.out)
        assert re.search(r"pricing \(adaptive, by mux\): [1-9][\d,]* reads .* always the newest\n", demo.out)
        assert re.search(
            r"screen \(metered at 4/s, by edge\): [1-9].* the last update of each item arrived; 0 lost", demo.out
        )


@pytest.mark.soak  # test_filter_failures.py kills a filter module without a whole plant
@pytest.mark.spec("FILT-4", "FILT-7")
def test_the_filter_module_is_killed_and_nothing_is_lost_in_silence(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    with running("demo", "--seconds", "3", "--kill-filter", "--report", str(page), *QUICK) as demo:
        assert demo.end() == 0, demo.out + demo.err
        assert "kill -9 of the filter module, filter" in demo.out
        assert "started again: 2 starts" in demo.out
        assert delivered(demo)[1] == made(demo)  # the subscriber without the filter has not noticed
        told = details(page)
        found = re.search(r"subscriber-1 did not see ([\d,]+) messages .* told that ([\d,]+) may be lost", told)
        assert found, told
        assert 0 < number(found[1]) <= number(found[2])
        received, passed, removed = map(
            number, re.findall(r"received ([\d,]+) messages.*\n +([\d,]+) copies .* ([\d,]+) match no", told)[0]
        )
        assert received == passed + removed


@pytest.mark.soak  # test_assured_voting.py kills a router without a whole plant
@pytest.mark.spec("REPL-1", "REPL-7", "REPL-14")
def test_the_active_message_router_is_killed_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    with running("demo", "--seconds", "2", "--kill-router", "--report", str(page), *WITH_ROUTER) as demo:
        assert demo.end() == 0, demo.out + demo.err
        assert re.search(r"kill -9 of the active message router, router-[ab]", demo.out)
        after = r"was the active message router and was killed with -9: 2 starts; router-[ab] is active, in epoch [2-9]"
        assert re.search(after, demo.out), demo.out
        told = details(page)
        found = re.search(r"booking: ([\d,]+) published, ([\d,]+) acknowledged .*; 0 refused", told)
        assert found, told
        came = re.search(r"clearing: ([\d,]+) trades received .* in ([\d,]+) deliveries, .*; 0 lost, although", told)
        assert came, told
        assert number(came[2]) >= number(came[1]) == number(found[2]) == number(found[1]) > 0


@pytest.mark.soak  # test_tree_failures.py kills agents, test_console_process.py kills a node from the console
@pytest.mark.spec("TREE-4", "TREE-9")
def test_an_agent_is_killed_from_the_console_and_the_tree_heals() -> None:
    with running("demo", *WITH_TREE) as demo:
        demo.wait_for_output("the link logs in once")
        place, secret = re.findall(r"Console: http://127.0.0.1:(\d+)/#login=(\w+)", demo.out)[0]
        browser = Browser(int(place))
        assert browser.post("/api/login-link", {"secret": secret}).status == 200

        def nodes() -> dict[str, dict[str, str]]:
            return {each["node"]: each for each in browser.get("/api/picture").document["nodes"]}

        parents = [""]  # parents of leaf-1, which leaves middle-1 by itself if middle-1 does not answer in time
        wait_until(lambda: parents.append(nodes()["leaf-1"]["parent"]) or parents[-1], "leaf-1 has a parent")
        parent = parents[-1]
        with browser.stack:
            talk = Talk(browser.socket("/ws/stream", "penstock.json.1"))
            assert talk.ask({"op": "subscribe", "id": 1, "topics": ["md.us.eq.*.quote"]})["kind"] == "subscribed"
            assert talk.hear_kind("messages")["messages"]
            done = browser.post("/api/actions", {"action": "kill", "node": parent, "reason": "does it heal?"})
            assert done.status == 200, done.body
            wait_until(lambda: nodes()["leaf-1"]["parent"] not in ("", parent), "leaf-1 has another parent")
            assert talk.hear_kind("messages")["messages"]
        wait_until(lambda: nodes()[parent]["state"] == "up", f"{parent} is started again")
        assert demo.interrupt() == 0, demo.out + demo.err
        assert "Result: every consumer got everything" in demo.out


@pytest.mark.spec("SYNC-7")
def test_the_critical_path_alone_survives_the_kill_of_its_active_adapter() -> None:
    with running("demo", "--seconds", "2.5", "--rate", "2000", "--symbols", "50", "--no-tree", "--no-router") as demo:
        assert demo.end() == 0, demo.out + demo.err
        alone, _, whole = demo.out.partition("2. The whole plant")
        assert re.search(r"latency in µs: p50 [\d,]+, p99 [\d,]+, p99.9 [\d,]+; from", alone), demo.out
        found = re.search(r"([\d,]+) messages delivered of ([\d,]+) made", alone)
        assert found, demo.out
        assert number(found[1]) == number(found[2]) > 0
        assert re.search(r"adapter-[ab] was .* active .* killed with -9: 0 lost, 0 twice", alone), demo.out
        assert "Result: every consumer got everything" in whole


@pytest.mark.parametrize("options", [(), ("--no-critical-path",)])
def test_ctrl_c_while_it_starts_leaves_nothing(options: tuple[str, ...]) -> None:
    with running("demo", *options) as demo:
        wait_until(lambda: len(demo.processes()) >= 2, "the first processes")
        children = demo.processes()
        assert demo.interrupt() == 0, demo.err
        wait_until(lambda: not any(map(is_alive, children)), "the end of all processes")
        assert "Traceback" not in demo.err


@pytest.mark.soak  # test_supervisor.py has processes that die
def test_a_subscriber_that_dies_is_noticed() -> None:
    with running("demo", "--seconds", "5", *QUICK) as demo:
        demo.wait_for_output("subscriber-2")  # the first line about a plant at work
        kill(children_of(demo.pid)[1])  # after the template of the nodes
        assert demo.end() == 1
        assert "subscriber-1 was killed by SIGKILL" in demo.err
        assert delivered(demo)[1] == made(demo)


def test_nothing_outlives_a_supervisor_that_is_killed() -> None:
    with running("demo", *QUICK) as demo:
        wait_until(lambda: len(demo.processes()) >= 4, "processes of every kind that may be alone")
        children = demo.processes()
        kill(demo.pid)
        wait_until(lambda: not any(map(is_alive, children)), "the end of all processes")


def test_a_terminal_shows_a_table_and_its_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    """On a terminal of its own, where Ctrl-C goes to every process in the foreground, but only the supervisor acts on
    it."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "140", "LINES": "40", "TMPDIR": str(tmp_path)}
    on_terminal = "import os, sys; os.login_tty(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
    command = [sys.executable, "-c", on_terminal, str(slave), *COMMAND, "demo", *QUICK]
    process = subprocess.Popen(command, pass_fds=[slave], env=environment)
    os.close(slave)
    output, children = b"", list[int]()
    try:
        with contextlib.suppress(OSError):  # how the end of a terminal shows
            while data := os.read(master, 65_536):
                output += data
                if b"subscriber-2" in output and not children:
                    children = descendants_of(process.pid)
                    os.write(master, b"\x03")
        assert process.wait(timeout=PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    text = output.decode()
    for column in ("process", "role", "msgs/s", "p50", "p99.9", "copies", "lost"):
        assert column in text
    assert text.count(", complete, 0 lost; p50") == 2
    assert "Traceback" not in text
    assert len(children) == PROCESSES + 1, "and the template of the nodes"
    assert not any(map(is_alive, children))
    assert not list(tmp_path.glob("penstock-demo-*"))


def test_a_first_plant_runs_and_a_dead_adapter_is_started_again(tmp_path: Path) -> None:
    directory = tmp_path / "plant.d"
    with running("init", str(directory), "--port", str(free_first_port())) as init:
        assert init.end() == 0, init.err
        (url,) = set(re.findall(r"penstock://127.0.0.1:\d+", init.out))
        (module,) = re.findall(r"--filter (127.0.0.1:\d+)", init.out)
    plant = str(directory / "plant.toml")
    with running("up", "--check", plant) as check:
        assert check.end() == 0, check.err
        assert "adapter-b: adapter" in check.out
        assert "filter: filter" in check.out
    with running("up", plant) as up:
        up.wait_for_output("the plant runs")
        up.wait_for_match(r"adapter-[ab]: backup, synchronised")
        credentials = str(directory / "alice.toml")
        with running("sub", "--connect", url, "--credentials", credentials, "md.us.eq.>", "--json") as sub:
            sub.wait_for_output('"topic":"md.us.eq.')
            by_filter = ("--filter", module, "md.us.eq.*.trade", "--count", "40")
            with running("sub", "--connect", url, "--credentials", credentials, *by_filter) as trades:
                up.wait_for_output("filter: applications served: 1")
                assert trades.end() == 0, trades.err
                assert trades.out.count(".trade") == 40
            _, admin, *adapters = up.processes()[:4]
            active, backup = "ab" if up.out.rfind("adapter-a: active") > up.out.rfind("adapter-b: active") else "ba"
            before = len(up.out)
            kill(adapters["ab".index(active)])
            wait_until(lambda: f"adapter-{backup}: active" in up.out[before:], "the backup is promoted")
            wait_until(
                lambda: f"adapter-{active}: backup, synchronised" in up.out[before:], "the killed adapter is back"
            )
            seen = sub.out.count("\n")
            wait_until(lambda: sub.out.count("\n") > seen, "messages after the kill")
            assert sub.interrupt() == 0, sub.err
        policy = directory / "policy.toml"
        policy.write_text(policy.read_text() + "nonsense")
        os.kill(admin, signal.SIGHUP)
        up.wait_for_output("policy_refused")
        operations = str(directory / "operations.toml")
        with running("admin", "status", "--connect", url, "--credentials", operations) as status:
            assert status.end() == 0, status.err
            roles = re.findall(r"adapter-[ab]: (\w+)", status.out)
            assert sorted(roles) == ["active", "backup"], status.out
        children = up.processes()
        up.process.send_signal(signal.SIGINT)
        up.end()
        assert "stopping the plant, node by node\n" in up.out
        assert "adapter-b: ending\n" in up.out
        assert not any(map(is_alive, children))
        assert "Traceback" not in up.err
