"""Only the owner can read the files of nodes, with any umask (AUTH-7)."""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from admin_kit import config, credentials_file
from file_kit import readable_by_others
from integration.assured_kit import ORDERS, client_of, router_config, router_here
from integration.console_kit import running_console
from integration.feed_kit import running_feed
from integration.tree_kit import agent_here, publish, publisher, root_config
from penstock.admin.live.driver import AdminServer
from penstock.bench.adapters import wait_for
from penstock.feed.adapter_config import AdminConfig, JournalCaptureConfig
from penstock.feed.config import ServiceConfig
from penstock.runtime.accounts import AccountsConfig
from penstock.security.core.access import AdminAccess
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.spec("AUTH-7")


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_routers_agents_and_consoles_keep_their_files_to_themselves(tmp_path: Path) -> None:
    made = tmp_path / "made"
    outside, console_outside = tmp_path / "outside", tmp_path / "console-outside"
    outside.mkdir()
    console_outside.mkdir()
    with ExitStack() as stack:
        server = stack.enter_context(
            AdminServer(msgspec.structs.replace(config(outside), directory=str(made / "admin")))
        )
        access = AdminAccess(url=server.url, credentials=str(credentials_file(outside, "filter")))
        accounts = AccountsConfig(path=str(made / "accounts"), period_s=0.1)
        checking = router_config(made / "checking", ORDERS, admin=access)
        stack.enter_context(router_here(checking))
        router = stack.enter_context(router_here(router_config(made / "router", ORDERS, accounts=accounts)))
        with client_of(router.place) as client, client.publisher() as sender:
            sender.publish("orders.new", b"1", timeout=PATIENCE_SECONDS)
        root = stack.enter_context(agent_here(root_config(made / "root")))
        with publisher(root.place) as source:
            publish(source, range(1, 10))
        console = stack.enter_context(running_console(console_outside, state_directory=str(made / "console")))
        assert console.browser("alice")
    names = {path.name for path in made.rglob("*")}
    assert {"tokens.json", "tail", "actions.jsonl"} <= names, names
    assert any(made.rglob("accounts/*"))
    assert readable_by_others(made) == []


def test_an_adapter_keeps_the_clear_copy_of_a_sealed_feed_to_itself(tmp_path: Path) -> None:
    with AdminServer(config(tmp_path)) as server:
        admin = AdminConfig(
            url=server.url,
            credentials=str(credentials_file(tmp_path, "feed")),
            topics=("md.us.eq.>",),
            contributions=("derived.>",),
        )
        journal = JournalCaptureConfig(path=str(tmp_path / "made" / "journal"))
        options = {"admin": admin, "service": ServiceConfig(), "publish": {"sealed": True}, "journal": journal}
        with running_feed(tmp_path, 1, rate=500, **options) as feed:
            (adapter,) = feed.adapters
            wait_for(lambda: adapter.status().streams[0].next_message_sequence > 100, "messages")
            wait_for(lambda: any((tmp_path / "made" / "journal").glob("*")), "the journal")
    assert readable_by_others(tmp_path / "made") == []
    assert readable_by_others(tmp_path / "state-0") == []
    assert stat.S_IMODE((tmp_path / "made" / "journal").stat().st_mode) == 0o700
