"""Delivery: loss, repairs, duplicates and order, from the facts of the captures."""

from penstock.spark.pipeline.audit.section import (
    AuditTables,
    Measure,
    Plot,
    SectionResult,
    TextTable,
    publisher_text,
    share_text,
)
from penstock.spark.pipeline.audit.svg import bars

NS_PER_MINUTE = 60 * 10**9
MINUTES_SHOWN_MAX = 120

PUBLISHERS = """
    SELECT publisher, `group`, sum(packets) AS packets, sum(packets_lost) AS lost, sum(packets_repaired) AS repaired,
           sum(packets_repeated) AS repeated, sum(packets_reordered) AS reordered, sum(messages) AS messages,
           sum(repeated) AS copies, count(DISTINCT epoch) AS epochs
    FROM delivery GROUP BY publisher, `group` ORDER BY publisher, `group`"""


class DeliverySection:
    """Loss: messages that publishers sent and the captures never received."""

    name = "delivery"
    title = "Delivery and loss"
    needs: tuple[str, ...] = ("delivery",)

    def compute(self, tables: AuditTables) -> SectionResult:
        rows = tables.sql(PUBLISHERS)
        packets, lost = sum(row["packets"] for row in rows), sum(row["lost"] for row in rows)
        repaired = sum(row["repaired"] for row in rows)
        measures = [
            Measure(self.name, _who(row), name, row[name], "packets", "bad" if name == "lost" and row[name] else "good")
            for row in rows
            for name in ("packets", "lost", "repaired")
        ]
        table = TextTable(
            "By publisher",
            ("publisher", "group", "messages", "packets", "lost", "share", "repaired", "starts"),
            [
                (publisher_text(row["publisher"]), row["group"], f"{row['messages']:,}", f"{row['packets']:,}",
                 f"{row['lost']:,}", share_text(row["lost"], row["packets"] + row["lost"]), f"{row['repaired']:,}",
                 f"{row['epochs']:,}")
                for row in rows
            ],
            [number for number, row in enumerate(rows) if row["lost"]],
        )  # fmt: skip
        blocks: list[TextTable | Plot] = [table]
        if lost and tables.has(["loss"]):
            blocks.insert(0, _losses_over_time(tables))
        if lost:
            summary = f"{lost:,} of {packets + lost:,} packets were lost ({share_text(lost, packets + lost)})"
        else:
            summary = f"all {packets:,} packets of {len(rows)} streams were received, {repaired:,} of them repaired"
        return SectionResult("bad" if lost else "good", summary, measures, blocks)


class OrderSection:
    """Duplicates and reordering: packets that the network duplicated or reordered, and copies suppressed by the
    merge.
    """

    name = "order"
    title = "Duplicates and reordering"
    needs: tuple[str, ...] = ("delivery",)

    def compute(self, tables: AuditTables) -> SectionResult:
        rows = tables.sql(PUBLISHERS)
        names = {"repeated": "packets", "reordered": "packets", "copies": "messages"}
        measures = [
            Measure(self.name, _who(row), name, row[name], unit) for row in rows for name, unit in names.items()
        ]
        table = TextTable(
            "By publisher",
            ("publisher", "packets", "duplicated", "out of order", "messages", "copies suppressed"),
            [
                (publisher_text(row["publisher"]), f"{row['packets']:,}", f"{row['repeated']:,}",
                 f"{row['reordered']:,}", f"{row['messages']:,}", f"{row['copies']:,}")
                for row in rows
            ],
        )  # fmt: skip
        totals = {name: sum(row[name] for row in rows) for name in names}
        return SectionResult(
            "good",
            f"{totals['repeated']:,} packets were duplicated, {totals['reordered']:,} came out of order; "
            f"{totals['copies']:,} messages were copies from another publisher and suppressed",
            measures,
            [table],
        )


def _who(row: dict[str, object]) -> str:
    return f"{publisher_text(int(str(row['publisher'])))} {row['group']}"


def _losses_over_time(tables: AuditTables) -> Plot:
    tables.view("loss")
    rows = tables.sql(
        f"SELECT floor(captured / {NS_PER_MINUTE}) AS minute, sum(last_packet - first_packet + 1) AS lost "
        "FROM loss GROUP BY 1 ORDER BY 1"
    )
    labelled = [(f"{row['minute'] // 60 % 24:02}:{row['minute'] % 60:02}", float(row["lost"])) for row in rows]
    shown = labelled[:MINUTES_SHOWN_MAX]
    title = "Packets lost, by minute (UTC)" + (f", first {len(shown)} minutes with loss" if shown != labelled else "")
    return Plot(title, bars(shown, unit="", is_bad=True))
