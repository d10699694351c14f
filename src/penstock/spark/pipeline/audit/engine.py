"""Delivery to the consumers of distribution nodes, from the accounts of ticker plants, multiplexers and edge caches.

Accounts are messages of the models `engine_intake` and `engine_account`. An account is cumulative, so the newest one
counts. A run without a final account is still running, or was killed if a later run follows.
"""

from collections.abc import Iterable
from typing import Any

from penstock.spark.pipeline.audit.section import (
    AuditTables,
    Measure,
    SectionResult,
    TextTable,
    Verdict,
    count_text,
    newest_sql,
    runs_killed,
    share_text,
)

CONSUMERS_SHOWN_MAX = 200


class EngineSection:
    name = "engine"
    title = "Distribution nodes"
    needs: tuple[str, ...] = ("engine_intake",)

    def compute(self, tables: AuditTables) -> SectionResult:
        intakes = tables.sql(newest_sql("engine_intake", "node"))
        accounts: list[dict[str, Any]] = []
        if tables.has(["engine_account"]):  # a node without consumers has no such table
            tables.view("engine_account")
            accounts = tables.sql(newest_sql("engine_account", "node", "attachment", "class_name"))
        wrong = [row for row in accounts if _is_wrong(row)]
        lost = [row for row in accounts if row["class_name"] == "critical" and row["receipts"]]
        killed = runs_killed(intakes, "node")
        measures = [*self._node_measures(intakes, killed), *self._consumer_measures(accounts)]
        measures.append(Measure(self.name, "", "wrong", len(wrong), "accounts", "bad" if wrong else "good"))
        verdict: Verdict = "bad" if wrong or lost or killed else "good"
        summary = _summary(intakes, accounts, len(wrong), len(killed))
        return SectionResult(
            verdict, summary, measures, [_table_of_nodes(intakes, killed), _table_of_consumers(accounts)]
        )

    def _node_measures(self, intakes: list[dict[str, Any]], killed: list[dict[str, Any]]) -> Iterable[Measure]:
        for row in intakes:
            yield Measure(self.name, row["node"], "updates", row["updates"], "updates")
            yield Measure(self.name, row["node"], "losses", row["losses"])
        for row in killed:
            yield Measure(self.name, row["node"], "killed", 1, "runs", "bad")

    def _consumer_measures(self, accounts: list[dict[str, Any]]) -> Iterable[Measure]:
        for row in accounts:
            subject = f"{row['node']}, {row['consumer']}, {row['class_name']}"
            for name in ("sent", "conflated", "congested"):
                yield Measure(self.name, subject, name, row[name], "updates")
            if row["class_name"] == "critical":
                yield Measure(self.name, subject, "receipts", row["receipts"], "", "bad" if row["receipts"] else "good")


def _is_wrong(row: dict[str, Any]) -> bool:
    """True if critical updates were conflated, or if sent updates have no bytes."""
    is_merged = row["class_name"] == "critical" and row["conflated"]
    return bool(is_merged or (row["sent"] and not row["bytes"]))


def _summary(intakes: list[dict[str, Any]], accounts: list[dict[str, Any]], wrong: int, killed: int) -> str:
    consumers = {(row["node"], row["consumer"]) for row in accounts}
    receipts = sum(row["receipts"] for row in accounts if row["class_name"] == "critical")
    parts = [
        f"{count_text(len({row['node'] for row in intakes}), 'node')} served {count_text(len(consumers), 'consumer')}",
        f"{sum(row['sent'] for row in accounts):,} updates sent",
        f"{sum(row['conflated'] for row in accounts):,} conflated",
        f"{count_text(receipts, 'receipt')} for undelivered updates",
        f"{count_text(wrong, 'account')} wrong" if wrong else "every account is right",
    ]
    return "; ".join([*parts, f"{count_text(killed, 'run')} killed"] if killed else parts)


def _table_of_nodes(intakes: list[dict[str, Any]], killed: list[dict[str, Any]]) -> TextTable:
    return TextTable(
        "By node",
        ("node", "kind", "updates", "items", "losses", "consumers", "state"),
        [
            (row["node"], row["kind"], f"{row['updates']:,}", f"{row['items']:,}", f"{row['losses']:,}",
             f"{row['consumers']:,}", row["state"])
            for row in intakes
        ],
        [number for number, row in enumerate(intakes) if row in killed],
    )  # fmt: skip


def _table_of_consumers(accounts: list[dict[str, Any]]) -> TextTable:
    used = [row for row in accounts if row["sent"] or row["conflated"] or row["class_name"] == "critical"]
    shown = used[:CONSUMERS_SHOWN_MAX]
    return TextTable(
        "By consumer" + (f", the first {len(shown)}" if len(shown) < len(used) else ""),
        ("consumer", "node", "class", "sent", "conflated", "share", "congested", "overruns", "receipts"),
        [
            (row["consumer"], row["node"], row["class_name"], f"{row['sent']:,}", f"{row['conflated']:,}",
             share_text(row["conflated"], row["sent"] + row["conflated"]), f"{row['congested']:,}",
             f"{row['overruns']:,}", f"{row['receipts']:,}")
            for row in shown
        ],
        [number for number, row in enumerate(shown) if _is_wrong(row) or row["receipts"]],
    )  # fmt: skip
