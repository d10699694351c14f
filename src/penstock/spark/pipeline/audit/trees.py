"""Delivery through distribution trees, from the accounts of their agents.

Accounts are messages of the models `agent_run`, `agent_intake` (of a stream) and `agent_account` (of a neighbour's
link). An account is cumulative, so the newest one counts. A run without a final account is still running, or was killed
if a later run follows.
"""

from collections.abc import Iterable
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

NEIGHBOURS_SHOWN_MAX = 200
RECEIVERS = ("subscriber", "agent", "standby", "peer")

Row: TypeAlias = dict[str, Any]


class TreeSection:
    name = "tree"
    title = "Distribution trees"
    needs: tuple[str, ...] = ("agent_run",)

    def compute(self, tables: AuditTables) -> SectionResult:
        runs = tables.sql(newest_sql("agent_run", "agent"))
        return self.judged(runs, _rows(tables, "agent_intake", "stream_name"), _rows(tables, "agent_account", "link"))

    def judged(self, runs: list[Row], streams: list[Row], links: list[Row]) -> SectionResult:
        """Check the newest accounts."""
        wrong = _wrong_streams(streams) + [row for row in links if _is_wrong(row)]
        lost = [row for row in links if row["gone"] or row["diverged"]]
        killed = runs_killed(runs, "agent")
        measures = [*self._run_measures(runs), *self._stream_measures(streams), *self._link_measures(links)]
        measures += [Measure(self.name, row["agent"], "killed", 1, "runs") for row in killed]
        measures.append(Measure(self.name, "", "wrong", len(wrong), "accounts", "bad" if wrong else "good"))
        verdict: Verdict = "bad" if wrong or lost else "good"
        summary = _summary(runs, streams, links, len(wrong), len(killed))
        blocks = [_table_of_agents(runs, killed), _table_of_streams(streams, wrong), _table_of_neighbours(links, wrong)]
        return SectionResult(verdict, summary, measures, blocks)

    def _run_measures(self, runs: list[Row]) -> Iterable[Measure]:
        for row in runs:
            for name in ("parents_found", "parents_lost", "refused", "suppressed"):
                yield Measure(self.name, row["agent"], name, row[name])

    def _stream_measures(self, streams: list[Row]) -> Iterable[Measure]:
        for row in streams:
            subject = f"{row['agent']}, {row['stream_name']}"
            for name in ("taken", "duplicates"):
                yield Measure(self.name, subject, name, row[name], "messages")
            yield Measure(self.name, subject, "last", row["last"])

    def _link_measures(self, links: list[Row]) -> Iterable[Measure]:
        for row in links:
            subject = f"{row['agent']}, {row['party']}"
            for name in ("received", "sent", "fetched", "conflated"):
                yield Measure(self.name, subject, name, row[name], "messages")
            yield Measure(self.name, subject, "lagging", row["lagging"])
            for name in ("gone", "diverged"):
                yield Measure(self.name, subject, name, row[name], "messages", "bad" if row[name] else "good")


def _rows(tables: AuditTables, table: str, key: str) -> list[Row]:
    """Return the newest accounts; an agent without streams or neighbours has none."""
    if not tables.has([table]):
        return []
    tables.view(table)
    return tables.sql(newest_sql(table, "agent", key))


def _wrong_streams(streams: list[Row]) -> list[Row]:
    """Return wrong accounts: a root must distribute every number that it assigns once, and no agent may have more
    messages of a term than the root that ended the term cleanly.
    """
    numbered = {
        (row["tree"], row["stream_name"], row["root_term"]): row["last"]
        for row in streams
        if row["role"] == "root" and row["state"] == "closed"
    }
    return [
        row
        for row in streams
        if (row["role"] == "root" and row["taken"] != row["last"] - row["begun"])
        or row["last"] > numbered.get((row["tree"], row["stream_name"], row["root_term"]), row["last"])
    ]


def _is_wrong(row: Row) -> bool:
    """True if a critical link was conflated, sent messages have no bytes, or fetched messages came outside a
    portion.
    """
    is_thinned = row["conflated"] and row["class_name"] != "conflating"
    return bool(
        is_thinned
        or (row["sent"] + row["fetched"] and not row["bytes_out"])
        or (row["fetched"] and not row["portions"])
    )


def _summary(runs: list[Row], streams: list[Row], links: list[Row], wrong: int, killed: int) -> str:
    given = [row for row in links if row["role"] == "subscriber"]
    agents = {(row["tree"], row["agent"]) for row in runs}
    roots = [row for row in streams if row["role"] == "root"]
    subscribers = {(row["agent"], row["party"]) for row in given}
    parts = [
        f"{count_text(len(agents), 'agent')} of {count_text(len({tree for tree, _ in agents}), 'tree')}",
        f"roots numbered {_sum(roots, 'taken')} messages",
        f"{count_text(len(subscribers), 'subscriber')} received {_sum(given, 'sent')} live",
        f"{_sum(given, 'fetched')} from the journals",
        f"{_sum(given, 'conflated')} conflated",
        f"parents were lost {_sum(runs, 'parents_lost')} times",
        f"{_sum(runs, 'refused')} requests were refused",
        f"{_sum(links, 'gone', 'diverged')} messages reported as missing",
        f"{count_text(wrong, 'account')} wrong" if wrong else "every account is right",
    ]
    return "; ".join([*parts, f"{count_text(killed, 'run')} killed"] if killed else parts)


def _sum(rows: list[Row], *names: str) -> str:
    return f"{sum(row[name] for row in rows for name in names):,}"


def _table_of_agents(runs: list[Row], killed: list[Row]) -> TextTable:
    return TextTable(
        "By agent",
        ("agent", "tree", "role", "parent", "depth", "children", "parents found", "lost", "refused", "state"),
        [
            (row["agent"], row["tree"], row["role"], row["parent"] or "–", str(row["depth"]), f"{row['children']:,}",
             f"{row['parents_found']:,}", f"{row['parents_lost']:,}", f"{row['refused']:,}",
             "killed" if row in killed else row["state"])
            for row in runs
        ],
        [number for number, row in enumerate(runs) if row in killed],
    )  # fmt: skip


def _table_of_streams(streams: list[Row], wrong: list[Row]) -> TextTable:
    return TextTable(
        "By stream",
        ("stream", "agent", "role", "term", "after", "last", "taken", "duplicates"),
        [
            (row["stream_name"], row["agent"], row["role"], f"{row['root_term']:,}", f"{row['begun']:,}",
             f"{row['last']:,}", f"{row['taken']:,}", f"{row['duplicates']:,}")
            for row in streams
        ],
        [number for number, row in enumerate(streams) if row in wrong],
    )  # fmt: skip


def _table_of_neighbours(links: list[Row], wrong: list[Row]) -> TextTable:
    shown = links[:NEIGHBOURS_SHOWN_MAX]
    return TextTable(
        "By neighbour" + (f", the first {len(shown)}" if len(shown) < len(links) else ""),
        ("neighbour", "agent", "is its", "class", "received", "sent", "from journals", "lagging", "conflated", "gone",
         "diverged"),
        [
            (row["party"], row["agent"], row["role"], row["class_name"] if row["role"] in RECEIVERS else "–",
             f"{row['received']:,}", f"{row['sent']:,}", f"{row['fetched']:,}", f"{row['lagging']:,}",
             f"{row['conflated']:,}", f"{row['gone']:,}", f"{row['diverged']:,}")
            for row in shown
        ],
        [number for number, row in enumerate(shown) if row in wrong or row["gone"] or row["diverged"]],
    )  # fmt: skip
