"""Outcomes of assured messages, from the accounts of message routers.

Accounts are messages of the models `router_run` (acknowledgements to publishers) and `router_account` (of an endpoint).
An account is cumulative, so the newest one counts. A run without a final account is still running, or was killed if a
later run follows.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, TypeAlias

from penstock.spark.pipeline.audit.section import (
    AuditTables,
    Measure,
    SectionResult,
    TextTable,
    Verdict,
    count_text,
    newest_sql,
    runs_killed,
)

TREATMENTS = ("stored", "asynchronous", "synchronous", "degraded")
CAME = ("begun", "accepted", "brought")
WENT = ("settled", "dead", "expired", "removed", "live")
ENDPOINTS_SHOWN_MAX = 200

Row: TypeAlias = dict[str, Any]


class RouterSection:
    name = "router"
    title = "Message routers"
    needs: tuple[str, ...] = ("router_run", "router_account")

    def compute(self, tables: AuditTables) -> SectionResult:
        return self.judged(
            tables.sql(newest_sql("router_run", "router")),
            tables.sql(newest_sql("router_account", "router", "endpoint", "number")),
        )

    def judged(self, runs: list[Row], endpoints: list[Row]) -> SectionResult:
        """Check the newest accounts."""
        wrong = [row for row in runs if _is_run_wrong(row)] + [row for row in endpoints if _is_wrong(row)]
        missing = _missing(runs, endpoints)
        killed = runs_killed(runs, "router")
        measures = [*self._run_measures(runs), *self._endpoint_measures(endpoints)]
        measures += [Measure(self.name, row["router"], "killed", 1, "runs") for row in killed]
        measures.append(Measure(self.name, "", "wrong", len(wrong), "accounts", "bad" if wrong else "good"))
        measures.append(Measure(self.name, "", "missing", missing, "messages", "bad" if missing else "good"))
        verdict: Verdict = "bad" if wrong or missing else "good"
        summary = _summary(runs, endpoints, len(wrong), missing, len(killed))
        blocks = [_table_of_routers(runs, wrong, killed), _table_of_endpoints(endpoints, wrong)]
        return SectionResult(verdict, summary, measures, blocks)

    def _run_measures(self, runs: list[Row]) -> Iterable[Measure]:
        for row in runs:
            for name in ("accepted", *TREATMENTS, "waiting", "known", "unmatched", "refused"):
                yield Measure(self.name, row["router"], name, row[name], "messages")

    def _endpoint_measures(self, endpoints: list[Row]) -> Iterable[Measure]:
        for row in endpoints:
            subject = f"{row['router']}, {row['endpoint']}"
            for name in (*CAME, "delivered", "redelivered", "overflowed", *WENT):
                yield Measure(self.name, subject, name, row[name], "messages")


def _is_run_wrong(row: Row) -> bool:
    """True unless every accepted message was acknowledged in one of the ways or is waiting."""
    return bool(row["accepted"] != sum(row[name] for name in TREATMENTS) + row["waiting"])


def _is_wrong(row: Row) -> bool:
    """True unless every message was settled, given up or is still queued, and no more were settled than delivered."""
    return bool(
        sum(row[name] for name in CAME) != sum(row[name] for name in WENT)
        or row["settled"] > row["delivered"]
        or row["redelivered"] > row["delivered"]
        or row["unsettled"] > row["live"]
    )


def _missing(runs: list[Row], endpoints: list[Row]) -> int:
    """Return the number of acknowledged messages that were in an endpoint at the end of a cleanly ended run, but
    missing at the beginning of the next run.
    """
    waiting = {(row["router"], row["started"]): row["waiting"] for row in runs}
    by_endpoint: dict[tuple[str, str, int], list[Row]] = {}
    for row in sorted(endpoints, key=lambda row: row["started"]):
        by_endpoint.setdefault((row["router"], row["endpoint"], row["number"]), []).append(row)
    return sum(
        max(0, before["live"] - waiting.get((before["router"], before["started"]), 0) - after["begun"])
        for rows in by_endpoint.values()
        for before, after in pairwise(rows)
        if before["state"] == "closed"
    )


def _summary(runs: list[Row], endpoints: list[Row], wrong: int, missing: int, killed: int) -> str:
    routers = {row["router"] for row in runs}
    names = {(row["router"], row["endpoint"], row["number"]) for row in endpoints}
    newest = {(row["router"], row["endpoint"], row["number"]): row for row in sorted(endpoints, key=_started)}
    acknowledged = sum(row[name] for row in runs for name in TREATMENTS)
    parts = [
        f"{count_text(len(routers), 'router')} with {count_text(len(names), 'endpoint')}",
        f"{_sum(runs, 'accepted')} messages accepted, {acknowledged:,} acknowledged, {_sum(runs, 'refused')} refused",
        f"{_sum(endpoints, 'delivered')} delivered, {_sum(endpoints, 'redelivered')} of these again",
        f"{_sum(endpoints, 'settled')} settled, {_sum(endpoints, 'dead', 'expired')} given up",
        f"{sum(row['live'] for row in newest.values()):,} queued",
        f"{missing:,} missing after a restart" if missing else "none is missing after a restart",
        f"{count_text(wrong, 'account')} wrong" if wrong else "every account adds up",
    ]
    return "; ".join([*parts, f"{count_text(killed, 'run')} killed"] if killed else parts)


def _started(row: Row) -> int:
    return int(row["started"])


def _sum(rows: list[Row], *names: str) -> str:
    return f"{sum(row[name] for row in rows for name in names):,}"


def _table_of_routers(runs: list[Row], wrong: list[Row], killed: list[Row]) -> TextTable:
    counted = ("accepted", *TREATMENTS, "waiting", "known", "unmatched", "refused")
    return TextTable(
        "By router",
        ("router", "role", "epoch", *counted, "state"),
        [
            (
                *(row["router"], row["role"], str(row["router_epoch"])),
                *(f"{row[name]:,}" for name in counted),
                "killed" if row in killed else row["state"],
            )
            for row in runs
        ],
        [number for number, row in enumerate(runs) if row in wrong],
    )


def _table_of_endpoints(endpoints: list[Row], wrong: list[Row]) -> TextTable:
    shown = endpoints[:ENDPOINTS_SHOWN_MAX]
    counted = (*CAME, "delivered", "redelivered", "overflowed", *WENT)
    return TextTable(
        "By endpoint" + (f", the first {len(shown)}" if len(shown) < len(endpoints) else ""),
        ("endpoint", "router", *counted),
        [(row["endpoint"], row["router"], *(f"{row[name]:,}" for name in counted)) for row in shown],
        [number for number, row in enumerate(shown) if row in wrong],
    )
