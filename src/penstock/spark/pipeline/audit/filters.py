"""Messages received, removed and passed on by filter modules, from their accounts and from the captures.

Accounts are messages of the models `filter_intake` and `filter_account`. An account is cumulative, so the newest one of
a run counts. A run without final accounts is still running, or was killed if a later run follows.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.spark.pipeline.audit.section import (
    AuditTables,
    Measure,
    SectionResult,
    TextTable,
    Verdict,
    count_text,
    publisher_text,
    share_text,
)

APPLICATIONS_SHOWN_MAX = 200
CAUSES = {
    "lost_gone": "gone",
    "lost_no_answer": "no answer",
    "lost_window": "too many at a time",
    "lost_otherwise": "the stream ended",
}


def _newest(table: str, *subject: str) -> str:
    """Query the last account of each subject in each run."""
    stream = ("filter", "started", "publisher_id", "group_address", "epoch", "first_packet")
    key = ", ".join((*stream, *subject))
    return f"""
    SELECT * FROM (
        SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY event_time DESC, next_packet DESC) AS age FROM {table}
    ) WHERE age = 1 ORDER BY {key}"""


CAPTURED = """
    SELECT publisher, `group`, epoch, first_packet, last_packet, sum(messages) AS messages
    FROM delivery GROUP BY publisher, `group`, epoch, place, first_record, first_packet, last_packet"""


class _Use(msgspec.Struct):
    """Totals of one application over all its streams."""

    delivery: str = ""
    offered: int = 0
    passed: int = 0
    lost: int = 0
    nacks: int = 0
    repairs: int = 0
    is_wrong: bool = False


class _Cut(msgspec.Struct):
    """A run that ended without final accounts."""

    module: str
    started: int
    packets: int
    """Packets between its accounts and those of the next run, over the streams of both."""


class FilterSection:
    name = "filters"
    title = "Filter modules"
    needs: tuple[str, ...] = ("filter_intake",)

    def compute(self, tables: AuditTables) -> SectionResult:
        intakes = tables.sql(_newest("filter_intake"))
        sent: list[dict[str, Any]] = []
        if tables.has(["filter_account"]):  # a module without applications has no such table
            tables.view("filter_account")
            sent = tables.sql(_newest("filter_account", "application"))
        uses = _by_application(sent)
        wrong = [row for row in (*intakes, *sent) if not _adds_up(row)] + _lacking(tables, intakes)
        lost = sum(_lost(row) for row in intakes)
        measures = [*self._intake_measures(intakes), *self._use_measures(uses)]
        measures.append(Measure(self.name, "", "wrong", len(wrong), "accounts", "bad" if wrong else "good"))
        blocks = [_table_of_streams(intakes), _table_of_applications(uses)]
        cuts = _cuts(intakes)
        measures += [Measure(self.name, cut.module, "unknown", cut.packets, "packets", "bad") for cut in cuts]
        verdict: Verdict = "bad" if wrong or lost or cuts else "good"
        return SectionResult(verdict, _summary(intakes, uses, len(wrong), cuts), measures, blocks)

    def _intake_measures(self, intakes: list[dict[str, Any]]) -> Iterable[Measure]:
        for row in intakes:
            subject = f"{row['filter']}, {_stream(row)}"
            for name in ("messages", "unwanted"):
                yield Measure(self.name, subject, name, row[name], "messages")
            for name in ("packets", "repaired", "left_to_receivers", *CAUSES):
                verdict: Verdict = "bad" if name in CAUSES and row[name] else "good"
                yield Measure(self.name, subject, name, row[name], "packets", verdict)
            yield Measure(self.name, subject, "nacks", row["nacks"])

    def _use_measures(self, uses: dict[tuple[str, str], _Use]) -> Iterable[Measure]:
        for (module, application), use in uses.items():
            subject = f"{module}, {application}"
            yield Measure(self.name, subject, "received", use.offered, "messages")
            yield Measure(self.name, subject, "passed", use.passed, "messages")
            yield Measure(self.name, subject, "removed", use.offered - use.passed, "messages")
            yield Measure(self.name, subject, "lost", use.lost, "packets")
            yield Measure(self.name, subject, "repairs", use.repairs, "packets")
            yield Measure(self.name, subject, "nacks", use.nacks)


def _lost(row: dict[str, Any]) -> int:
    """Return the number of lost messages, without those that applications request themselves."""
    return sum(int(row[name]) for name in CAUSES)


def _adds_up(row: dict[str, Any]) -> bool:
    """True if every packet number was received, left out or lost."""
    is_of_stream = "application" not in row
    lost = _lost(row) + row["left_to_receivers"] if is_of_stream else row["lost"]
    numbers = row["next_packet"] - row["first_packet"] == row["packets"] + row["left_out"] + lost
    return bool(numbers and (row["unwanted"] <= row["messages"] if is_of_stream else row["passed"] <= row["offered"]))


def _lacking(tables: AuditTables, intakes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return accounts of streams without loss that have fewer messages than a capture of the same packets."""
    if not tables.has(["delivery"]):
        return []
    tables.view("delivery")
    captured: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in tables.sql(CAPTURED):
        captured.setdefault((row["publisher"], row["group"], row["epoch"]), []).append(row)
    lacking = []
    for intake in intakes:
        inside = [
            row["messages"]
            for row in captured.get(_key(intake), ())
            if intake["first_packet"] <= row["first_packet"] and row["last_packet"] < intake["next_packet"]
        ]
        if sum(inside) > intake["messages"] and not _lost(intake) and not intake["left_to_receivers"]:
            lacking.append(intake)
    return lacking


def _by_application(sent: list[dict[str, Any]]) -> dict[tuple[str, str], _Use]:
    uses: dict[tuple[str, str], _Use] = {}
    for row in sent:
        use = uses.setdefault((row["filter"], row["application"]), _Use())
        use.delivery = row["delivery"]
        for name in ("offered", "passed", "lost", "nacks", "repairs"):
            setattr(use, name, getattr(use, name) + row[name])
        use.is_wrong |= not _adds_up(row)
    return uses


def _cuts(intakes: list[dict[str, Any]]) -> list[_Cut]:
    """Return runs without final accounts that are followed by another run of the same module."""
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in intakes:
        runs.setdefault((row["filter"], row["started"]), []).append(row)
    cuts = []
    for (module, started), rows in runs.items():
        after = min((other for name, other in runs if name == module and other > started), default=None)
        if after is None or all(row["state"] == "closed" for row in rows):
            continue
        begun = {_key(row): row["first_packet"] for row in runs[module, after]}
        until = {_key(row): row["next_packet"] for row in rows}
        cuts.append(_Cut(module, started, sum(max(begun.get(key, end) - end, 0) for key, end in until.items())))
    return cuts


def _key(row: dict[str, Any]) -> tuple[int, str, int]:
    return row["publisher_id"], row["group_address"], row["epoch"]


def _summary(intakes: list[dict[str, Any]], uses: dict[tuple[str, str], _Use], wrong: int, cuts: list[_Cut]) -> str:
    modules = len({row["filter"] for row in intakes})
    offered, passed = sum(use.offered for use in uses.values()), sum(use.passed for use in uses.values())
    parts = [
        f"{count_text(modules, 'module')} received {sum(row['messages'] for row in intakes):,} messages",
        f"{passed:,} of {offered:,} messages for {count_text(len(uses), 'application')} passed on",
        f"{offered - passed:,} removed",
        f"{count_text(sum(row['repaired'] for row in intakes), 'packet')} repaired",
        f"{sum(_lost(row) for row in intakes):,} lost",
        f"{count_text(wrong, 'account')} wrong" if wrong else "every number is accounted for",
    ]
    if cuts:
        missing = sum(cut.packets for cut in cuts)
        parts.append(
            f"{count_text(len(cuts), 'run')} killed, {missing:,} packets between them and the next runs unknown"
        )
    return "; ".join(parts)


def _stream(row: dict[str, Any]) -> str:
    return f"{publisher_text(row['publisher_id'])} {row['group_address']}"


def _causes(row: dict[str, Any]) -> str:
    return ", ".join(f"{row[name]:,} {text}" for name, text in CAUSES.items() if row[name]) or "0"


def _table_of_streams(intakes: list[dict[str, Any]]) -> TextTable:
    return TextTable(
        "By stream",
        ("filter", "publisher", "group", "packets", "messages", "unwanted", "repaired", "requests", "left to receivers",
         "lost"),
        [
            (row["filter"], publisher_text(row["publisher_id"]), row["group_address"], f"{row['packets']:,}",
             f"{row['messages']:,}", share_text(row["unwanted"], row["messages"]), f"{row['repaired']:,}",
             f"{row['nacks']:,}", f"{row['left_to_receivers']:,}", _causes(row))
            for row in intakes
        ],
        [number for number, row in enumerate(intakes) if _lost(row) or not _adds_up(row)],
    )  # fmt: skip


def _table_of_applications(uses: dict[tuple[str, str], _Use]) -> TextTable:
    shown = list(uses.items())[:APPLICATIONS_SHOWN_MAX]
    return TextTable(
        "By application" + (f", the first {len(shown)}" if len(shown) < len(uses) else ""),
        ("application", "filter", "delivery", "received", "passed", "removed", "share", "lost", "requests", "repaired"),
        [
            (application, module, use.delivery, f"{use.offered:,}", f"{use.passed:,}",
             f"{use.offered - use.passed:,}", share_text(use.offered - use.passed, use.offered), f"{use.lost:,}",
             f"{use.nacks:,}", f"{use.repairs:,}")
            for (module, application), use in shown
        ],
        [number for number, (_, use) in enumerate(shown) if use.is_wrong],
    )  # fmt: skip
