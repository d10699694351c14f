"""Who used which right? From the audit log of the administration server."""

from datetime import datetime

import msgspec

from penstock.security.core.operating import AuditEntry
from penstock.spark.pipeline.audit.section import AuditTables, Measure, SectionResult, TextTable
from penstock.spark.pipeline.hosts import read_audit_log, receive_patterns

NS_PER_DAY = 86_400 * 10**9
PATTERNS_SHOWN_MAX = 6
CLIENTS_SHOWN_MAX = 200


class _Use(msgspec.Struct):
    logins: int = 0
    subscriptions: int = 0
    refusals: dict[str, int] = {}
    revocations: int = 0
    patterns: dict[str, int] = {}


class EntitlementSection:
    name = "entitlement"
    title = "Entitlement use"
    needs: tuple[str, ...] = ()

    def compute(self, tables: AuditTables) -> SectionResult:
        if tables.audit_log is None:
            return SectionResult("unknown", "no audit log of an administration server was given (--audit-log)")
        days = None if tables.dates is None else {day_number(date) for date in tables.dates}
        uses: dict[str, _Use] = {}
        for entry in read_audit_log(tables.audit_log):
            if days is None or entry.time_ns // NS_PER_DAY in days:
                _take(entry, uses)
        refused = sum(sum(use.refusals.values()) for use in uses.values())
        subscriptions = sum(use.subscriptions for use in uses.values())
        measures = [
            Measure(self.name, client, name, value)
            for client, use in sorted(uses.items())
            for name, value in (
                ("logins", use.logins), ("subscriptions", use.subscriptions),
                ("refused", sum(use.refusals.values())), ("revocations", use.revocations),
            )
        ]  # fmt: skip
        shown = sorted(uses.items())[:CLIENTS_SHOWN_MAX]
        table = TextTable(
            "By client" + (f", the first {len(shown)}" if len(shown) < len(uses) else ""),
            ("client", "logins", "subscriptions", "refused", "revoked", "received topics"),
            [_row(client, use) for client, use in shown],
            [number for number, (_, use) in enumerate(shown) if use.refusals],
        )
        summary = f"{len(uses):,} clients, {subscriptions:,} subscriptions granted, {refused:,} requests refused"
        return SectionResult("good" if uses else "unknown", summary, measures, [table])


def day_number(date: str) -> int:
    return (datetime.fromisoformat(date) - datetime(1970, 1, 1)).days


def _take(entry: AuditEntry, uses: dict[str, _Use]) -> None:
    if entry.action == "revoke" and entry.outcome == "done":
        uses.setdefault(entry.detail.partition(":")[0], _Use()).revocations += 1
        return
    if not entry.client or entry.action not in ("login", "subscribe", "modify"):
        return
    use = uses.setdefault(entry.client, _Use())
    if entry.outcome == "refused":
        use.refusals[entry.code] = use.refusals.get(entry.code, 0) + 1
    elif entry.action == "login":
        use.logins += 1
    else:
        use.subscriptions += 1
        for pattern in receive_patterns(entry.detail.partition(": ")[2]):
            use.patterns[pattern] = use.patterns.get(pattern, 0) + 1


def _row(client: str, use: _Use) -> tuple[str, ...]:
    counts = (f"{use.logins:,}", f"{use.subscriptions:,}", _reasons(use), f"{use.revocations:,}")
    return (client, *counts, _patterns(use))


def _reasons(use: _Use) -> str:
    return ", ".join(f"{count:,} {code}" for code, count in sorted(use.refusals.items())) or "0"


def _patterns(use: _Use) -> str:
    ordered = sorted(use.patterns, key=lambda pattern: (-use.patterns[pattern], pattern))
    more = f" and {len(ordered) - PATTERNS_SHOWN_MAX:,} more" if len(ordered) > PATTERNS_SHOWN_MAX else ""
    return " ".join(ordered[:PATTERNS_SHOWN_MAX]) + more
