"""Operators' actions in the console: rights, effects, and audit entries."""

import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from integration.console_kit import SECRETS, RunningConsole, Talk, close_code, policy_text, running_console, supervising
from penstock.base.errors import RefusedError, UnreachableError
from penstock.net.live.unix import connect
from penstock.node.console_config import ConsoleLimits
from penstock.node.orders import Order, OrderListener, give_order, place_of
from penstock.node.plant import Plant
from penstock.node.running import RunningPlant
from penstock.security import Credentials, Policy
from penstock.security.core.proof import SecretVerifier
from penstock.security.live.client import AdminClient
from penstock.web.live.actions import ActionLine, ActionLog
from penstock.web.live.sessions import Session
from waiting import wait_until


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    with running_console(tmp_path_factory.mktemp("actions")) as made:
        yield made


def written(console: RunningConsole) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (console.directory / "console" / "actions.jsonl").read_text().splitlines()]


@pytest.mark.spec("TREE-6", "TREE-9")
def test_an_operator_revokes_and_restores_and_it_is_written_down(console: RunningConsole) -> None:
    boss = console.browser("boss")
    watching = Talk(boss.socket("/ws/watch"))
    with AdminClient.connect(console.admin.url, Credentials("bob", secret=SECRETS["bob"].encode())) as bob:
        bob.subscribe(["md.us.>"])
        held = boss.get("/api/entitlements").document
        assert [(each["client"], each["topics"]) for each in held["subscriptions"]] == [("bob", ["md.us.>"])]
        done = boss.post("/api/actions", {"action": "revoke", "client": "bob", "reason": "not paid"})
        assert (done.status, done.document["detail"]) == (200, "1 subscriptions ended")
    told = watching.hear_kind("audit")
    assert (told["client"], told["action"], told["subject"], told["outcome"]) == ("boss", "revoke", "bob", "done")
    line = written(console)[-1]
    assert (line["client"], line["action"], line["subject"], line["reason"]) == ("boss", "revoke", "bob", "not paid")
    taken = next(each for each in boss.get("/api/entitlements").document["clients"] if each["client"] == "bob")
    assert taken["revoked"] == [{"topics": [">"], "reason": "not paid"}]
    audited = boss.get("/api/audit").document["entries"]
    assert any(each["action"] == "revoke" and each["client"] == "boss" for each in audited)
    assert boss.post("/api/actions", {"action": "restore", "client": "bob", "reason": "paid"}).status == 200
    assert boss.get("/api/entitlements").document["clients"][1]["revoked"] == []


def test_everybody_sees_their_own_rights_and_auditors_all(console: RunningConsole) -> None:
    own = console.browser("alice").get("/api/entitlements").document
    assert {"pattern": "md.>", "action": "receive", "delay_s": 0} in own["grants"]
    assert (own["client"], own["clients"], own["subscriptions"]) == ("alice", None, None)
    assert console.browser("clerk").get("/api/entitlements").document["counts"]["clients"] == len(SECRETS)
    assert console.browser("alice").get("/api/audit").code == "forbidden"
    assert console.browser("clerk").get("/api/audit?after=x").code == "request"


@pytest.mark.parametrize("name", ["alice", "clerk"])
def test_only_operators_act_and_attempts_of_others_do_not_fill_the_log(console: RunningConsole, name: str) -> None:
    path = console.directory / "console" / "actions.jsonl"
    before = path.read_bytes()
    refused = console.browser(name).post("/api/actions", {"action": "kill", "node": "admin", "reason": "why not"})
    assert (refused.status, refused.code) == (403, "forbidden")
    assert path.read_bytes() == before
    assert console.browser().post("/api/actions", {"action": "kill"}).status == 401


def watched(console: RunningConsole) -> Session:
    """The session whose WebSocket is open."""
    service = console.console._service
    assert service is not None
    wait_until(lambda: service.sessions.watched(), "the WebSocket")
    ((_, session),) = service.sessions.watched()
    return session


@pytest.mark.spec("AUTH-6")
def test_a_role_that_is_taken_away_ends_what_an_open_page_shows(tmp_path: Path) -> None:
    limits = ConsoleLimits(roles_s=0.1)
    with running_console(tmp_path, limits=limits) as console:
        boss = console.browser("boss")
        page = Talk(boss.socket("/ws/watch"))
        credentials = Credentials("boss", secret=SECRETS["boss"].encode())
        with AdminClient.connect(console.admin.url, credentials) as admin:
            session = watched(console)
            assert session.is_operator
            admin.set_policy(policy_text().replace('roles = ["administrator"]\n', ""))
        wait_until(lambda: not session.is_operator, "the role to be gone")
        assert not session.is_over
        refused = boss.post("/api/actions", {"action": "kill", "node": "admin", "reason": "the page is still open"})
        assert (refused.status, refused.code) == (403, "forbidden")
        page.socket.close()


@pytest.mark.spec("AUTH-6")
def test_who_has_another_secret_now_loses_its_session_while_a_page_is_open(tmp_path: Path) -> None:
    with running_console(tmp_path, limits=ConsoleLimits(roles_s=0.1)) as console:
        page = console.browser("bob").socket("/ws/watch")
        session = watched(console)
        other = SecretVerifier.make(b"another secret of bob", bytes(16)).text
        policy = re.sub(r'(\[clients\.bob\]\nsecret = ")[^"]*', lambda found: found[1] + other, policy_text())
        with AdminClient.connect(console.admin.url, Credentials("boss", secret=SECRETS["boss"].encode())) as admin:
            admin.set_policy(policy)
        wait_until(lambda: session.is_over, "the session to end")
        assert close_code(page) is not None


@pytest.mark.spec("AUTH-6")
@pytest.mark.parametrize("has_socket", [True, False])
def test_who_is_removed_from_the_policy_loses_its_session(tmp_path: Path, has_socket: bool) -> None:
    with running_console(tmp_path, limits=ConsoleLimits(roles_s=0.1)) as console:
        browser = console.browser("bob")
        page = browser.socket("/ws/watch") if has_socket else None
        service = console.console._service
        assert service is not None
        ((_, session),) = service.sessions.all()
        policy = re.sub(r"\[clients\.bob\]\n(?:[^\[\n].*\n|\n)*", "", policy_text()).replace('"bob", ', "")
        assert "bob" not in Policy.parse(policy).clients
        with AdminClient.connect(console.admin.url, Credentials("boss", secret=SECRETS["boss"].encode())) as admin:
            admin.set_policy(policy)
        wait_until(lambda: session.is_over, "the session to end")
        assert browser.get("/api/session").status == 401
        assert page is None or close_code(page) is not None


@pytest.mark.spec("AUTH-6")
def test_without_the_administration_server_roles_are_lost_after_a_while(tmp_path: Path) -> None:
    with running_console(tmp_path, limits=ConsoleLimits(roles_s=0.1, roles_lost_s=0.5)) as console:
        page = console.browser("boss").socket("/ws/watch")
        session = watched(console)
        console.admin.stop()
        wait_until(lambda: not session.is_operator, "the role to be lost")
        assert not session.is_over
        page.close()


def test_the_log_of_actions_is_bounded(tmp_path: Path) -> None:
    log = ActionLog(tmp_path, size_max=65_536, files_max=3)
    line = ActionLine(
        time_ms=0.0, client="boss", address="::1", action="kill", subject="x", reason="r" * 250, outcome="asked"
    )
    for number in range(1_000):
        log._write(msgspec.structs.replace(line, time_ms=float(number)))
    log.close()
    files = sorted(each.name for each in tmp_path.iterdir())
    assert files == ["actions.jsonl", "actions.jsonl.1", "actions.jsonl.2"]
    assert all(each.stat().st_size <= 65_536 for each in tmp_path.iterdir())
    texts = [(tmp_path / each).read_text().splitlines() for each in reversed(files)]
    times = [json.loads(each)["time_ms"] for text in texts for each in text]
    assert times == [float(number) for number in range(1_000 - len(times), 1_000)], "the newest lines, in order"


@pytest.mark.parametrize(
    ("action", "status", "code"),
    [
        ({}, 400, "request"),
        ({"action": "reboot", "reason": "x"}, 400, "request"),
        ({"action": "kill", "reason": "x"}, 400, "request"),
        ({"action": "kill", "node": "admin"}, 400, "request"),
        ({"action": "kill", "node": "admin", "reason": ""}, 400, "request"),
        ({"action": "kill", "node": "admin", "reason": "x" * 257}, 400, "request"),
        ({"action": "kill", "node": "../admin", "reason": "x"}, 400, "request"),
        ({"action": "kill", "node": "nobody", "reason": "x"}, 404, "not-found"),
        ({"action": "kill", "node": "admin", "reason": "x"}, 502, "unreachable"),  # nobody supervises it
        ({"action": "kill", "node": "admin", "reason": "x", "force": True}, 400, "request"),
        ({"action": "revoke", "client": "nobody", "reason": "x"}, 404, "not-found"),
        ({"action": "revoke", "client": "bob", "topics": ["a..b"], "reason": "x"}, 400, "topic"),
        ({"action": "restore", "client": "alice", "reason": "x"}, 404, "not-found"),
    ],
)
def test_actions_that_are_refused(console: RunningConsole, action: dict[str, Any], status: int, code: str) -> None:
    refused = console.browser("boss").post("/api/actions", action)
    assert (refused.status, refused.code) == (status, code)


def test_a_page_of_another_site_cannot_act(console: RunningConsole) -> None:
    boss = console.browser("boss")
    action = {"action": "revoke", "client": "bob", "reason": "a forgery"}
    assert boss.post("/api/actions", action, {"Origin": "http://evil.example"}).status == 403
    assert boss.post("/api/actions", action, {"Content-Type": "text/plain"}).status == 415
    assert not any(line["reason"] == "a forgery" for line in written(console))


# The supervisor of a plant


@pytest.mark.spec("TREE-9")
def test_a_node_is_killed_from_the_console(tmp_path: Path) -> None:
    with running_console(tmp_path) as console:
        document = tmp_path / "plant.toml"
        with RunningPlant(Plant.load(document), log_level="ERROR") as running:
            node = running.nodes["admin"]
            sleeper = _sleeper(running)
            with supervising(running):
                boss = console.browser("boss")
                wait_until(lambda: boss.get("/api/session").document["can_control"], "the console sees the supervisor")
                shown = boss.get("/api/picture").document["nodes"][0]
                assert shown["actions"] == ["kill"]
                others = console.browser("alice").get("/api/picture").document["nodes"][0]
                assert others["actions"] == []
                assert others["refused_actions"] == {"kill": "needs the role administrator"}
                done = boss.post("/api/actions", {"action": "kill", "node": "admin", "reason": "a trial"})
                assert (done.status, done.document["detail"]) == (200, f"killed process {sleeper}")
                wait_until(lambda: node.member is None or node.member.pid != sleeper, "it died")
            assert running.faults == []


def _sleeper(running: RunningPlant) -> int:
    """A process in place of a node: the real node would need the port of the test's own server."""
    node = running.nodes["admin"]
    node.member = running.supervisor.start("admin", "signal:pause", [], lambda line: None)
    node.is_ready = False
    return node.member.pid


def test_orders_that_are_none(tmp_path: Path) -> None:
    document = tmp_path / "plant.toml"
    with pytest.raises(UnreachableError):
        give_order(document, Order("look"))
    listener = OrderListener(document, lambda order: f"{order.what} {order.node}")
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            listener.serve()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert give_order(document, Order("kill", "x", "why")) == "kill x"
        for data in (b"garbage", b"{}", b'{"what": "burn"}', b"x" * 5_000, b"\xff"):
            connection = connect(place_of(document), 5_000_000_000)
            connection.send(data)
            answer, _ = connection.receive(4_096, 0, 5_000_000_000)
            connection.close()
            assert json.loads(answer)["is_done"] is False
        silent = connect(place_of(document), 5_000_000_000)
        assert give_order(document, Order("look")) == "look "  # the silent one is not waited for long
        silent.close()
    finally:
        is_over.set()
        thread.join()
        listener.close()


def test_the_name_of_the_socket_is_the_users_own(tmp_path: Path) -> None:
    assert str(os.geteuid()) in place_of(tmp_path / "plant.toml")
    assert place_of(tmp_path / "a.toml") != place_of(tmp_path / "b.toml")


def test_what_the_plant_refuses_is_told(tmp_path: Path) -> None:
    with running_console(tmp_path), RunningPlant(Plant.load(tmp_path / "plant.toml")) as running, supervising(running):
        for order in (Order("kill", "admin"), Order("kill", "nobody"), Order("promote", "admin")):
            with pytest.raises(RefusedError):
                give_order(tmp_path / "plant.toml", order)


# Rights that change, and a log that cannot be written


def test_a_role_that_was_taken_away_is_gone_for_those_who_are_logged_in(tmp_path: Path) -> None:
    with running_console(tmp_path) as console:
        boss = console.browser("boss")
        with AdminClient.connect(console.admin.url, Credentials("boss", secret=SECRETS["boss"].encode())) as admin:
            admin.set_policy(policy_text().replace('roles = ["administrator"]', 'roles = ["auditor"]'))
        refused = boss.post("/api/actions", {"action": "kill", "node": "admin", "reason": "I used to"})
        assert (refused.status, refused.code) == (403, "forbidden")
        assert written(console) == [], "an attempt without the role is only logged"
        assert boss.get("/api/session").document["roles"] == ["auditor"]


def test_nothing_is_done_while_nobody_can_say_who_may(tmp_path: Path) -> None:
    with running_console(tmp_path) as console:
        boss = console.browser("boss")
        console.admin.stop()
        refused = boss.post("/api/actions", {"action": "kill", "node": "admin", "reason": "nobody looks"})
        assert (refused.status, refused.code) == (502, "unreachable")


def test_nothing_is_done_that_cannot_be_written_down(tmp_path: Path) -> None:
    (tmp_path / "console").mkdir()
    (tmp_path / "console" / "actions.jsonl").symlink_to("/dev/full")
    with running_console(tmp_path) as console:
        boss = console.browser("boss")
        refused = boss.post("/api/actions", {"action": "revoke", "client": "bob", "reason": "not paid"})
        assert refused.code == "config"
        assert "actions.jsonl" in refused.document["where"]
        bob = next(each for each in boss.get("/api/entitlements").document["clients"] if each["client"] == "bob")
        assert bob["revoked"] == []
