"""`penstock journal`: output and errors."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command_here import run_here
from penstock.journal import JournalWriter
from penstock.model import shipped
from penstock.wire import Packer, encode_nack
from unit.journal_kit import segments, write

COMMAND = [sys.executable, "-c", "from penstock.cli.main import main; main()", "journal"]
PATIENCE_SECONDS = 120


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return run_here("journal", *arguments)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, bytes, a packet with a quote, and one without messages, across several segments."""
    path = tmp_path_factory.mktemp("journals") / "journal"
    quote = shipped("quote")
    packer = Packer(7, 0xEF010203, 1)
    packer.add(
        "md.us.eq.AAPL.quote",
        quote.new(symbol="AAPL", bid_price="189.5"),
        model_id=quote.id,
        model_version=quote.version,
    )
    packer.add("odd", b"\x00\x01", model_id=999, model_version=1)
    packet = packer.flush()
    assert packet is not None
    nack = encode_nack(7, 0xEF010203, 1, [(3, 4)])
    write(path, [b"hello", b"\xff\x00", b"", packet, nack, *[bytes(1_000)] * 7])
    return path


def test_ls(path: Path) -> None:
    result = run("ls", path)
    assert result.returncode == 0, result.stderr
    heading, *rows, durable = result.stdout.splitlines()
    assert heading.split() == ["first", "last", "bytes", "from", "(UTC)", "to", "state"]
    assert [row.split()[-1] for row in rows] == ["sealed"] * (len(rows) - 1) + ["open"]
    assert "1970-01-01 00:00:00.000" in rows[0]
    assert durable == "guaranteed to be on the disk up to 12"
    reports = [json.loads(line) for line in run("ls", path, "--json").stdout.splitlines()]
    assert reports[0]["first_sequence"] == 1
    assert reports[-1]["next_sequence"] == 13


def test_cat_shows_text_bytes_and_packets(path: Path) -> None:
    lines = run("cat", path, "--count", 5).stdout.splitlines()
    assert lines[0].split() == ["1", "10", "5", "B", "'hello'"]
    assert lines[1].endswith("ff00")
    assert "DATA publisher 7 epoch 1 group 239.1.2.3 packet 1" in lines[3]
    assert "md.us.eq.AAPL.quote: <quote bid_price=189.5" in lines[4]
    assert lines[5].split() == ["odd:", "model", "999,", "0001"]
    assert "NACK" in lines[6]
    assert len(lines) == 7


def test_cat_writes_json(path: Path) -> None:
    lines = [json.loads(line) for line in run("cat", path, "--json").stdout.splitlines()]
    assert [line["sequence"] for line in lines] == list(range(1, 13))
    assert lines[0] == {"sequence": 1, "timestamp_ns": 10, "size": 5, "payload": "68656c6c6f"}
    quote, odd = lines[3]["packet"]["messages"]
    assert (quote["model"], quote["fields"]["symbol"], quote["fields"]["bid_price"]) == ("quote", "AAPL", 189.5)
    assert odd == {"topic": "odd", "model_id": 999, "payload": "0001"}
    assert lines[4]["packet"]["messages"] == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--from", "10"), [10, 11, 12]),
        (("--from-time", "105"), [11, 12]),
        (("--from-time", "1970-01-01T00:00:00.000000"), list(range(1, 13))),
        (("--from-time", "1970-01-02"), []),
        (("--from", "3", "--count", "2"), [3, 4]),
    ],
)
def test_cat_starts_at_a_given_position(path: Path, options: tuple[str, ...], expected: list[int]) -> None:
    result = run("cat", path, "--json", *options)
    assert [json.loads(line)["sequence"] for line in result.stdout.splitlines()] == expected


def test_cat_follows_until_ctrl_c(tmp_path: Path) -> None:
    with JournalWriter.open(tmp_path / "journal") as journal:
        process = subprocess.Popen(
            [*COMMAND, "cat", str(tmp_path / "journal"), "--follow"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            for number in range(3):
                journal.append(f"record {number}".encode())
                assert f"'record {number}'" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 130
    assert errors == ""


def test_cat_over_tcp(path: Path) -> None:
    server = subprocess.Popen(
        [*COMMAND, "serve", str(path), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split(" on ")[1].split(",")[0]
        remote = run("cat", f"tcp://{address}", "--json")
        assert remote.stdout == run("cat", path, "--json").stdout
        assert run("cat", f"tcp://{address}", "--from", "11", "--count", "1", "--json").stdout.startswith(
            '{"sequence": 11'
        )
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=PATIENCE_SECONDS)
        assert server.returncode == 0
    finally:
        server.kill()
        server.communicate()
    nobody = run("cat", f"tcp://{address}")
    assert nobody.returncode == 1
    assert "error [unreachable]" in nobody.stderr


def test_verify(path: Path) -> None:
    result = run("verify", path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("12 good records in ")


def test_verify_names_the_damage_and_continues(tmp_path: Path) -> None:
    write(tmp_path / "journal", [bytes(1_000)] * 9)
    first, second, _ = segments(tmp_path / "journal")
    for segment in (first, second):
        content = bytearray(segment.read_bytes())
        content[200] ^= 4
        segment.write_bytes(content)
    result = run("verify", tmp_path / "journal")
    assert result.returncode == 1
    one, two, total = result.stdout.splitlines()
    assert one == f"damaged: {first.name} at byte 64: record 1 is damaged or missing, but records up to 3 existed"
    assert second.name in two
    assert total.startswith("3 good records in 3 segments")
    assert "error [journal-corrupt]" in result.stderr
    assert "damaged" in run("ls", tmp_path / "journal").stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("ls", "/nowhere"), "error [journal]: /nowhere: cannot list the directory: No such file or directory"),
        (("cat", "/nowhere"), "error [journal]: /nowhere: cannot list the directory"),
        (("cat", "tcp://nowhere"), "error [config]: 'nowhere' is not an address"),
        (("cat", ".", "--from-time", "soon"), "error [config]: --from-time: 'soon' is not a time"),
        (("cat", ".", "--from-time", "1", "--from", "1"), "error [config]: --from and --from-time"),
        (
            ("serve", ".", "--host", "0.0.0.0"),
            "error [config]: 0.0.0.0: a control connection beyond the loopback interface needs",
        ),
    ],
)
def test_errors_explain_what_to_do(arguments: tuple[str, ...], expected: str) -> None:
    result = run(*arguments)
    assert result.returncode == 1
    assert result.stderr.startswith(expected)


def test_removed_records_are_reported_as_no_longer_kept(path: Path, tmp_path: Path) -> None:
    for segment in segments(path)[1:]:
        (tmp_path / segment.name).write_bytes(segment.read_bytes())
    result = run("cat", tmp_path, "--from", "1")
    assert result.returncode == 1
    assert "error [journal-gone]" in result.stderr


def test_control_characters_in_a_record_are_escaped_in_the_terminal(tmp_path: Path) -> None:
    quote = shipped("quote")
    packer = Packer(7, 0xEF010203, 1)
    packer.add("a.\x1b]0;owned\x07\x9b2J", b"text \x1b[2J \x9b\x7f")
    packer.add("b.\x9b", quote.new(symbol="A\x9bB\x7f"), model_id=quote.id, model_version=quote.version)
    packet = packer.flush()
    assert packet is not None
    write(tmp_path / "journal", [packet, "\x9b\x1b".encode()])
    for options in ((), ("--json",)):
        result = run("cat", tmp_path / "journal", *options)
        assert result.returncode == 0, result.stderr
        assert not [each for each in result.stdout if not each.isprintable() and each != "\n"]


@pytest.mark.parametrize("command", ["ls", "cat", "verify"])
def test_a_directory_without_a_journal_is_not_an_empty_journal(tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path)
    assert result.returncode == 1
    assert "contains no journal" in result.stderr
    JournalWriter.open(tmp_path / "new").close()
    assert run(command, tmp_path / "new").returncode == 0
