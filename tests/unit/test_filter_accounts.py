"""The filter module's account of every packet number. The kit checks the sums of accounts in all tests."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from account_kit import recorded
from penstock.base.counters import Cause, Counters
from penstock.filter.core.account_rows import account_rows
from penstock.filter.core.ledger import IntakeCounts, Sent
from penstock.runtime.accounts import Account, AccountRecorder, AccountsConfig
from penstock.wire import PacketFlag, encode_gone, restamp
from unit.filter_module_kit import GROUP, KEY, MS, PUBLISHER_ID, Harness, harness, packets, stream


def small(entry: Sent) -> tuple[int, ...]:
    return (entry.first_packet, entry.next_packet, entry.packets, entry.left_out, entry.lost, entry.late)


@pytest.mark.parametrize("in_batches", [True, False])
def test_an_account_counts_sent_and_removed_messages(in_batches: bool) -> None:
    module = harness()
    module.attach(1, "a", "b", name="one")
    module.attach(2, "c", name="two")
    data = packets([("a", b""), ("x", b"")], [("c", b"")], [("x", b"")], [("b", b""), ("a", b""), ("c", b"")])
    module.take(data[:1])
    (module.take_batch if in_batches else module.take)(data[1:])
    intake = module.intake()
    assert (intake.packets, intake.messages, intake.unwanted, intake.lost, intake.nacks) == (4, 7, 2, (), 0)
    one, two = module.account("one"), module.account("two")
    assert (small(one), one.offered, one.messages) == ((1, 5, 2, 2, 0, 0), 7, 3)
    assert (small(two), two.offered, two.messages) == ((1, 5, 2, 2, 0, 0), 7, 2)


def test_an_account_opens_when_the_application_joins_and_closes_when_it_leaves() -> None:
    module = harness()
    module.attach(1, "a", name="early")
    data = stream("aabaa")
    module.take(data[:3])
    module.attach(2, "a", name="late")
    module.take(data[3:])
    late = module.account("late")
    assert (late.first_packet, late.offered, late.messages) == (4, 2, 2)
    module.detach(2)
    assert [(each.applications, each.messages) for each in module.closed if isinstance(each, Sent)] == [(("late",), 2)]
    module.unwant(1, "a")
    assert [each.applications for each in module.closed if isinstance(each, Sent)] == [("late",), ("early",)]
    assert [each.next_packet for each in module.closed if isinstance(each, IntakeCounts)] == [6]
    assert module.open == []


def test_repairs_and_losses_from_the_network_have_their_causes() -> None:
    module = harness()
    module.attach(1, "a", name="one")
    data = stream("aaaaaa")
    module.take([data[0], data[2], data[5]])  # 2, 4 and 5 are missing
    module.tick()
    module.take([restamp(data[1], set_flags=PacketFlag.REPAIR)])
    module.take([encode_gone(PUBLISHER_ID, GROUP, 1, [(4, 5)])])
    intake = module.intake()
    assert (intake.packets, intake.repaired, intake.nacks, intake.lost) == (4, 1, 1, ((Cause.GONE, 2),))
    assert small(module.account("one")) == (1, 7, 4, 0, 2, 0)


def test_repairs_for_an_application_are_counted_in_its_own_account() -> None:
    module = harness()
    module.attach(1, "a", name="one")
    module.attach(2, "a", name="two")
    module.take(stream("aaaa"))
    module.nack(2, (2, 3))
    module.tick()
    assert [(module.account(name).nacks, module.account(name).repairs) for name in ("one", "two")] == [(0, 0), (1, 2)]
    assert module.account("two").messages == 4


def test_late_packets_are_counted_separately_where_receivers_repair() -> None:
    module = harness(repair="receivers")
    module.attach(1, "a", name="one")
    data = stream("axaax")
    module.take([data[0], data[3]])
    module.take([data[2], data[4]])
    assert small(module.account("one")) == (1, 5, 2, 0, 2, 1)
    assert module.intake().lost == ((Cause.UNREPAIRED, 2),)


def test_a_restarted_publisher_has_a_new_account() -> None:
    module = harness()
    module.attach(1, "a", name="one")
    module.take(stream("aa"))
    module.take(stream("aaa", epoch=2))
    assert [each.packets for each in module.closed if isinstance(each, Sent)] == [2]
    assert (module.intake().epoch, module.intake().packets) == (2, 3)


# In the journal


def recorder(module: Harness, path: Path, counters: Counters) -> AccountRecorder:
    async def rows() -> Iterable[Account]:
        return account_rows(module.open)

    return AccountRecorder(AccountsConfig(path=str(path)), "test.{}", rows, counters, filter="beside")


def test_accounts_in_the_journal_are_messages(tmp_path: Path) -> None:
    module = harness()
    module.attach(1, "a", name="one")
    module.take(stream("ab"))
    book = recorder(module, tmp_path / "accounts", Counters("test"))
    book.start()
    asyncio.run(book.record())
    asyncio.run(book.record())  # no change
    module.take(stream("a", first=3))
    asyncio.run(book.close())
    rows = recorded(tmp_path / "accounts")
    assert [(row["model"], row["state"], row["packets"]) for row in rows if row["model"] == "filter_intake"] == [
        ("filter_intake", "open", 2),
        ("filter_intake", "closed", 3),
    ]
    first, last = (row for row in rows if row["model"] == "filter_account")
    assert (first["application"], first["offered"], first["passed"], first["left_out"]) == ("one", 2, 1, 0)
    assert (last["passed"], last["left_out"], last["publisher_id"], last["state"]) == (2, 1, KEY.publisher_id, "closed")
    assert last["group_address"] == "239.1.1.1"
    assert last["started"] == first["started"] < last["event_time"]


def test_last_accounts_are_written_when_the_disk_has_recovered(tmp_path: Path) -> None:
    module = harness()
    module.attach(1, "a", name="one")
    module.take(stream("ab"))
    blocked = tmp_path / "accounts"
    blocked.write_text("no directory")
    counters = Counters("test")
    book = recorder(module, blocked, counters)
    module.detach(1)
    module.tick(10 * MS)
    book.write(account_rows(module.closed))
    assert counters["packets_unrecorded"] == 1
    blocked.unlink()
    book.write([])
    asyncio.run(book.close())
    assert {(row["model"], row["state"]) for row in recorded(blocked)} == {
        ("filter_account", "closed"),
        ("filter_intake", "closed"),
    }
