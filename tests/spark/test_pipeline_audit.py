"""The audit on facts written by hand: correct facts pass, and every manipulation is found."""

import json
import random
from pathlib import Path
from typing import Any

import numpy
import pytest
from typer.testing import CliRunner

from account_kit import router_accounts, tree_accounts
from penstock.base.histogram import LatencyHistogram
from penstock.cli.pipeline.command import app
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.audit import SECTIONS, AuditTables, SectionResult, run_audit
from penstock.spark.pipeline.audit.page import page
from spark.archive_tables import write_tables

DELIVERY = (
    "place STRING, first_record BIGINT, last_record BIGINT, publisher BIGINT, `group` STRING, epoch BIGINT, "
    "first_packet BIGINT, last_packet BIGINT, packets BIGINT, packets_lost BIGINT, packets_repaired BIGINT, "
    "packets_repeated BIGINT, packets_reordered BIGINT, messages BIGINT, first_seq BIGINT, last_seq BIGINT, "
    "repeated BIGINT, bytes BIGINT"
)
LOSS = (
    "place STRING, record BIGINT, publisher BIGINT, `group` STRING, epoch BIGINT, first_packet BIGINT, "
    "last_packet BIGINT, captured BIGINT"
)
AGREEMENT = "place STRING, publisher BIGINT, lineage BIGINT, block BIGINT, messages BIGINT, digest BIGINT"
LATENCY = "hop STRING, bucket INT, count BIGINT"

INTAKE = (
    "filter STRING, group_address STRING, event_time BIGINT, started BIGINT, publisher_id BIGINT, first_packet BIGINT, "
    "next_packet BIGINT, packets BIGINT, left_out BIGINT, lost_gone BIGINT, lost_no_answer BIGINT, lost_window BIGINT, "
    "lost_otherwise BIGINT, left_to_receivers BIGINT, repaired BIGINT, nacks BIGINT, messages BIGINT, unwanted BIGINT, "
    "epoch BIGINT, state STRING"
)
ACCOUNT = (
    "filter STRING, application STRING, delivery STRING, group_address STRING, event_time BIGINT, started BIGINT, "
    "publisher_id BIGINT, first_packet BIGINT, next_packet BIGINT, packets BIGINT, left_out BIGINT, lost BIGINT, "
    "late BIGINT, offered BIGINT, passed BIGINT, nacks BIGINT, repairs BIGINT, epoch BIGINT, state STRING"
)

ENGINE_INTAKE = (
    "node STRING, kind STRING, event_time BIGINT, started BIGINT, updates BIGINT, items BIGINT, losses BIGINT, "
    "consumers BIGINT, state STRING"
)
ENGINE_ACCOUNT = (
    "node STRING, consumer STRING, destination STRING, class_name STRING, event_time BIGINT, started BIGINT, "
    "attachment BIGINT, sent BIGINT, bytes BIGINT, conflated BIGINT, congested BIGINT, overruns BIGINT, "
    "receipts BIGINT, items BIGINT, state STRING"
)

AGENT = "agent STRING, tree STRING, role STRING, event_time BIGINT, started BIGINT, state STRING, "
AGENT_RUN = (
    f"{AGENT} parent STRING, parents_found BIGINT, parents_lost BIGINT, refused BIGINT, suppressed BIGINT, "
    "root_term BIGINT, depth BIGINT, children BIGINT"
)
AGENT_INTAKE = (
    f"{AGENT} stream_name STRING, begun BIGINT, last BIGINT, taken BIGINT, duplicates BIGINT, root_term BIGINT"
)
AGENT_ACCOUNT = (
    f"{AGENT} party STRING, class_name STRING, link BIGINT, received BIGINT, bytes_in BIGINT, sent BIGINT, "
    "bytes_out BIGINT, fetched BIGINT, portions BIGINT, lagging BIGINT, conflated BIGINT, gone BIGINT, "
    "diverged BIGINT, duplicates BIGINT, dropped BIGINT, revoked BIGINT"
)

ROUTER = "router STRING, event_time BIGINT, started BIGINT, state STRING, "
ROUTER_RUN = (
    f"{ROUTER} role STRING, router_epoch BIGINT, clients BIGINT, accepted BIGINT, stored BIGINT, asynchronous BIGINT, "
    "synchronous BIGINT, degraded BIGINT, waiting BIGINT, known BIGINT, unmatched BIGINT, refused BIGINT"
)
ROUTER_ACCOUNT = (
    f"{ROUTER} endpoint STRING, number BIGINT, flows BIGINT, begun BIGINT, accepted BIGINT, brought BIGINT, "
    "delivered BIGINT, redelivered BIGINT, settled BIGINT, dead BIGINT, expired BIGINT, removed BIGINT, "
    "overflowed BIGINT, live BIGINT, unsettled BIGINT"
)

ACTIVE, BACKUP = 7, -3  # the second has the highest bit set
BLOCKS = 40
MINUTE = 60 * 10**9


def delivery(publisher: int, *, lost: int = 0, copies: int = 0) -> dict[str, Any]:
    return {
        "place": "j", "publisher": publisher, "group": "239.1.1.1", "epoch": 1, "packets": 1_000 - lost,
        "first_packet": 1, "last_packet": 1_000,
        "packets_lost": lost, "packets_repaired": 3, "packets_repeated": 2, "packets_reordered": 1,
        "messages": BLOCKS * 1024, "repeated": copies, "bytes": 10**6,
    }  # fmt: skip


def killed() -> dict[str, Any]:
    """A run without last accounts, and the next run."""
    tables = filtered()
    ddl, (begun, last) = tables["filter_intake"]
    again = {**last, "started": 9, "event_time": 10, "first_packet": 601, "packets": 400, "left_to_receivers": 0}
    begun = {**begun, "packets": 500, "left_to_receivers": 0}
    return tables | {"filter_intake": (ddl, [begun, again])}


def filtered(**changes: int) -> dict[str, Any]:
    """A module's accounts of the active adapter's stream: halfway, and at the end; only the last one counts."""
    stream = {"filter": "beside", "group_address": "239.1.1.1", "started": 1, "publisher_id": ACTIVE, "epoch": 1}
    intake = {
        **stream, "first_packet": 1, "next_packet": 1_001, "packets": 990, "left_out": 0, "lost_gone": 0,
        "lost_no_answer": 0, "lost_window": 0, "lost_otherwise": 0, "left_to_receivers": 10, "repaired": 4, "nacks": 2,
        "messages": BLOCKS * 1024, "unwanted": 100, "state": "closed", "event_time": 3, **changes,
    }  # fmt: skip
    intake = {key: value for key, value in intake.items() if key not in ("passed", "account_left_out")}
    account = {
        **stream, "application": "quoter", "delivery": "unicast", "first_packet": 101, "next_packet": 1_001,
        "packets": 300, "left_out": changes.get("account_left_out", 590), "lost": 10, "late": 3, "offered": 9_000,
        "passed": changes.get("passed", 700), "nacks": 1, "repairs": 2, "state": "closed", "event_time": 3,
    }  # fmt: skip
    begun = {"event_time": 2, "next_packet": 501, "packets": 0, "state": "open"}
    return {
        "filter_intake": (INTAKE, [{**intake, **begun}, intake]),
        "filter_account": (ACCOUNT, [{**account, **begun}, account]),
    }


def distributed(*, is_killed: bool = False, **changes: int) -> dict[str, Any]:
    """A plant's accounts of one consumer: halfway, and at the end; only the last one counts."""
    intake = {
        "node": "plant", "kind": "plant", "event_time": 3, "started": 1, "updates": 9_000, "items": 100, "losses": 0,
        "consumers": 0, "state": "closed",
    }  # fmt: skip
    account = {
        "node": "plant", "consumer": "screen", "destination": "local.127.0.0.1", "event_time": 3, "started": 1,
        "attachment": 4, "sent": 500, "bytes": 64_000, "conflated": 0, "congested": 0, "overruns": 0, "receipts": 0,
        "items": 7, "state": "closed",
    }  # fmt: skip
    critical = {**account, "class_name": "critical", **changes}
    adaptive = {**account, "class_name": "adaptive", "conflated": 1_500, "congested": 12}
    begun = {"event_time": 2, "state": "open"}
    intakes = [{**intake, **begun, "updates": 10}, intake]
    if is_killed:
        intakes = [{**intake, **begun}, {**intake, "started": 5, "event_time": 9}]
    return {
        "engine_intake": (ENGINE_INTAKE, intakes),
        "engine_account": (ENGINE_ACCOUNT, [{**critical, **begun, "sent": 3}, critical, adaptive]),
    }


def grown(**changes: int) -> dict[str, Any]:
    """A tree's accounts: the leaf's halfway, and at the end; only the last one counts."""
    begun = {"event_time": 2, "state": "open"}
    runs, streams, links = tree_accounts(**changes)
    return {
        "agent_run": (AGENT_RUN, runs),
        "agent_intake": (AGENT_INTAKE, [*streams, {**streams[1], **begun, "last": 10, "taken": 5}]),
        "agent_account": (AGENT_ACCOUNT, [*links, {**links[1], **begun, "sent": 5, "gone": 0}]),
    }


def agreement() -> list[dict[str, Any]]:
    """Both publishers send the same messages; slices divide every block in two, so that digests must be added."""
    chance = random.Random(1)
    rows = []
    for block in range(BLOCKS):
        parts = [chance.randrange(-(2**63), 2**63) for _ in range(2)]
        moved = chance.randrange(1, 2**62)
        for publisher, digests in ((ACTIVE, parts), (BACKUP, [parts[0] - moved, parts[1] + moved])):
            for digest in digests:
                wrapped = (digest + 2**63) % 2**64 - 2**63
                rows.append({"publisher": publisher, "lineage": 16, "block": block, "messages": 512, "digest": wrapped})
    return rows


def latency() -> list[dict[str, Any]]:
    rows = []
    for hop, typical_ns in (("venue to adapter", 250_000), ("adapter to capture", 20_000)):
        histogram = LatencyHistogram()
        histogram.record((numpy.random.default_rng(3).pareto(3.0, 50_000) * typical_ns).astype(numpy.int64))
        state = histogram.state()
        rows += [{"hop": hop, "bucket": b, "count": c} for b, c in zip(state.buckets, state.counts, strict=True)]
        rows.append({"hop": hop, "bucket": -1, "count": 5})
    return rows


LOG = [
    {"number": 1, "time_ns": 1_704_200_000 * 10**9, "client": "alice", "address": "10.0.0.1:1", "action": "login",
     "outcome": "done", "code": "", "detail": ""},
    {"number": 2, "time_ns": 1_704_200_001 * 10**9, "client": "alice", "address": "10.0.0.1:1", "action": "subscribe",
     "outcome": "done", "code": "", "detail": "s1: receive md.us.eq.> 0"},
    {"number": 3, "time_ns": 1_704_200_002 * 10**9, "client": "mallory<script>", "address": "10.0.0.6:1",
     "action": "subscribe", "outcome": "refused", "code": "not-entitled", "detail": "md.eu.>"},
    {"number": 4, "time_ns": 1_600_000_000 * 10**9, "client": "olde", "address": "10.0.0.6:1", "action": "login",
     "outcome": "done", "code": "", "detail": ""},
]  # fmt: skip


def facts(**changes: Any) -> dict[str, Any]:
    tables = (
        {
            "delivery": (DELIVERY, [delivery(ACTIVE), delivery(BACKUP, copies=BLOCKS * 1024)]),
            "agreement": (AGREEMENT, agreement()),
            "latency": (LATENCY, latency()),
        }
        | filtered()
        | distributed()
        | grown()
    )
    return tables | changes


def corrupted() -> list[dict[str, Any]]:
    """One changed bit in a message of the backup, and elsewhere an additional message without a lost packet."""
    rows = shortened()
    victim = next(row for row in rows if row["publisher"] == BACKUP and row["block"] == 20)
    victim["digest"] ^= 1 << 17
    return rows


def shortened() -> list[dict[str, Any]]:
    """The backup skipped a message in the middle, and no packet was lost."""
    rows = agreement()
    next(row for row in rows if row["publisher"] == BACKUP and row["block"] == 30)["messages"] -= 1
    return rows


def result(report: Any, name: str) -> SectionResult:
    return next(found for section, found in report.sections if section.name == name)


def values(found: SectionResult, name: str) -> list[float]:
    return [measure.value for measure in found.measures if measure.name == name]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A correct day, a day with a corrupt message of the backup, and one with a loss."""
    path = tmp_path_factory.mktemp("audit") / "archive"
    write_tables(path, facts(), date="2024-01-02")
    write_tables(path, facts(agreement=(AGREEMENT, corrupted())), date="2024-01-03")
    lost = [{"publisher": BACKUP, "group": "239.1.1.1", "epoch": 1, "first_packet": 11, "last_packet": 14,
             "captured": 870 * MINUTE}]  # fmt: skip
    thinned = [row for row in shortened() if row["block"] != 7 or row["publisher"] != BACKUP]
    write_tables(
        path,
        facts(
            delivery=(DELIVERY, [delivery(ACTIVE), delivery(BACKUP, lost=4)]),
            loss=(LOSS, lost),
            agreement=(AGREEMENT, thinned),
        ),
        date="2024-01-04",
    )
    return path


@pytest.mark.spec("PIPE-7", "SYNC-2")
def test_the_audit_finds_all_violations_and_reports_nothing_else(spark: Any, archive: Path, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in LOG))
    opened = Archive.open(archive)
    good = run_audit(opened, spark, dates=["2024-01-02"], audit_log=log)
    verdicts = {section.name: found.verdict for section, found in good.sections}
    assert verdicts.pop("balance") == "unknown"  # these tables were written by hand
    assert verdicts.pop("router") == "unknown"  # none exists
    assert set(verdicts.values()) == {"good"}
    assert values(result(good, "agreement"), "agreed") == [BLOCKS]
    assert f"{BLOCKS * 1024:,} of {BLOCKS * 1024:,} messages" in result(good, "agreement").summary
    assert values(result(good, "delivery"), "lost") == [0, 0]
    assert values(result(good, "order"), "copies") == [BLOCKS * 1024, 0]
    (venue,) = [m for m in result(good, "latency").measures if m.name == "p50" and m.subject.startswith("venue")]
    assert 0.9 < venue.value / (250_000 * (2 ** (1 / 3) - 1)) < 1.1  # the median of that distribution
    assert values(result(good, "latency"), "negative") == [5, 5]
    uses = {(m.subject, m.name): m.value for m in result(good, "entitlement").measures}
    assert uses["alice", "subscriptions"] == 1
    assert uses["mallory<script>", "refused"] == 1
    assert not any(subject == "olde" for subject, _ in uses)  # of another day
    text = page(good)
    assert "Everything is as it should be" in text
    assert "<script" not in text
    assert "http" not in text.replace("http-equiv", "")  # without a network

    corrupt = run_audit(opened, spark, dates=["2024-01-03"], sections=[s for s in SECTIONS if s.name == "agreement"])
    assert corrupt.verdict == "bad"
    assert values(result(corrupt, "agreement"), "disagreed") == [2]
    (table,) = [b for b in result(corrupt, "agreement").blocks if b.title == "The first disagreements"]
    assert [row[0] for row in table.rows] == ["stream 1, 20,480 to 21,503", "stream 1, 30,720 to 31,743"]  # type: ignore[union-attr]

    lossy = run_audit(
        opened, spark, dates=["2024-01-04"], sections=[s for s in SECTIONS if s.name in ("delivery", "agreement")]
    )
    # lost packets explain the missing messages
    assert [found.verdict for _, found in lossy.sections] == ["bad", "good"]
    assert "4 of 2,000 packets were lost (0.2000%)" in result(lossy, "delivery").summary
    assert values(result(lossy, "agreement"), "unproved") == [2]
    assert "14:30" in page(lossy)


WRONG = {
    "2024-02-01": (filtered(account_left_out=589), "1 account wrong"),  # a gap that is too small
    "2024-02-02": (filtered(passed=9_001), "1 account wrong"),  # more than arrived
    "2024-02-03": (filtered(packets=989), "1 account wrong"),  # a packet is missing and not reported as lost
    "2024-02-04": (filtered(packets=987, lost_gone=2, lost_window=1), "3 lost; every number is accounted for"),
    "2024-02-06": (killed(), "1 run killed, 100 packets between them and the next runs unknown"),
    "2024-02-05": (filtered(packets=1_000, left_to_receivers=0, messages=BLOCKS * 1024 - 1), "1 account wrong"),
}
"""In the last one the consumer had no loss, and yet fewer messages than a capture of the same packets."""


@pytest.mark.spec("PIPE-7", "FILT-7")
def test_unbalanced_accounts_of_filter_modules_are_found(spark: Any, archive: Path, tmp_path: Path) -> None:
    sections = [section for section in SECTIONS if section.name == "filters"]
    good = result(run_audit(Archive.open(archive), spark, dates=["2024-01-02"], sections=sections), "filters")
    assert good.verdict == "good"
    assert (
        "700 of 9,000 messages for 1 application passed on; 8,300 removed; 4 packets repaired; 0 lost" in good.summary
    )
    measured = {(m.subject, m.name): m.value for m in good.measures}
    assert measured["beside, quoter", "removed"] == 8_300
    assert measured["beside, 0000000000000007 239.1.1.1", "left_to_receivers"] == 10
    wrong = tmp_path / "wrong"
    for date, (tables, _) in WRONG.items():
        write_tables(wrong, facts(**tables), date=date)
    opened = Archive.open(wrong)
    for date, (_, summary) in WRONG.items():
        found = result(run_audit(opened, spark, dates=[date], sections=sections), "filters")
        assert found.verdict == "bad", date
        assert summary in found.summary


@pytest.mark.spec("PIPE-7", "MDE-2")
def test_accounts_of_distribution_nodes_are_audited(spark: Any, archive: Path, tmp_path: Path) -> None:
    sections = [section for section in SECTIONS if section.name == "engine"]
    good = result(run_audit(Archive.open(archive), spark, dates=["2024-01-02"], sections=sections), "engine")
    assert good.verdict == "good"
    assert "1 node served 1 consumer; 1,000 updates sent; 1,500 conflated" in good.summary
    measured = {(m.subject, m.name): m.value for m in good.measures}
    assert measured["plant", "updates"] == 9_000
    assert measured["plant, screen, critical", "sent"] == 500
    wrong = {
        "2024-02-01": (distributed(conflated=1), "1 account wrong"),
        "2024-02-02": (distributed(receipts=2), "2 receipts for undelivered updates; every account is right"),
        "2024-02-03": (distributed(bytes=0), "1 account wrong"),
        "2024-02-04": (distributed(is_killed=True), "1 run killed"),
    }
    path = tmp_path / "wrong"
    for date, (tables, _) in wrong.items():
        write_tables(path, facts(**tables), date=date)
    for date, (_, summary) in wrong.items():
        found = result(run_audit(Archive.open(path), spark, dates=[date], sections=sections), "engine")
        assert found.verdict == "bad", date
        assert summary in found.summary


@pytest.mark.spec("PIPE-7", "TREE-5")
def test_accounts_of_a_tree_are_audited(spark: Any, archive: Path, tmp_path: Path) -> None:
    sections = [section for section in SECTIONS if section.name == "tree"]
    good = result(run_audit(Archive.open(archive), spark, dates=["2024-01-02"], sections=sections), "tree")
    assert good.verdict == "good"
    assert (
        "2 agents of 1 tree; roots numbered 1,000 messages; 1 subscriber received 250 live; 50 from the journals"
        in good.summary
    )
    assert "parents were lost 2 times; 2 requests were refused; 0 messages reported as missing" in good.summary
    measured = {(m.subject, m.name): m.value for m in good.measures}
    assert measured["leaf, md", "duplicates"] == 7
    assert measured["leaf, screen", "lagging"] == 1
    assert measured["leaf", "parents_found"] == 3
    write_tables(tmp_path / "lossy", facts(**grown(gone=4)), date="2024-01-02")
    lossy = result(run_audit(Archive.open(tmp_path / "lossy"), spark, sections=sections), "tree")
    assert lossy.verdict == "bad"
    assert "4 messages reported as missing" in lossy.summary


@pytest.mark.spec("PIPE-7", "REPL-1")
def test_accounts_of_message_routers_are_audited(spark: Any, tmp_path: Path) -> None:
    """The newest account of each run and endpoint counts."""
    runs, endpoints = router_accounts()
    halfway = {**endpoints[0], "event_time": 2, "state": "open", "settled": 7}
    tables = {"router_run": (ROUTER_RUN, runs), "router_account": (ROUTER_ACCOUNT, [*endpoints, halfway])}
    write_tables(tmp_path / "archive", facts(**tables), date="2024-01-02")
    sections = [section for section in SECTIONS if section.name == "router"]
    found = result(run_audit(Archive.open(tmp_path / "archive"), spark, sections=sections), "router")
    assert found.verdict == "good", found.summary
    assert "1 router with 1 endpoint; 100 messages accepted, 100 acknowledged, 3 refused" in found.summary
    assert {(m.subject, m.name): m.value for m in found.measures}["router, orders", "redelivered"] == 0


class Custom:
    """A section of another program."""

    name = "custom"
    title = "Made elsewhere"
    needs: tuple[str, ...] = ("nowhere",)

    def compute(self, tables: AuditTables) -> SectionResult:
        raise AssertionError("there is no such table")


@pytest.mark.spec("PIPE-7")
def test_the_command_writes_a_table_and_a_page(spark: Any, archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    done = CliRunner().invoke(app, ["audit", str(archive), "--date", "2024-01-03", "--out", str(out)])
    assert done.exit_code == 1, done.output  # with a violation
    assert "BAD  Active and backup agree" in done.output
    assert "Something is wrong" in out.read_text()
    opened = Archive.open(archive)
    rows = opened.frame(spark, "audit").where("verdict = 'bad' and measure = 'disagreed'").collect()
    assert [(row["section"], row["subject"], row["value"]) for row in rows] == [("agreement", "stream 1", 2.0)]
    report = run_audit(opened, spark, dates=["2024-01-02"], sections=[Custom()])
    assert report.verdict == "unknown"
    missing = CliRunner().invoke(app, ["audit", str(archive), "--date", "1999-01-01", "--out", str(out)])
    assert "2024-01-02" in str(missing.exception)
