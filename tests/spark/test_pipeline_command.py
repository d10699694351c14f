"""`penstock pipeline` as a process: killed with -9 and restarted, ended by Ctrl-C, and its error messages."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from children import child_environment
from command_here import run_here
from own_feed_kit import install_own_feed, write_own_feed
from penstock.cli.pipeline import run as pipeline_run
from penstock.spark.feedslices import Conversion
from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.derive import DERIVATIONS, Books, Day, Derivation
from penstock.spark.pipeline.runner import run
from penstock.spark.pipeline.sources.capture import FeedSource, JournalSource
from spark.conftest import SMALL
from spark.pipeline_kit import DAY, Silent, capture_of, converted, write_feed, write_journal
from unit.test_feed_files import frame, pcap
from waiting import wait_until

DRIVER = Path(__file__).with_name("pipeline_driver.py")
PATIENCE_SECONDS = 180
SOME = tuple(each for each in DERIVATIONS if isinstance(each, Books | Day))
"""Two derivations with state: one with several tables, and one that needs the end of a session."""


def start(
    *arguments: str,
    step: str = "",
    count: int = 1,
    derivations: tuple[Derivation, ...] = DERIVATIONS,
    within: tuple[str, ...] = (),
    **environment: str,
) -> subprocess.Popen[str]:
    kinds = ",".join(type(each).__name__ for each in derivations)
    command = [*within, sys.executable, str(DRIVER), step, str(count), kinds, "pipeline", *arguments]
    return subprocess.Popen(
        command, env=child_environment(**environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def small(directory: Path) -> dict[str, str]:
    """An environment with Spark set up for small work, like in the tests; not for the follower."""
    lines = [f"{name} {str(value).lower() if isinstance(value, bool) else value}\n" for name, value in SMALL.items()]
    (directory / "spark-defaults.conf").write_text("".join(lines))
    return {"SPARK_CONF_DIR": str(directory)}


def end(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    try:
        out, errors = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, out, errors


@pytest.mark.spec("PIPE-6", "PIPE-11")
def test_a_run_killed_between_its_commits_resumes_and_gives_the_same_archive(spark: Any, tmp_path: Path) -> None:
    messages = converted(2_000)
    journal, feed, path = tmp_path / "journal", tmp_path / "day.itch", tmp_path / "archive"
    write_journal(journal, capture_of(messages))
    count = write_feed(feed, 5_000)
    arguments = (
        "run", str(journal), str(feed), "--archive", str(path),
        "--table", "itch", "--date", DAY.isoformat(), "--stream", "2", "--master", "local[2]", "--no-derive",
    )  # fmt: skip
    status, _, errors = end(start(*arguments, step="file-placed", count=3, **small(tmp_path)))
    assert status == -signal.SIGKILL, errors
    assert Archive.open(path).catalogue.number == 1, "the first commit counts, and is completed"
    with Archive.writing(path) as archive:
        report = run(
            spark, archive, [JournalSource(JournalPlace(str(journal))), source(feed, 2)], (), Silent(), cores=2
        )
    assert report.commits == 1
    catalogue = Archive.open(path).catalogue
    assert catalogue.number == 2
    assert catalogue.account.is_balanced
    assert catalogue.account.source.taken == count
    assert catalogue.account.repeated == len(messages)
    assert sum(file.rows for files in catalogue.files.values() for file in files.values()) == sum(
        [*catalogue.account.rows.values(), *catalogue.account.facts.values()]
    )


def source(feed: Path, stream: int = 0) -> FeedSource:
    return FeedSource(feed, Conversion("itch", stream, DAY.isoformat()), cores=2, cache=feed.parent / "cache")


STAGED = ("staged", 2, 1)
"""Killed when the derived rows are staged but not committed; only one commit counts."""

PLACED = ("file-placed", 3, 2)
"""Killed with only some of their files in place; both count."""


@pytest.mark.spec("PIPE-5", "PIPE-6")
@pytest.mark.parametrize(
    ("kills", "derivations", "tables"),
    [
        ((STAGED,), SOME, {"top_of_book", "depth", "day"}),
        pytest.param(
            (STAGED, PLACED), DERIVATIONS,
            {"top_of_book", "depth", "bar_time", "bar_tick", "trade_quote", "bbo", "day"}, marks=pytest.mark.soak,
        ),
    ],
)  # fmt: skip
def test_a_run_killed_during_a_commit_of_derived_tables_resumes_and_derives_the_same(
    spark: Any,
    tmp_path: Path,
    kills: tuple[tuple[str, int, int], ...],
    derivations: tuple[Derivation, ...],
    tables: set[str],
) -> None:
    feed, path = tmp_path / "day.itch", tmp_path / "archive"
    write_feed(feed, 3_000)
    with Archive.writing(tmp_path / "whole") as whole:
        run(spark, whole, [source(feed)], derivations, Silent(), cores=2)
    arguments = (
        "run", str(feed), "--archive", str(path), "--table", "itch", "--date", DAY.isoformat(), "--master", "local[2]",
    )  # fmt: skip
    for step, count, number in kills:
        status, _, errors = end(start(*arguments, step=step, count=count, derivations=derivations, **small(tmp_path)))
        assert status == -signal.SIGKILL, errors
        assert list((path / "_staging").iterdir()), "the kill hit the middle of the commit"
        if step == "staged":
            assert not set(table_rows(path)) & tables, "uncommitted rows are not visible"
        assert Archive.open(path).catalogue.number == number
    with Archive.writing(path) as archive:
        assert run(spark, archive, [source(feed)], derivations, Silent(), cores=2).commits == 2 - number
    assert not list((path / "_staging").iterdir())
    found, expected = table_rows(path), table_rows(tmp_path / "whole")
    assert set(found) >= tables
    assert found == expected
    for table in found:
        assert sum(map(len, plain_rows(path, table))) == len(found[table]), "plain readers see the same files"


def table_rows(path: Path) -> dict[str, list[str]]:
    """The committed rows of each table, unordered; without places and times of the run itself."""
    archive = Archive.open(path)
    return {
        info.name: sorted(
            repr(row)
            for file in archive.files(info.name)
            for row in pq.ParquetFile(path / file.path).read().to_pylist()
        )
        for info in archive.tables()
    }


def plain_rows(path: Path, table: str) -> list[pa.Table]:
    return [pq.ParquetFile(file).read() for file in (path / table).rglob("*.parquet")]


@pytest.mark.soak  # integration/test_archive_processes.py fills a disk without Spark
@pytest.mark.spec("PIPE-11")
def test_a_full_disk_is_reported_and_no_files_are_left_on_it(tmp_path: Path) -> None:
    """A real full disk: 300 KiB of tmpfs in a separate mount namespace, where that is permitted."""
    write_feed(tmp_path / "day.itch", 20_000)
    archive = tmp_path / "archive"
    archive.mkdir()
    mount = f"mount -t tmpfs -o size=300k tmpfs {archive}"
    allowed = subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, text=True)
    if allowed.returncode:
        pytest.skip(f"no mount namespace here: {allowed.stderr.strip()}")
    run_it = f'{mount} && "$@"; status=$?; find {archive}/_staging {archive}/_commits -mindepth 1; exit $status'
    process = start(
        "run", str(tmp_path / "day.itch"), "--archive", str(archive), "--table", "itch", "--date", DAY.isoformat(),
        "--master", "local[1]", within=("unshare", "-rm", "sh", "-c", run_it, "sh"),
    )  # fmt: skip
    status, out, errors = end(process)
    assert status == 1, errors
    assert "[archive-full]" in errors
    assert "No space left on device" in errors
    assert "free disk space and run the command again" in errors
    assert "Traceback" not in errors + out
    assert "\tat " not in errors, "nor Java's"
    assert not out, "nothing is staged or committed"


def test_a_follower_ends_cleanly_on_an_interrupt_and_the_next_one_continues(tmp_path: Path) -> None:
    packets = capture_of(converted(2_000))
    half = len(packets) // 2
    journal, archive = tmp_path / "journal", tmp_path / "archive"
    write_journal(journal, packets[:half])
    process = start("run", str(journal), "--archive", str(archive), "--follow", "--master", "local[1]", "--no-derive")
    try:
        wait_until(lambda: archive.exists() and _last(archive) == half)
        write_journal(journal, packets[half:], half + 1)
        wait_until(lambda: _last(archive) == len(packets))
    finally:
        process.send_signal(signal.SIGINT)
        status, out, errors = end(process)
    assert status == 0, errors
    assert "committed" in out
    assert Archive.open(archive).catalogue.account.is_balanced


@pytest.mark.spec("DAY-10")
@pytest.mark.parametrize("way", ["path", "installed"])
def test_workers_load_a_custom_feed(tmp_path: Path, way: str) -> None:
    write_own_feed(tmp_path)
    archive = tmp_path / "archive"
    environment = small(tmp_path)
    named = ["--table", str(tmp_path / "toy.toml"), "--module", str(tmp_path / "toy.py")]
    if way == "installed":
        named = ["--table", "toy"]
        site = install_own_feed(tmp_path)
        environment["PYTHONPATH"] = os.pathsep.join([str(site), child_environment()["PYTHONPATH"]])
    status, out, errors = end(
        start(
            "run", str(tmp_path / "toy.pcap"), "--archive", str(archive), *named,
            "--master", "local[2]", "--no-derive", **environment,
        )
    )  # fmt: skip
    assert status == 0, errors
    assert "3 source messages = 3 converted" in out
    (file,) = Archive.open(archive).files("trade")
    assert sorted(pq.ParquetFile(archive / file.path).read().column("quantity").to_pylist()) == [50, 300]


def test_a_run_without_a_converted_message_fails(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_run, "session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)  # other tests need the session
    tcp = bytearray(frame(b"x"))
    tcp[14 + 9] = 6
    (tmp_path / "soup.pcap").write_bytes(pcap([bytes(tcp)]))
    archive = tmp_path / "archive"
    soup = ("run", tmp_path / "soup.pcap", "--archive", archive, "--table", "itch", "--date", DAY.isoformat())
    done = run_here("pipeline", *soup, "--no-derive")
    assert done.returncode == 1, done.stderr
    assert "1 damaged places" in done.stdout
    assert "nothing could be read or converted" in done.stderr
    assert "soup.pcap, at 0: the capture has no UDP datagram; of 1 frames: 1 TCP, not UDP" in done.stderr
    (file,) = Archive.open(archive).files("quarantine")
    (reason,) = pq.read_table(archive / file.path).column("reason").to_pylist()
    assert reason == "the capture has no UDP datagram; of 1 frames: 1 TCP, not UDP"
    assert [position["is_empty"] for position in Archive.open(archive).catalogue.sources.values()] == [True]
    write_feed(tmp_path / "day.itch", 100)
    day = ("run", tmp_path / "day.itch", "--archive", archive, "--table", "itch", "--date", DAY.isoformat())
    done = run_here("pipeline", *day, "--no-derive")
    assert done.returncode == 0, done.stderr
    assert [position.get("is_empty") for position in Archive.open(archive).catalogue.sources.values()] == [True, None]


def _last(path: Path) -> int:
    if not (path / "_archive.json").exists():
        return 0
    return max((each["last"] for each in Archive.open(path).catalogue.sources.values()), default=0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "nowhere", "--archive", "a"), "no such file"),
        (("run", ".", "--archive", "a"), "holds no journal"),
        (("run", "day.itch", "--archive", "a"), "needs a converter table"),
        (("run", "day.itch", "--archive", "a", "--table", "itch", "--follow"), "cannot be followed"),
        (("run", "day.itch", "--archive", "a", "--table", "itch", "--date", "yesterday"), "not a date"),
        (("run", "day.itch", "--archive", "a", "--table", "itch"), "needs a date"),
        (("run", "day.itch", "--archive", "a", "--table", "unheard-of"), "unheard-of"),
        (
            ("run", "day.itch", "--archive", "day.itch", "--table", "itch", "--date", "2024-01-02"),
            "an archive is a directory",
        ),
        (("run", "day.dbn", "--archive", "a", "--table", "itch", "--date", "2024-01-02"), "DBN version 3"),
        (("replay", "nowhere"), "is not there"),
        (("replay", "."), "holds neither an archive (_archive.json) nor a journal (*.journal)"),
        (("tables", "nowhere"), "holds no archive"),
        (("retain", "nowhere"), "--days or --since is required"),
    ],
)
def test_errors_are_reported_before_spark_starts(
    tmp_path: Path, arguments: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "day.itch").write_bytes(b"\x00\x01S")
    (tmp_path / "day.dbn").write_bytes(b"DBN\x03" + bytes(20))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipeline_run, "session", None)
    done = run_here("pipeline", *arguments)
    assert done.returncode == 1
    assert says in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["day.dbn", "day.itch"], "no empty archive is left"
