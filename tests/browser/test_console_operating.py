"""An operator's work in a real browser: a node is killed, shown as failed, and recovers."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect

from browser.browser_kit import Visits, node, notice
from integration.console_kit import SECRETS, RunningConsole, running_console, supervising
from penstock.net.secret import write_private
from penstock.net.udp import free_ports
from penstock.node import restarts
from penstock.node.plant import Plant
from penstock.node.running import RunningPlant


@contextmanager
def supervised(console: RunningConsole, *names: str) -> Iterator[RunningPlant]:
    """These nodes of the console's plant as processes, which are restarted when they die."""
    with RunningPlant(Plant.load(console.directory / "plant.toml"), log_level="ERROR") as running:
        assert running.start_nodes(names), running.faults
        with supervising(running):
            yield running


@pytest.mark.spec("TREE-9")
def test_a_killed_node_is_shown_as_failed_and_then_recovers(
    visits: Visits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "RESTART_SECONDS", (3_600.0,))  # until the page has shown the failure
    (port,) = free_ports(1)
    more = f'[[filter]]\nname = "sieve"\ncontrol.port = {port}\nadmin.credentials = "nodes.toml"\n'
    write_private(tmp_path / "nodes.toml", f'client = "nodes"\nsecret = "{SECRETS["nodes"]}"\n'.encode())
    with running_console(tmp_path, more) as console, supervised(console, "sieve") as running:
        page = visits.log_in(console.console.port, "boss", "topology")
        sieve = node(page, "sieve")
        expect(sieve).to_have_attribute("data-state", "up")
        sieve.click()
        page.get_by_role("button", name="Kill…").click()
        asked = page.get_by_role("dialog", name="Kill sieve?")
        expect(asked.get_by_label("Reason")).to_be_focused()
        page.keyboard.press("Escape")
        expect(asked).to_be_hidden()
        expect(page.get_by_role("button", name="Kill…")).to_be_focused()
        page.keyboard.press("Enter")
        page.keyboard.type("does it come back?")
        page.keyboard.press("Enter")
        expect(notice(page, "done")).to_contain_text("kill sieve: killed process")
        expect(sieve).to_have_attribute("data-state", "unreachable")
        expect(page.locator("#topology-state")).to_contain_text("1 not well: sieve")
        running.nodes["sieve"].restart_at = time.monotonic()
        expect(sieve).to_have_attribute("data-state", "up")
        expect(page.locator("#topology-state")).to_contain_text("all well")
        assert "does it come back?" in (console.directory / "console" / "actions.jsonl").read_text()
