"""Balance of the archive's account, and quarantined records."""

from penstock.spark.pipeline.audit.section import AuditTables, Measure, SectionResult, TextTable, Verdict

SHOWN_MAX = 20


class BalanceSection:
    """Balance: every message read became a row, was a duplicate, was quarantined or was skipped."""

    name = "balance"
    title = "Balance of the archive"
    needs: tuple[str, ...] = ()

    def compute(self, tables: AuditTables) -> SectionResult:
        account = tables.archive.catalogue.account
        lines = [
            *((f"rows of {table}", count) for table, count in sorted(account.rows.items())),
            ("copies", account.repeated),
            *((f"quarantined: {code}", count) for code, count in sorted(account.quarantined.items())),
            *((f"skipped: {cause}", count) for cause, count in sorted(account.skipped.items())),
        ]
        quarantined = account.in_quarantine
        is_good = account.is_balanced and not quarantined
        measures = [Measure(self.name, "archive", name, count, "messages") for name, count in lines]
        measures.append(
            Measure(self.name, "archive", "taken", account.taken, "messages", "good" if account.is_balanced else "bad")
        )
        if not account.is_balanced:
            summary = f"{account.taken:,} messages were read, {account.given:,} are accounted for"
        elif quarantined:
            summary = f"{quarantined:,} records are in quarantine; all {account.taken:,} messages are accounted for"
        elif account.taken:
            summary = f"all {account.taken:,} messages that were read are accounted for"
        else:
            summary = "the pipeline has not read anything into this archive"
        rows = [(name, f"{count:,}") for name, count in [("read", account.taken), *lines]]
        if account.source.taken:
            rows.insert(0, ("source messages read", f"{account.source.taken:,}"))
        blocks = [TextTable("Since the archive was created", ("", "messages"), rows)]
        if tables.has(["quarantine"]):
            blocks.append(_quarantine(tables))
        verdict: Verdict = "bad" if not is_good else "good" if account.taken else "unknown"
        return SectionResult(verdict, summary, measures, blocks)


def _quarantine(tables: AuditTables) -> TextTable:
    tables.view("quarantine")
    rows = tables.sql(
        "SELECT code, reason, count(*) AS count, min(place) AS place, min(position) AS position FROM quarantine "
        f"GROUP BY code, reason ORDER BY count DESC, code LIMIT {SHOWN_MAX}"
    )
    shown = []
    for row in rows:
        example = f"{row['place']} at {row['position']:,}"
        shown.append((f"{row['code']}: {row['reason']}", f"{row['count']:,}", example))
    return TextTable("In quarantine", ("why", "records", "example"), shown)
