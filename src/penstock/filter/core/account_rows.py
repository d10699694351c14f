"""The accounts of a filter module as rows of the models `filter_intake` and `filter_account`."""

from collections.abc import Iterable, Iterator

from penstock.base.counters import Cause
from penstock.base.ids import format_group
from penstock.filter.core.ledger import Entry, IntakeCounts, Sent
from penstock.model import shipped
from penstock.runtime.accounts import Account

INTAKE, ACCOUNT = shipped("filter_intake"), shipped("filter_account")

LOST_FIELDS = {
    Cause.GONE: "lost_gone",
    Cause.NO_ANSWER: "lost_no_answer",
    Cause.WINDOW: "lost_window",
    Cause.UNREPAIRED: "left_to_receivers",
}


def account_rows(entries: Iterable[Entry]) -> Iterator[Account]:
    for entry in entries:
        if isinstance(entry, IntakeCounts):
            yield Account(INTAKE, entry, {**_common(entry), **_intake(entry)}, entry.is_closed)
        else:
            yield Account(ACCOUNT, entry, {**_common(entry), **_sent(entry)}, entry.is_closed)


def _intake(entry: IntakeCounts) -> dict[str, object]:
    lost = dict.fromkeys([*LOST_FIELDS.values(), "lost_otherwise"], 0)
    for cause, count in entry.lost:
        lost[LOST_FIELDS.get(cause, "lost_otherwise")] += count
    return {**lost, "repaired": entry.repaired, "unwanted": entry.unwanted, "messages": entry.messages}


def _sent(entry: Sent) -> dict[str, object]:
    names = " ".join(entry.applications).encode()[: ACCOUNT.fields_by_name["application"].size]
    return {
        "application": names.decode(errors="ignore"),
        "delivery": entry.delivery,
        "lost": entry.lost,
        "late": entry.late,
        "offered": entry.offered,
        "passed": entry.messages,
        "repairs": entry.repairs,
    }


def _common(entry: Entry) -> dict[str, object]:
    return {
        "publisher_id": entry.stream.publisher_id,
        "group_address": format_group(entry.stream.group),
        "epoch": entry.epoch,
        "first_packet": entry.first_packet,
        "next_packet": entry.next_packet,
        "packets": entry.packets,
        "left_out": entry.left_out,
        "nacks": entry.nacks,
    }
