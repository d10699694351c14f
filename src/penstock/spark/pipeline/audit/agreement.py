"""Agreement of active and backup: equal numbers and contents of their messages, compared block by block (SYNC-2).

A block is 1,024 numbers of a source stream in one lineage. For each publisher, a block has the number of captured
messages and the sum of their digests. Publishers agree on a block when both values are equal. A block with fewer
messages of a publisher proves nothing where the publisher begins or ends or where its packets were lost; elsewhere,
fewer messages are a disagreement.
"""

from typing import Any

from penstock.spark.pipeline.audit.section import (
    AuditTables,
    Measure,
    Plot,
    SectionResult,
    TextTable,
    count_text,
    publisher_text,
)
from penstock.spark.pipeline.audit.svg import strip

SHOWN_MAX = 20
CELLS_MAX = 240

# Slice boundaries cut blocks, whose rows add up: digests modulo 2 ** 64, summed as decimals.
BLOCKS = """
    WITH parts AS (
        SELECT stream, lineage, block, publisher, sum(messages) AS messages,
               pmod(sum(CAST(digest AS DECIMAL(20, 0))), CAST(18446744073709551616 AS DECIMAL(20, 0))) AS digest
        FROM agreement GROUP BY stream, lineage, block, publisher),
    neighbours AS (
        SELECT *, lag(block) OVER run <=> block - 1 AND lead(block) OVER run <=> block + 1 AS is_amid
        FROM parts WINDOW run AS (PARTITION BY stream, publisher, lineage ORDER BY block)),
    losers AS (SELECT DISTINCT publisher FROM losses WHERE lost > 0),
    judged AS (
        SELECT neighbours.*, max(messages) OVER (PARTITION BY stream, lineage, block) AS expected,
               NOT is_amid OR losers.publisher IS NOT NULL AS is_excused
        FROM neighbours LEFT JOIN losers ON neighbours.publisher = losers.publisher)
    SELECT stream, lineage, block, max(expected) AS messages, count(*) AS publishers,
           count(DISTINCT CASE WHEN messages = expected THEN digest END) AS digests,
           count(CASE WHEN messages = expected THEN 1 END) AS complete,
           count(CASE WHEN messages < expected AND NOT is_excused THEN 1 END) AS short,
           collect_list(named_struct('publisher', publisher, 'messages', messages, 'digest', digest)) AS copies
    FROM judged GROUP BY stream, lineage, block"""

VERDICTS = """
    SELECT *, CASE WHEN digests > 1 OR short > 0 THEN 'bad' WHEN complete > 1 THEN 'good' ELSE 'unknown' END AS verdict
    FROM blocks"""

STREAMS = """
    SELECT stream, count(*) AS blocks, sum(messages) AS messages, count_if(verdict = 'good') AS agreed,
           count_if(verdict = 'bad') AS disagreed, count_if(verdict = 'unknown') AS unproved,
           sum(CASE WHEN verdict = 'good' THEN messages ELSE 0 END) AS proved
    FROM verdicts GROUP BY stream ORDER BY stream"""


class AgreementSection:
    name = "agreement"
    title = "Active and backup agree"
    needs: tuple[str, ...] = ("agreement", "delivery")

    def compute(self, tables: AuditTables) -> SectionResult:
        spark = tables.spark
        spark.sql(
            "SELECT publisher, sum(packets_lost) AS lost FROM delivery GROUP BY publisher"
        ).createOrReplaceTempView("losses")
        spark.sql(BLOCKS).createOrReplaceTempView("blocks")
        verdicts = spark.sql(VERDICTS).persist()
        verdicts.createOrReplaceTempView("verdicts")
        try:
            return self._judged(tables)
        finally:
            verdicts.unpersist()

    def _judged(self, tables: AuditTables) -> SectionResult:
        rows = tables.sql(STREAMS)
        bad = sum(row["disagreed"] for row in rows)
        proved, messages = sum(row["proved"] for row in rows), sum(row["messages"] for row in rows)
        blocks: list[TextTable | Plot] = [self._strip(tables, sum(row["blocks"] for row in rows)), _by_stream(rows)]
        if bad:
            blocks.append(self._disagreements(tables))
            summary = f"publishers differ in {count_text(bad, 'block')} of 1,024 numbers"
        elif proved:
            summary = f"{proved:,} of {messages:,} messages came from two or more publishers and are identical"
        else:
            summary = "no stream was captured from two publishers: nothing to compare"
        measures = [
            Measure(
                self.name, f"stream {row['stream']}", name, row[name], "blocks",
                "bad" if name == "disagreed" and row[name] else "good",
            )
            for row in rows
            for name in ("agreed", "disagreed", "unproved")
        ]  # fmt: skip
        return SectionResult("bad" if bad else "good" if proved else "unknown", summary, measures, blocks)

    def _strip(self, tables: AuditTables, count: int) -> Plot:
        """Plot the day from left to right; a cell has the verdict of its worst block."""
        wide = max(1, -(-count // CELLS_MAX))
        rows = tables.sql(
            f"SELECT cell, min(verdict) AS verdict, min(stream) AS stream, min(block) AS block FROM ("
            f"SELECT *, floor((row_number() OVER (ORDER BY stream, lineage, block) - 1) / {wide}) AS cell FROM verdicts"
            f") GROUP BY cell ORDER BY cell"
        )  # "bad" sorts before "good" and "unknown"
        cells = [(row["verdict"], f"stream {row['stream']} from number {row['block'] * 1024:,}") for row in rows]
        return Plot("By stream and number: green agrees, red differs, grey cannot be compared", strip(cells))

    def _disagreements(self, tables: AuditTables) -> TextTable:
        rows = tables.sql(
            "SELECT stream, block, copies FROM verdicts WHERE verdict = 'bad' "
            f"ORDER BY stream, lineage, block LIMIT {SHOWN_MAX}"
        )
        shown = [
            (f"stream {row['stream']}, {row['block'] * 1024:,} to {row['block'] * 1024 + 1023:,}", _copies(row))
            for row in rows
        ]
        return TextTable("The first disagreements", ("numbers", "messages and digest of each publisher"), shown)


def _copies(row: dict[str, Any]) -> str:
    copies = sorted(row["copies"], key=lambda copy: copy["publisher"] % 2**64)
    return "; ".join(
        f"{publisher_text(copy['publisher'])}: {copy['messages']:,}, {int(copy['digest']):016x}" for copy in copies
    )


def _by_stream(rows: list[dict[str, Any]]) -> TextTable:
    names = ("messages", "blocks", "agreed", "disagreed", "unproved")
    return TextTable(
        "By source stream",
        ("stream", *names),
        [(str(row["stream"]), *(f"{row[name]:,}" for name in names)) for row in rows],
        [number for number, row in enumerate(rows) if row["disagreed"]],
    )
