"""Administration servers as real processes: killed, started again, and taken over by a standby."""

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from admin_kit import config, credentials, credentials_file, policy_text, registration
from command_here import invoke_here
from integration.command_kit import Running, running
from penstock.admin import AdminConfig, PeerConfig
from penstock.admin.live.server import AdminService
from penstock.base.clock import SystemClock
from penstock.base.errors import PenstockError, RevokedError, StandbyError
from penstock.net.udp import free_ports
from penstock.security import Credentials, PrivateKey, PublicKey, TokenVerifier
from penstock.security.core.brokering import AdapterHeartbeat, GenerationChanged
from penstock.security.core.operating import ServerStatus
from penstock.security.live.client import AdminClient
from waiting import wait_until


def document(path: Path, settings: AdminConfig) -> Path:
    """The configuration as a TOML file."""
    lines = [f'{name} = "{getattr(settings, name)}"' for name in ("node", "directory", "policy", "signing_key", "role")]
    lines.append(f"port = {settings.port}")
    if settings.peer is not None:
        values = msgspec.to_builtins(settings.peer)
        lines += ["[peer]", *(f"{name} = {value!r}".replace("'", '"') for name, value in values.items())]
    lines += ["[limits]", f"token_s = {settings.limits.token_s}"]
    path.write_text("\n".join(lines) + "\n")
    return path


@contextlib.contextmanager
def serving(path: Path) -> Iterator[tuple[Running, str]]:
    with running("--log-style", "json", "admin", "serve", "--config", str(path)) as process:
        process.wait_for_output("stop with Ctrl-C")
        yield process, process.out.split(" on ")[1].split(",")[0]


@pytest.mark.spec("ADM-8", "ADM-5")
def test_a_server_that_was_killed_forgets_nothing(tmp_path: Path) -> None:
    path = document(tmp_path / "admin.toml", config(tmp_path))
    with serving(path) as (first, url):
        adapter = AdminClient.connect(url, credentials("feed"))
        alice, bob = (AdminClient.connect(url, credentials(name)) for name in ("alice", "bob"))
        held = [each.subscribe(["md.us.eq.>"]).subscription_id for each in (alice, bob)]
        registered = adapter.register(registration(sealed=True))
        lost, kept = alice.renew(held[0]), bob.renew(held[1])
        root = AdminClient.connect(url, credentials("root"))
        root.revoke("alice", "left the firm")
        before = root.status()
        sessions = bob._session, alice._session
        first.process.kill()
        first.end()
    verifier = TokenVerifier([PublicKey.parse(text) for text in registered.token_keys])
    assert verifier.verify(kept.token, time.time_ns())  # with nobody there to ask
    with serving(path) as (_, url):
        root, bob, alice, adapter = (AdminClient.connect(url, credentials(n)) for n in ("root", "bob", "alice", "feed"))
        after = root.status()
        assert (after.subscriptions, after.denials, after.adapters) == (1, 1, before.adapters)
        assert after.change_number >= before.change_number
        bob._session, alice._session = sessions  # issued by the one that was killed
        renewed = bob.renew(kept.subscription_id)
        assert verifier.verify(renewed.token, time.time_ns())
        assert renewed.streams[0].keys[0] == registered.keys[0]
        with pytest.raises(RevokedError, match="left the firm"):
            alice.renew(lost.subscription_id)
        assert alice.events(lost.events_after).events[0].body.reason == "left the firm"  # type: ignore[union-attr]
        actions = [each.action for each in root.audit().entries]
        assert {"login", "subscribe", "register", "revoke"} <= set(actions)
        assert adapter.register(registration(sealed=True)).keys[0] == registered.keys[0]
        assert adapter.register(registration(sealed=True)).revoked[0].subscription_id == lost.subscription_id


class Pair:
    """The configurations of a primary and its standby, both with fixed ports."""

    def __init__(self, directory: Path, *, primary_lost_s: float) -> None:
        ports = free_ports(2)
        key = directory / "signing.pem"
        PrivateKey(bytes(32)).write(key)
        credentials_file(directory, "pair")
        (directory / "policy.toml").write_text(policy_text())
        self.paths = []
        for number, role in enumerate(("primary", "standby")):
            home = directory / role
            home.mkdir()
            peer = PeerConfig(
                address=f"penstock://127.0.0.1:{ports[1 - number]}",
                credentials=str(directory / "pair.toml"),
                check_s=0.1,
                primary_lost_s=primary_lost_s,
            )
            settings = AdminConfig(
                node=role,
                role=role,  # type: ignore[arg-type]
                directory=str(home),
                policy=str(directory / "policy.toml"),
                signing_key=str(key),
                port=ports[number],
                peer=peer,
            )
            self.paths.append(document(directory / f"{role}.toml", settings))
        self.urls = [f"penstock://127.0.0.1:{port}" for port in ports]
        self.url = f"penstock://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"


def status_of(url: str) -> ServerStatus | None:
    try:
        with AdminClient.connect(url, credentials("root")) as root:
            return root.status()
    except PenstockError:
        return None


def is_at(url: str, role: str, generation: int) -> bool:
    found = status_of(url)
    return found is not None and (found.role, found.generation) == (role, generation)


@pytest.mark.spec("ADM-8")
def test_a_standby_takes_over_and_the_old_primary_follows_it(tmp_path: Path) -> None:
    pair = Pair(tmp_path, primary_lost_s=0.5)
    with contextlib.ExitStack() as stack:
        first, _ = stack.enter_context(serving(pair.paths[0]))
        stack.enter_context(serving(pair.paths[1]))
        alice = AdminClient.connect(pair.url, credentials("alice"))
        adapter = AdminClient.connect(pair.url, credentials("feed"))
        root = AdminClient.connect(pair.url, credentials("root"))
        subscription_id = alice.subscribe(["md.us.eq.>"]).subscription_id
        registered = adapter.register(registration(sealed=True))
        brokered = alice.renew(subscription_id)
        assert brokered.streams[0].keys == registered.keys
        root.revoke("bob", "was never here")
        number = root.status().change_number
        wait_until(lambda: getattr(status_of(pair.urls[1]), "change_number", 0) >= number, "the standby to follow")
        with pytest.raises(StandbyError):
            AdminClient.connect(pair.urls[1], credentials("alice")).subscribe(["md.us.eq.>"])
        verifier = TokenVerifier([PublicKey.parse(text) for text in registered.token_keys])

        first.process.kill()
        first.end()
        assert verifier.verify(brokered.token, time.time_ns())  # the data path does not care
        wait_until(lambda: is_at(pair.urls[1], "primary", 2), "the standby to take over")
        renewed = alice.renew(brokered.subscription_id)  # the same client, without any notice
        assert renewed.generation == 2
        assert renewed.streams[0].keys == brokered.streams[0].keys
        assert verifier.verify(renewed.token, time.time_ns())
        with pytest.raises(RevokedError, match="never here"):
            AdminClient.connect(pair.url, credentials("bob")).subscribe(["md.us.eq.>"])
        told = adapter.events(registered.events_after).events
        (changed,) = [each.body for each in told if isinstance(each.body, GenerationChanged)]
        assert changed.generation == 2
        adapter.heartbeat(AdapterHeartbeat(feed="itch", adapter="a", term=1))
        later = alice.subscribe(["md.us.eq.AAPL.>"])

        stack.enter_context(serving(pair.paths[0]))  # it comes back
        wait_until(lambda: is_at(pair.urls[0], "standby", 2), "the old primary to follow")
        with pytest.raises(StandbyError):
            AdminClient.connect(pair.urls[0], credentials("alice")).subscribe(["md.us.eq.>"])
        assert alice.renew(later.subscription_id).generation == 2
        verifier.note_generation(changed.generation, changed.since_ns)
        assert verifier.verify(alice.renew(later.subscription_id).token, time.time_ns())


@pytest.mark.spec("ADM-8")
def test_the_operator_promotes_and_a_primary_that_is_alive_steps_down(tmp_path: Path) -> None:
    pair = Pair(tmp_path, primary_lost_s=0.0)
    root = str(credentials_file(tmp_path, "root"))
    with serving(pair.paths[0]), serving(pair.paths[1]) as (standby, _):
        wait_until(lambda: '"copied"' in standby.err, "the standby to have a copy")
        status, said = command(
            "admin", "promote", "--connect", pair.urls[1], "--credentials", root, "--reason", "drill"
        )
        assert (status, "standby is primary of generation 2" in said) == (0, True)
        wait_until(lambda: is_at(pair.urls[0], "standby", 2), "the old primary to step down")
        assert is_at(pair.urls[1], "primary", 2)
        options = ("--connect", pair.urls[1], "--credentials", root, "--reason", "once more")
        assert "standby is primary of generation 3" in command("admin", "promote", *options)[1]
        wait_until(lambda: is_at(pair.urls[0], "standby", 3), "the other server to follow")
        said = command("admin", "status", "--connect", pair.urls[0], "--credentials", root)[1]
        assert "primary: standby of generation 3" in said


@pytest.mark.spec("ADM-8")
def test_a_standby_that_never_heard_of_a_primary_does_not_take_over(tmp_path: Path) -> None:
    pair = Pair(tmp_path, primary_lost_s=0.1)
    with serving(pair.paths[1]) as (standby, _):
        wait_until(lambda: '"peer_failed"' in standby.err, "an attempt to reach the primary")
        with (
            AdminClient.connect(pair.urls[1], credentials("root")) as root,
            pytest.raises(PenstockError, match="never"),
        ):
            root.promote("in vain")
        assert is_at(pair.urls[1], "standby", 1)


def test_a_standby_needs_the_same_signing_key(tmp_path: Path) -> None:
    settings = config(tmp_path, role="standby", peer=PeerConfig(address="penstock://127.0.0.1:1", credentials="x"))
    with pytest.raises(PenstockError, match="signing key"):
        AdminService(settings, SystemClock())


def test_a_server_whose_disk_fails_stops(tmp_path: Path) -> None:
    """The memory could be ahead of the disk, so the server makes no further promises."""
    service = AdminService(config(tmp_path), SystemClock())
    (pages,) = service._store._database.execute("PRAGMA page_count").fetchone()
    service._store._database.execute(f"PRAGMA max_page_count = {pages}")

    def decision(now_ns: int) -> Any:
        for number in range(1_000):
            service.core.state.notify(f"client {number}", GenerationChanged(generation=1, since_ns=0), now_ns)

    with pytest.raises(PenstockError, match="disk has failed"):
        service.decide(decision)
    assert service.failed is not None
    with pytest.raises(PenstockError, match="disk has failed"):
        service.decide(lambda now_ns: None)
    service.close()


def command(*arguments: str) -> tuple[int, str]:
    """Run a short command in this process; return its status, and its output or error."""
    result = invoke_here(*arguments)
    said = f"[{result.exception.code}] {result.exception}" if isinstance(result.exception, PenstockError) else ""
    return result.exit_code, result.output + said


@pytest.mark.spec("ADM-1")
def test_credentials_with_a_key_pair_name_the_servers_key(tmp_path: Path) -> None:
    plant = tmp_path / "plant.toml"
    plant.write_text('name = "p"\n[[administration]]\nname = "admin"\npolicy = "policy.toml"\n')
    assert command("admin", "server-key", "--config", str(plant))[0] == 0  # it makes the key, and logs that
    line = command("admin", "server-key", "--config", str(plant))[1]
    assert PublicKey.parse(line.split('"')[1]) == PrivateKey.read(tmp_path / "state" / "admin" / "signing.pem").public
    given = {"a": ("--config", str(plant)), "b": ("--server-key", line.split('"')[1]), "c": ("--no-server-key",)}
    for name, options in given.items():
        path = tmp_path / f"{name}.toml"
        status, out = command("admin", "client", "key", name, "--out", str(path), *options)
        assert (status, "has no server_key" in out) == (0, name == "c")
        assert (line in path.read_text()) is (name != "c")
        assert Credentials.load(path).can_check_server is (name != "c")
    for wrong in ((), (*given["a"], *given["c"]), (*given["a"], *given["b"])):
        status, out = command("admin", "client", "key", "d", "--out", str(tmp_path / "d.toml"), *wrong)
        assert (status, "could not authenticate the server" in out) == (1, True)
    assert command("admin", "client", "key", "d", "--out", str(tmp_path / "d.toml"), "--server-key", "x")[0] == 1
    assert not (tmp_path / "d.toml").exists()


@pytest.mark.spec("ADM-1")
def test_the_commands(tmp_path: Path) -> None:
    """From nothing to a server with two clients, by the commands alone."""
    files = {name: str(tmp_path / f"{name}.toml") for name in ("alice", "root", "policy", "wrong", "better")}
    (tmp_path / "admin.toml").write_text('directory = "state"\npolicy = "policy.toml"\n')
    config = ("--config", str(tmp_path / "admin.toml"))
    assert command("admin", "server-key", *config)[0] == 0  # it makes the key, and logs that
    entries = []
    for name, kind, roles in [("alice", "secret", ""), ("root", "key", 'roles = ["administrator"]\n')]:
        status, out = command("admin", "client", kind, name, "--out", files[name], *(config if kind == "key" else ()))
        assert status == 0
        entries.append(out.partition("\n#")[0] + "\n" + roles)
        assert Path(files[name]).stat().st_mode & 0o777 == 0o600
    rule = '[[rule]]\nwho = ["alice"]\nreceive = ["md.us.>"]\ndelay_minutes = 15\n'
    Path(files["policy"]).write_text("\n".join(entries) + rule)
    Path(files["wrong"]).write_text("\n".join(entries) + rule.replace("alice", "alcie"))
    Path(files["better"]).write_text("\n".join(entries) + rule)
    assert (
        "alice\n  receive md.us.>, 15 minutes old\nroot (admin"
        in command("admin", "policy", "check", files["policy"])[1]
    )
    status, said = command("admin", "policy", "check", files["wrong"])
    assert (status, "rule[0].who[0]: there is no client 'alcie'" in said) == (1, True)
    assert command("admin", "client", "secret", "alice", "--out", files["alice"])[0] == 1  # it is there already
    assert command("admin", "server-key", *config)[1] in Path(files["root"]).read_text()
    state = str(tmp_path / "state")
    serve = ("admin", "serve", "--policy", files["policy"], "--directory", state, "--port", "0")
    with running("--log-style", "json", *serve) as server:
        server.wait_for_output("stop with Ctrl-C")
        url = server.out.split(" on ")[1].split(",")[0]
        alice = AdminClient.connect(url, files["alice"])
        assert alice.subscribe(["md.us.eq.>"]).grants[0].delay_s == 900
        options = ("--connect", url, "--credentials", files["root"])
        assert "1 subscriptions ended" in command("admin", "revoke", "alice", "--reason", "left", *options)[1]
        stranger = ("--connect", url, "--credentials", files["alice"])
        assert command("admin", "token", *stranger)[0] == 1
        assert "exclude each other" in command("admin", "token", "md.us.eq.>", "--subscription", "7", *stranger)[1]
        status, said = command("admin", "revoke", "root", "--reason", "x", *stranger)
        assert (status, "[forbidden]" in said) == (1, True)
        assert command("admin", "restore", "alice", *options)[0] == 0
        first = json.loads(command("admin", "token", "md.us.eq.>", *stranger)[1])
        again = json.loads(command("admin", "token", "--subscription", first["subscription"], *stranger)[1])
        assert again["subscription"] == first["subscription"]
        assert again["token"] != first["token"]
        assert datetime.fromisoformat(first["expires"]) > datetime.now(UTC)
        alice.subscribe(["md.us.eq.>"])
        Path(files["policy"]).write_text("\n".join(entries))
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "2 subscriptions ended" in server.err, "the policy to be read again")
        Path(files["policy"]).write_text("[clients")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "policy_refused" in server.err, "the mistake to be reported")
        assert command("admin", "policy", "set", files["better"], *options)[0] == 0
        assert "primary of generation 1" in command("admin", "status", *options)[1]
        audit = command("admin", "audit", *options)[1]
        assert "root 127.0.0.1 revoke done alice: >: left" in audit
        assert "alice 127.0.0.1 revoke refused [forbidden]" in audit
        assert server.interrupt() == 0
