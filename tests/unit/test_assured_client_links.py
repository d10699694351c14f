"""Rights of clients at a message router, and bounds on requests that wait for a client or a disk."""

import asyncio
from pathlib import Path
from typing import Any, cast

import numpy
import pytest

from assured_kit import Router, message, queue
from penstock.assured.config import EndpointConfig, Want
from penstock.assured.core.router.events import Event, ReadRecords, RecordsRead
from penstock.assured.live import disk as storing_module
from penstock.assured.live.access import ClientAccess
from penstock.assured.live.client_links import ClientLinks
from penstock.assured.live.disk import LiveDisk
from penstock.assured.node_config import RouterNodeConfig
from penstock.assured.wire.control import Done, Login, Refused
from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError, ConnectionLostError, JournalGoneError
from penstock.journal import JournalConfig
from penstock.net.core.control_session import Peer
from penstock.net.live.link import Link


def config(directory: Path, **values: Any) -> RouterNodeConfig:
    return RouterNodeConfig(name="router", state_directory=str(directory), **values)


class StuckTransport:
    def get_write_buffer_size(self) -> int:
        return 1 << 40


class StuckLink:
    """The link of a client that never reads."""

    number = 1
    address = "somewhere"
    is_writable = False
    is_closing = False
    is_aborted = False
    transport = StuckTransport()

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None:
        self.is_aborted = True


def links_of(tmp_path: Path, board: Any = None) -> ClientLinks:
    return ClientLinks(
        config(tmp_path),
        ClientAccess((), None),
        board,
        secret=None,
        tls=None,
        counters=Counters("test"),
        is_crowded=lambda: False,
    )


def test_a_client_that_does_not_read_its_answers_delays_nobody(tmp_path: Path) -> None:
    links = links_of(tmp_path)
    link = StuckLink()
    links.links[1] = cast(Link, link)
    links.say(1, Done(1))
    assert link.is_aborted


@pytest.mark.parametrize("is_closing", [True, False])
def test_a_refused_client_does_not_count_as_a_client_that_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_closing: bool
) -> None:
    """While routers switch, clients try to connect again and again."""
    caplog.set_level("INFO", "penstock.assured.links")
    left: list[int] = []
    board = type("Board", (), {"left": left.append})
    links = links_of(tmp_path, board)
    link = StuckLink()
    link.is_closing = is_closing
    links.links[1] = cast(Link, link)
    links.lost(cast(Link, link), ConnectionLostError("the peer ended it"))
    assert left == [1]
    assert ("client_left" in caplog.messages) is not is_closing


def test_where_operators_are_configured_only_operators_define_endpoints() -> None:
    def may_define(access: ClientAccess, name: str, role: Any) -> bool:
        login = Login(name, role, "", 0)
        return access.log_in(1, login, cast(Peer, type("Peer", (), {"node": name})), 0).may_define

    assert may_define(ClientAccess((), None), "app", "client")
    assert not may_define(ClientAccess(("boss",), None), "app", "client")
    assert may_define(ClientAccess(("boss",), None), "boss", "operator")
    router = Router()
    router.link(1, may_define=False)
    answer = router.create(queue("a", "orders.>"))
    assert isinstance(answer, Refused)
    assert answer.code == "not_entitled"


@pytest.mark.parametrize(
    ("wants", "code"),
    [
        ((Want(topics=("orders.>",), where="bid_price >"),), "malformed"),
        ((Want(topics=("orders.>",), where="bid_price > 1 or " * 500 + "ask_price > 1"),), "limit"),
        (tuple(Want(topics=(f"orders.{'x' * 200}.{each}",)) for each in range(5_000)), "limit"),
    ],
)
def test_an_invalid_or_oversized_definition_changes_nothing(wants: tuple[Want, ...], code: str) -> None:
    router = Router(queue("a", "orders.>"))
    router.link(1)
    before = router.journal.next_sequence
    answer = router.create(EndpointConfig(name="b", wants=wants))
    assert isinstance(answer, Refused)
    assert (answer.code, router.journal.next_sequence) == (code, before)
    handle = router.publisher(1)
    router.publish(1, handle, 1, message())
    assert router.queued("a") == 1


@pytest.mark.parametrize("retention", [{"retention_bytes": 1 << 30}, {"retention_seconds": 60}])
def test_a_routers_journal_has_no_retention_of_its_own(tmp_path: Path, retention: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="delete live messages"):
        config(tmp_path, journal=JournalConfig(**cast(Any, retention)))


def test_records_that_are_removed_during_a_read_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an endpoint that is filled from the log would take an empty answer for the end of the log."""

    def gone(*_: object) -> None:
        raise JournalGoneError("it was removed", first_sequence=2)

    monkeypatch.setattr(storing_module, "records_of", gone)
    monkeypatch.setattr(storing_module, "RETRY_SECONDS", 0.0)

    async def read() -> Event:
        told: asyncio.Queue[Event] = asyncio.Queue()
        storing = LiveDisk(tmp_path / "journal", JournalConfig(), Counters("test"), told.put_nowait)
        try:
            storing.read(ReadRecords(1, numpy.zeros(0, numpy.uint64)))
            return await asyncio.wait_for(told.get(), 20)
        finally:
            await storing.close()

    event = asyncio.run(read())
    assert isinstance(event, RecordsRead)
    assert event.is_failed
