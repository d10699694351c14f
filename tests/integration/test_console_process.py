"""The console as a process: its command, a node of `penstock up`, TLS, and its own pages."""

import contextlib
import http.client
import json
import os
import pty
import re
import ssl
import subprocess
from pathlib import Path

import pytest

from certificates import make_certificate
from children import child_environment
from command_here import run_here
from integration.command_kit import COMMAND, running
from integration.console_kit import SECRETS, Browser, administration, policy_text, running_console, write_credentials
from penstock.base.errors import ConfigurationError
from penstock.net.udp import free_ports
from penstock.node.plant import Plant
from waiting import PATIENCE_SECONDS, wait_until


def page_of(directory: Path, name: str) -> str:
    return Plant.load(directory / "plant.toml").pages.find(name)


def test_the_command_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    with administration(tmp_path) as admin:
        (tmp_path / "plant.toml").write_text(
            f'name = "trial"\n[[administration]]\nname = "admin"\npolicy = "policy.toml"\nport = {admin.port}\n'
        )
        with running("console", "--config", str(tmp_path / "plant.toml"), "--port", "0") as command:
            command.wait_for_output("stop with Ctrl-C")
            url = page_of(tmp_path, "console")
            second = run_here("console", "--config", tmp_path / "plant.toml", "--port", url.rpartition(":")[2])
            assert second.returncode == 1
            assert "`penstock up` serves the console of its plant there" in second.stderr
            assert url in command.out
            browser = Browser(int(url.rpartition(":")[2]))
            assert browser.log_in("boss").document["plant"] == "trial"
            assert browser.get("/api/picture").document["nodes"][0]["state"] == "up"
            assert command.interrupt() == 0
            assert SECRETS["boss"] not in command.err + command.out


def test_a_link_of_a_running_console_is_printed(tmp_path: Path) -> None:
    with administration(tmp_path) as admin:
        (tmp_path / "plant.toml").write_text(
            f'name = "trial"\n[[administration]]\nname = "admin"\npolicy = "policy.toml"\nport = {admin.port}\n'
            '[[console]]\nname = "console"\nport = 0\nlogin_credentials = "boss.toml"\n'
        )
        write_credentials(tmp_path, "boss")
        prints_link = ("console", "--config", tmp_path / "plant.toml", "--link")
        early = run_here(*prints_link)
        assert early.returncode == 1
        assert "does not run" in early.stderr
        with running("console", "--config", str(tmp_path / "plant.toml")) as command:
            command.wait_for_output("stop with Ctrl-C")
            link = run_here(*prints_link).stdout.strip()
            url, _, secret = link.partition("/#login=")
            assert url == page_of(tmp_path, "console")
            browser = Browser(int(url.rpartition(":")[2]))
            assert browser.post("/api/login-link", {"secret": secret}).document["client"] == "boss"
            assert command.interrupt() == 0
            assert "login" not in command.out  # which is no terminal and may be a log
            assert secret not in command.out + command.err


def test_penstock_up_prints_a_link_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(policy_text())
    write_credentials(tmp_path, "boss")
    (tmp_path / "plant.toml").write_text(
        f'name = "trial"\n[[administration]]\nname = "admin"\npolicy = "policy.toml"\nport = {free_ports(1)[0]}\n'
        '[[console]]\nname = "console"\nport = 0\nlogin_credentials = "boss.toml"\n'
    )
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as screen:
        up = subprocess.Popen([*COMMAND, "up", tmp_path / "plant.toml"], stdout=theirs, env=child_environment())
        os.close(theirs)
        try:
            written = b""
            while b"figures:" not in written:
                written += screen.read(4_096)
            found = re.search(rb"http://127.0.0.1:(\d+)/#login=(\w+)", written)
            assert found, written
            browser = Browser(int(found[1]))
            assert browser.post("/api/login-link", {"secret": found[2].decode()}).document["client"] == "boss"
        finally:
            up.terminate()
            with contextlib.suppress(OSError):  # raised at the end of a terminal
                while screen.read(4_096):
                    continue
            status = up.wait(PATIENCE_SECONDS)
    assert status == 0


@pytest.mark.spec("TREE-9")
def test_penstock_up_runs_a_console_and_operators_kill_from_it(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(policy_text())
    write_credentials(tmp_path, "nodes")
    (tmp_path / "plant.toml").write_text(
        f'name = "trial"\n[[administration]]\nname = "admin"\npolicy = "policy.toml"\nport = {free_ports(1)[0]}\n'
        '[[console]]\nname = "console"\nport = 0\n[[plant]]\nname = "records"\nsubscribe = ["md.>"]\n'
        'control.port = 0\nadmin.credentials = "nodes.toml"\n'
    )
    with running("up", str(tmp_path / "plant.toml")) as command:
        command.wait_for_output("the plant runs")
        browser = Browser(int(page_of(tmp_path, "console").rpartition(":")[2]))
        assert browser.log_in("boss").status == 200
        wait_until(lambda: browser.get("/api/session").document["can_control"])
        nodes = {each["node"]: each for each in browser.get("/api/picture").document["nodes"]}
        assert nodes["console"]["role"] == "console"
        wait_until(lambda: _state(browser, "records") == "up" or _state(browser, "records") == "degraded")
        done = browser.post("/api/actions", {"action": "kill", "node": "records", "reason": "does it come back?"})
        assert done.status == 200, done.body
        wait_until(lambda: _restarts(browser, "records") == 1, "the restart of the node")
        assert command.interrupt() == 0, command.err


def _state(browser: Browser, name: str) -> str:
    return next(each["state"] for each in browser.get("/api/picture").document["nodes"] if each["node"] == name)


def _restarts(browser: Browser, name: str) -> int:
    return next(each["restarts"] for each in browser.get("/api/picture").document["nodes"] if each["node"] == name)


def test_with_tls_the_cookie_is_for_tls_alone(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with running_console(tmp_path, certificate=str(certificate), private_key=str(key)) as console:
        context = ssl.create_default_context(cafile=str(certificate))
        connection = http.client.HTTPSConnection(
            "localhost", console.console.port, context=context, timeout=PATIENCE_SECONDS
        )
        body = json.dumps({"name": "alice", "secret": SECRETS["alice"]})
        connection.request("POST", "/api/login", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        cookie = response.getheader("set-cookie") or ""
        assert cookie.startswith("__Host-penstock_session=")
        assert "secure" in cookie.lower()
        assert "max-age" in (response.getheader("strict-transport-security") or "")
        connection.close()


def test_a_certificate_that_is_none_is_told_at_the_start(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    certificate.write_text("nonsense")
    with (
        pytest.raises(ConfigurationError, match="TLS cannot be used"),
        running_console(tmp_path, certificate=str(certificate), private_key=str(key)),
    ):
        pass


def test_its_own_pages_have_numbers_and_no_names(tmp_path: Path) -> None:
    with running_console(tmp_path) as console:
        browser = console.browser("alice")
        browser.socket("/ws/watch").recv(PATIENCE_SECONDS)
        stranger = console.browser()
        assert stranger.get("/health").document["is_healthy"]
        status = stranger.get("/status").document
        assert (status["sessions"], status["sockets"]) == (1, 1)
        page = stranger.get("/metrics").body.decode()
        assert "penstock_console_sessions 1.0" in page
        assert "alice" not in page + json.dumps(status)
