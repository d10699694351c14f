"""Rights to read a served journal where an administration server is configured: also on the loopback address."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from admin_kit import signed_token
from integration.console_kit import SECRETS, policy_text
from penstock.admin import AdminConfig, AdminLimits
from penstock.admin.live.driver import AdminServer
from penstock.base.errors import (
    ConfigurationError,
    NotEntitledError,
    RemoteProtocolError,
    RevokedError,
    TokenError,
)
from penstock.journal import JournalWriter, Record
from penstock.journal.client import follow_remote, measure_remote
from penstock.journal.core.messages import PROTOCOL, Login
from penstock.journal.server import JournalServer
from penstock.net.live.control_driver import connect_control
from penstock.net.secret import write_private
from penstock.security import Credentials, Grant
from penstock.security.core.access import AdminAccess
from penstock.security.live.client import AdminClient
from penstock.security.live.journal_access import JournalAccess, JournalLogin
from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.sources.find import SourceSelection, find_sources
from penstock.spark.source import SourceOptions
from waiting import PATIENCE_SECONDS

PENSTOCK = [sys.executable, "-c", "from penstock.cli.main import main; main()"]
COMMAND = [*PENSTOCK, "journal"]
RECORDS = 40
RULES = """
[[rule]]
who = ["alice"]
receive = ["journal.trades"]

[[rule]]
who = ["bob"]
receive = ["journal.other", "md.>"]

[[rule]]
who = ["clerk"]
receive = ["journal.>"]
delay_minutes = 15
"""


class Scene:
    """An administration server, a journal, and `penstock journal serve` of it on the loopback address."""

    def __init__(self, directory: Path, url: str, port: int) -> None:
        self.url = url
        self.port = port
        self.signing_key = directory / "admin" / "signing.pem"
        self.journal = directory / "trades.d"
        self._directory = directory

    def credentials(self, name: str) -> str:
        return str(credentials_file(self._directory, name))

    def login(self, name: str) -> JournalLogin:
        return JournalLogin(AdminAccess(url=self.url, credentials=self.credentials(name)))

    def read(self, log_in: Callable[[str], str] | None) -> list[int]:
        """The numbers of all records."""

        async def main() -> list[int]:
            async with asyncio.timeout(PATIENCE_SECONDS):
                records = follow_remote("127.0.0.1", self.port, is_live=False, log_in=log_in)
                return [record.sequence async for record in records]

        return asyncio.run(main())

    def operator(self) -> AdminClient:
        return AdminClient.connect(self.url, Credentials("boss", secret=SECRETS["boss"].encode()))


def credentials_file(directory: Path, name: str) -> Path:
    path = directory / f"{name}.toml"
    if not path.exists():
        write_private(path, f'client = "{name}"\nsecret = "{SECRETS[name]}"\n'.encode())
    return path


def append(path: Path, count: int) -> None:
    with JournalWriter.open(path) as journal:
        for _ in range(count):
            journal.append(b"a record")
        journal.commit()


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[AdminServer]:
    (tmp_path / "policy.toml").write_text(policy_text(RULES))
    limits = AdminLimits(key_grace_s=0.0, failures_max=1_000, address_failures_max=1_000)
    config = AdminConfig(directory=str(tmp_path / "admin"), policy=str(tmp_path / "policy.toml"), port=0, limits=limits)
    with AdminServer(config) as server:
        yield server


@pytest.fixture
def scene(tmp_path: Path, admin: AdminServer) -> Iterator[Scene]:
    append(tmp_path / "trades.d", RECORDS)
    access = ["--connect", admin.url, "--credentials", str(credentials_file(tmp_path, "nodes")), "--name", "trades"]
    command = [*COMMAND, "serve", str(tmp_path / "trades.d"), "--port", "0", *access]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"NO_COLOR": "1"})
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        match = re.search(r"127\.0\.0\.1:(\d+)", said)
        assert match is not None, said
        yield Scene(tmp_path, admin.url, int(match[1]))
    finally:
        process.terminate()
        status = process.wait(PATIENCE_SECONDS)
        process.stdout.close()
    assert status == 0


@pytest.mark.spec("AUTH-5")
def test_nobody_reads_a_journal_without_a_token_that_grants_it(scene: Scene) -> None:
    everything = list(range(1, RECORDS + 1))
    with pytest.raises(TokenError, match="a token of the administration server is required"):
        scene.read(None)
    with pytest.raises(TokenError, match="required"):
        asyncio.run(measure_remote("127.0.0.1", scene.port))
    with pytest.raises(TokenError, match="not a token"):
        scene.read(lambda name: "forged")
    with pytest.raises(NotEntitledError):  # the administration server gives no token for this journal
        scene.read(scene.login("bob"))
    with AdminClient.connect(scene.url, scene.credentials("bob")) as bob:
        other = bob.subscribe(("journal.other", "md.>")).token
    with pytest.raises(NotEntitledError, match=r"no grant to receive 'journal\.trades'"):
        scene.read(lambda name: other)
    assert scene.read(scene.login("alice")) == everything


@pytest.mark.spec("AUTH-5")
def test_a_grant_with_a_delay_or_to_send_does_not_allow_reading(scene: Scene) -> None:
    with pytest.raises(NotEntitledError, match="a delay of 900 s"):
        scene.read(scene.login("clerk"))
    grants = [Grant("journal.trades", "send"), Grant("md.>", "receive")]
    token = signed_token(scene.signing_key, "alice", grants)
    with pytest.raises(NotEntitledError, match="no grant"):
        scene.read(lambda name: token)


@pytest.mark.spec("AUTH-6")
def test_a_revocation_ends_a_follower_and_a_restored_client_reads_again(scene: Scene) -> None:
    alice = scene.login("alice")

    async def main() -> None:
        records = follow_remote("127.0.0.1", scene.port, log_in=alice)
        async with asyncio.timeout(PATIENCE_SECONDS), contextlib.aclosing(records):
            for number in range(1, RECORDS + 1):
                assert (await anext(records)).sequence == number
            waiting: asyncio.Future[Record] = asyncio.ensure_future(anext(records))
            with scene.operator() as boss:
                ended = await asyncio.to_thread(boss.revoke, "alice", "left the firm", [">"])
            assert len(ended.subscriptions) == 1
            with pytest.raises(RevokedError, match="left the firm"):  # the server's answer when it asks for a new token
                await waiting

    asyncio.run(main())
    with pytest.raises(RevokedError):
        scene.read(alice)
    with scene.operator() as boss:
        boss.restore("alice")
    assert len(scene.read(alice)) == RECORDS


@pytest.mark.spec("AUTH-6")
def test_a_token_that_was_kept_is_refused_after_the_revocation(scene: Scene) -> None:
    kept = scene.login("alice")("trades")
    assert len(scene.read(lambda name: kept)) == RECORDS

    async def main() -> None:
        records = follow_remote("127.0.0.1", scene.port, log_in=lambda name: kept)
        async with asyncio.timeout(PATIENCE_SECONDS), contextlib.aclosing(records):
            for _ in range(RECORDS):
                await anext(records)
            with scene.operator() as boss:
                await asyncio.to_thread(boss.revoke, "alice", "left the firm", [">"])
            with pytest.raises(RevokedError, match="left the firm"):
                await anext(records)

    asyncio.run(main())


@pytest.mark.spec("AUTH-6")
def test_a_follower_whose_token_expires_goes_on_with_a_new_one(tmp_path: Path) -> None:
    """Although the quiet journal sends nothing for longer than the follower's patience."""
    (tmp_path / "policy.toml").write_text(policy_text(RULES))
    limits = AdminLimits(key_grace_s=0.0, token_s=5)
    config = AdminConfig(directory=str(tmp_path / "admin"), policy=str(tmp_path / "policy.toml"), port=0, limits=limits)
    path = tmp_path / "trades.d"
    append(path, RECORDS)

    async def main(admin: AdminServer, access: JournalAccess) -> None:
        counted: list[str] = []
        log_in = JournalLogin(AdminAccess(url=admin.url, credentials=str(credentials_file(tmp_path, "alice"))))
        is_renewed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def counting(name: str) -> str:
            counted.append(name)
            if len(counted) == 2:
                loop.call_soon_threadsafe(is_renewed.set)
            return log_in(name)

        async with JournalServer(path, node="trades", check_token=access.check) as server:
            records = follow_remote("127.0.0.1", server.port, log_in=counting, patience_seconds=4)
            async with asyncio.timeout(PATIENCE_SECONDS), contextlib.aclosing(records):
                for _ in range(RECORDS):
                    await anext(records)
                waiting = asyncio.ensure_future(anext(records))
                await is_renewed.wait()
                await asyncio.to_thread(append, path, 1)
                assert (await waiting).sequence == RECORDS + 1

    with AdminServer(config) as admin:
        access = AdminAccess(url=admin.url, credentials=str(credentials_file(tmp_path, "nodes")))
        with JournalAccess(access, "trades") as checked:
            asyncio.run(main(admin, checked))


@pytest.mark.spec("AUTH-5")
def test_the_commands_and_spark_log_in(scene: Scene) -> None:
    place = f"tcp://127.0.0.1:{scene.port}"

    def cat(*options: str) -> "subprocess.CompletedProcess[str]":
        command = [*COMMAND, "cat", place, "--json", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)

    refused = cat()
    assert refused.returncode != 0
    assert "a token of the administration server is required" in refused.stderr
    assert refused.stdout == ""
    shown = cat("--connect", scene.url, "--credentials", scene.credentials("alice"))
    assert shown.returncode == 0, shown.stderr
    assert len(shown.stdout.splitlines()) == RECORDS
    with pytest.raises(TokenError):
        JournalPlace(place).measure()
    remote = JournalPlace(place, admin=scene.url, credentials=scene.credentials("alice"))
    assert remote.measure() == JournalPlace(str(scene.journal)).measure()
    assert sum(len(batch.rows) for batch in remote.read(1, RECORDS)) == RECORDS
    with pytest.raises(ConfigurationError, match="require each other"):
        JournalPlace(place, admin=scene.url).measure()


@pytest.mark.spec("AUTH-5")
def test_the_options_of_spark_and_of_the_pipeline_name_the_credentials(scene: Scene, tmp_path: Path) -> None:
    given = {"admin": scene.url, "credentials": scene.credentials("alice")}
    (place,) = SourceOptions(connect=(f"127.0.0.1:{scene.port}",), **given).places()
    assert place.measure().next_sequence == RECORDS + 1
    where = f"tcp://127.0.0.1:{scene.port}"
    run = [*PENSTOCK, "pipeline", "run", where, "--archive", str(tmp_path / "archive.d"), "--master", "local[1]"]
    refused = subprocess.run(run, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert refused.returncode != 0
    assert "a token of the administration server is required" in refused.stderr
    options = SourceSelection(sources=[where], **given)
    assert len(find_sources(options, cores=1)) == 1


def test_a_server_without_tokens_ignores_a_login(tmp_path: Path) -> None:
    append(tmp_path / "trades.d", RECORDS)

    async def main() -> None:
        async with JournalServer(tmp_path / "trades.d") as server:
            records = follow_remote("127.0.0.1", server.port, is_live=False, log_in=lambda name: "unchecked")
            assert len([record async for record in records]) == RECORDS

    asyncio.run(main())


def test_a_second_login_is_refused(tmp_path: Path) -> None:
    """A token that was checked cannot be exchanged for one that was not."""
    append(tmp_path / "trades.d", RECORDS)

    async def main() -> None:
        async with (
            JournalServer(tmp_path / "trades.d", check_token=lambda token: None) as server,
            await connect_control(PROTOCOL, "127.0.0.1", server.port, node="follower") as connection,
        ):
            await connection.send(Login("one"))
            await connection.send(Login("two"))
            with contextlib.suppress(RemoteProtocolError):
                assert await connection.receive() is None

    asyncio.run(main())
