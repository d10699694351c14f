"""`penstock pub` and `penstock sub` on both ends of a channel."""

import base64
import json
import re
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from command_here import run_here
from integration.command_kit import COMMAND, PATIENCE_SECONDS, Running, completed, kill, running
from penstock.cli.sub.channel import _explain_silence
from penstock.cli.sub.options import SubOptions
from penstock.middleware.live.receiver import SocketReceiver
from penstock.net.udp import free_channel


def pub(channel: str, lines: str | bytes, *options: str) -> "subprocess.CompletedProcess[str]":
    return completed("pub", channel, *options, given=lines.encode() if isinstance(lines, str) else lines)


def objects(command: Running) -> list[dict[str, Any]]:
    return [json.loads(line) for line in command.out.splitlines()]


def messages(command: Running) -> list[dict[str, Any]]:
    return [each for each in objects(command) if "topic" in each]


def quote(symbol: str, bid: str, **more: object) -> str:
    rest = {"topic": f"md.{symbol}.quote", "symbol": symbol, "event_time": 5, **more}
    return f'{json.dumps(rest)[:-1]}, "bid_price": {bid}}}\n'


def test_json_goes_in_and_comes_out() -> None:
    channel = str(free_channel())
    with running("sub", channel, "--json", "--count", "3") as sub:
        sub.wait_for_output("listening")
        lines = quote("A", "12.34567891") + "\n" + quote("B", "90071992547.40993") + quote("C", "1e-8", bid_size=7)
        done = pub(channel, lines)
        assert done.returncode == 0, done.stderr
        assert "3 messages published" in done.stderr
        assert sub.end() == 0, sub.err
        shown = messages(sub)
        assert [each["topic"] for each in shown] == ["md.A.quote", "md.B.quote", "md.C.quote"]
        assert [each["seq"] for each in shown] == [1, 2, 3]
        assert {each["model"] for each in shown} == {"quote"}
        assert len({each["publisher"] for each in shown}) == 1
        for digits in ('"bid_price":12.34567891,', '"bid_price":90071992547.40993000,', '"bid_price":0.00000001,'):
            assert digits in sub.out  # every digit, which json.loads would round
        assert shown[2]["fields"]["bid_size"] == 7
        assert "3 of 3 messages shown" in sub.err
        assert "0 packets lost" in sub.err


@pytest.mark.spec("OPS-3")
def test_latencies_are_told_with_what_the_clocks_may_make_wrong() -> None:
    channel = str(free_channel())
    with running("clock", "serve", "--port", "0") as clock:
        clock.wait_for_output("answering on")
        address = clock.out.split("answering on ")[1].split(",")[0]
        with (
            running("sub", channel, "--quiet", "--latency", "--clock", address, "--count", "200") as across,
            running("sub", channel, "--quiet", "--latency", "--count", "200") as here,
        ):
            for each in (across, here):
                each.wait_for_output("listening")
            assert pub(channel, "", "--generate", "200", "--rate", "2000").returncode == 0
            for each in (across, here):
                assert each.end() == 0, each.err
                assert "latency from event_time in µs, 200 messages: p50 " in each.err
            assert "by the clocks" not in here.err  # one clock made both times
            assert re.search(r"± [1-9][\d,.]* by the clocks|± 0\.[1-9] by the clocks", across.err)
        assert clock.interrupt() == 0


def test_a_latency_that_cannot_be_told_is_refused() -> None:
    for options, what in (
        (("--clock", "127.0.0.1:1"), "--clock needs --latency"),
        (("--latency", "--clock", "nonsense"), "is not an address"),
        (("--latency", "--clock", "127.0.0.1:1"), "start `penstock clock serve` there"),
    ):
        done = completed("sub", *options)
        assert done.returncode == 1
        assert what in done.stderr


@pytest.mark.parametrize("wrong", ["239.255.74.1", "localhost:7401", "10.0.0.1:7401", "239.255.74.1:99999"])
def test_an_address_that_is_no_channel_is_not_taken_for_a_pattern(wrong: str) -> None:
    done = completed("sub", wrong)
    assert done.returncode == 1
    assert "error [config]" in done.stderr


def test_patterns_and_conditions_choose() -> None:
    channel = str(free_channel())
    patterns = ("md.*.quote", "!md.Z*.>")
    with (
        running("sub", channel, *patterns, "--json", "--where", "bid_price > 10 and symbol <> 'D'") as chosen,
        running("sub", channel, "!md.A.quote", "--json") as others,
        running("sub", channel, "/md[.][AB][.]quote/") as pretty,
    ):
        for each in (chosen, others, pretty):
            each.wait_for_output("listening")
        lines = "".join(
            quote(name, bid) for name, bid in [("A", "11"), ("B", "9"), ("ZZ", "50"), ("D", "50"), ("E", "12")]
        )
        assert pub(channel, lines).returncode == 0
        for each in (chosen, others, pretty):
            each.wait_for_output("goodbye")
            assert each.interrupt() == 0
        assert [each["topic"] for each in messages(chosen)] == ["md.A.quote", "md.E.quote"]
        assert [each["topic"] for each in messages(others)] == [f"md.{name}.quote" for name in ("B", "ZZ", "D", "E")]
        assert [line.split()[:3] for line in pretty.out.splitlines()] == [
            ["md.A.quote", "#1", "quote"],
            ["md.B.quote", "#2", "quote"],
        ]
        assert "symbol=A" in pretty.out
        assert "2 of 5 messages shown" in chosen.err
        assert "Traceback" not in chosen.err + others.err + pretty.err


def test_any_bytes_go_through_also_long_ones() -> None:
    channel = str(free_channel())
    lines = [b"plain", bytes(range(1, 10)) + b"\x1b[2J\xff", b"x" * 100_000, b"last"]
    with running("sub", channel, "--json", "--count", "4") as sub, running("sub", channel) as pretty:
        sub.wait_for_output("listening")
        pretty.wait_for_output("listening")
        assert pub(channel, b"\n".join(lines), "--raw", "--topic", "a.b").returncode == 0
        assert sub.end() == 0
        assert [base64.b64decode(each["base64"]) for each in messages(sub)] == lines
        assert {each["topic"] for each in messages(sub)} == {"a.b"}
        pretty.wait_for_output("goodbye")
        assert pretty.interrupt() == 0
        assert "\x1b" not in pretty.out  # no control characters
        assert "100000 bytes" in pretty.out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "line 2: is not a JSON object of fields"),
        ("[1]", "line 2: is not a JSON object of fields"),
        ('{"topic": "a.b", "simbol": "X"}', "line 2: model 'quote' has no field 'simbol' (did you mean 'symbol'?)"),
        ('{"topic": "a..b"}', "line 2: topic 'a..b', level 2: the level is empty"),
        ('{"topic": "a.b", "bid_size": "many"}', "line 2: field 'bid_size' cannot be 'many'"),
        ('{"symbol": "X"}', "line 2: has no topic"),
        ('{"topic": 5}', "line 2: is not a JSON object of fields"),
    ],
)
def test_a_bad_line_is_named(line: str, expected: str) -> None:
    done = pub(str(free_channel()), quote("A", "1") + line + "\n" + quote("B", "1"))
    assert done.returncode == 1
    assert expected in done.stderr
    assert "1 messages published" in done.stderr


def test_bad_lines_can_be_skipped() -> None:
    done = pub(str(free_channel()), quote("A", "1") + "{\n" + quote("B", "1"), "--skip-bad")
    assert done.returncode == 0
    assert "skipped line 2: " in done.stderr
    assert "2 messages published" in done.stderr
    assert "1 bad lines skipped" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("pub", "239.1.2.3"), "error [config]: '239.1.2.3' is not a channel"),
        (("pub", "10.0.0.1:700"), "error [config]: 10.0.0.1 is not a multicast group"),
        (("sub", "--interface", "192.0.2.77"), "error [config]: cannot use the interface 192.0.2.77"),
        (("sub", "a..b"), "error [topic]: "),
        (("sub", "--where", "bid_prize > 1"), "error [filter-expression]: "),
        (("sub", "--model", "qoute"), "did you mean 'quote'?"),
        (("pub", "--raw"), "error [config]: --raw needs a topic"),
        (("capture", "--to", "/dev/null/x"), "error [journal"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[str, ...], expected: str) -> None:
    done = completed(*arguments)
    assert done.returncode == 1
    assert expected in done.stderr


def test_made_up_quotes_survive_loss_and_quiet_counts_them() -> None:
    channel = str(free_channel())
    with running("sub", channel, "--quiet", "--from-start", "--loss", "0.1", "--count", "2000") as sub:
        sub.wait_for_output("listening")
        done = pub(channel, "", "--generate", "2000", "--rate", "4000")
        assert "2,000 messages published" in done.stderr
        assert sub.end() == 0, sub.err
        assert "2,000 of 2,000 messages shown" in sub.err
        assert "0 packets lost" in sub.err
        assert "discarded on purpose" in sub.err


def test_a_publisher_that_is_killed_is_reported_and_the_other_goes_on() -> None:
    channel = str(free_channel())
    with running("sub", channel, "--json") as sub, running("pub", channel) as first, running("pub", channel) as second:
        sub.wait_for_output("listening")
        first.write(quote("A", "1"))
        sub.wait_for_output("md.A.quote")
        second.write(quote("B", "1"))
        sub.wait_for_output("md.B.quote")
        kill(first.pid)
        sub.wait_for_output('"cause":"expired"')
        second.write(quote("C", "1"))
        sub.wait_for_output("md.C.quote")
        second.interrupt()
        sub.wait_for_output('"cause":"goodbye"')
        assert sub.interrupt() == 0
        publishers = {each["topic"]: each["publisher"] for each in messages(sub)}
        ended = {each["ended"]["cause"]: each["ended"]["publisher"] for each in objects(sub) if "ended" in each}
        assert ended == {"expired": publishers["md.A.quote"], "goodbye": publishers["md.B.quote"]}
        assert publishers["md.B.quote"] == publishers["md.C.quote"]


def test_a_late_subscriber_can_ask_for_the_beginning() -> None:
    channel = str(free_channel())
    with running("pub", channel) as publisher, running("sub", channel, "--json") as early:
        early.wait_for_output("listening")
        publisher.write(quote("A", "1"))
        early.wait_for_output("md.A.quote")
        with running("sub", channel, "--json", "--from-start", "--count", "2") as late:
            late.wait_for_output("listening")
            publisher.write(quote("B", "1"))
            assert late.end() == 0
            assert [each["topic"] for each in messages(late)] == ["md.A.quote", "md.B.quote"]


def test_output_that_nobody_reads_any_more_ends_it(tmp_path: Path) -> None:
    channel = str(free_channel())
    command = " ".join(f"'{word}'" for word in [*COMMAND, "sub", channel, "--json"])
    errors = tmp_path / "errors"
    with errors.open("wb") as stream:
        reader = subprocess.Popen(
            ["sh", "-c", f"{command} | head -n 2"], stdout=subprocess.PIPE, stderr=stream, text=True
        )
        try:
            with running("pub", channel, "--generate", "1000000", "--rate", "500"):
                output, _ = reader.communicate(timeout=PATIENCE_SECONDS)
        finally:
            reader.kill()
            reader.wait()
    assert len(output.splitlines()) == 2
    assert "Traceback" not in errors.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whoever_asks_politely_gets_a_clean_end(number: signal.Signals) -> None:
    channel = str(free_channel())
    with running("sub", channel) as sub, running("pub", channel) as publisher:
        sub.wait_for_output("listening")
        publisher.write(quote("A", "1"))
        sub.wait_for_output("md.A.quote")
        for command in (publisher, sub):
            command.process.send_signal(number)
            assert command.process.wait(timeout=PATIENCE_SECONDS) == 0, command.err
        assert "1 messages published" in publisher.err
        assert "1 of 1 messages shown" in sub.err
        assert "goodbye" in sub.err


MAP = """
version = 1
port = {port}
default = "239.255.{third}.1"
[[rules]]
group = "239.255.{third}.2"
topics = ["md.A.>"]
[[rules]]
group = "239.255.{third}.3"
topics = ["md.B.>"]
"""


@pytest.mark.spec("FILT-12")
def test_publisher_and_subscribers_share_a_map(tmp_path: Path) -> None:
    """Each topic goes to its group; a subscriber hears only the groups of its interests."""
    where = free_channel()
    path = tmp_path / "groups.toml"
    path.write_text(MAP.format(port=where.port, third=where.group.split(".")[2]))
    use = ("--map", str(path), "--json")
    with (
        running("sub", *use, "--count", "2", "md.A.quote") as one,
        running("sub", *use, "--count", "6") as everything,
        running("sub", where.group.rpartition(".")[0] + f".3:{where.port}", "--json", "--count", "2") as plain,
    ):
        for each in (one, everything, plain):
            each.wait_for_output("listening")
        assert "1 groups" in one.err
        assert "3 groups" in everything.err
        lines = "".join(quote(symbol, "1") for symbol in "ABCABC")
        done = pub("239.255.74.1:7401", lines, "--map", str(path))
        assert done.returncode == 0, done.stderr
        for each in (one, everything, plain):
            assert each.end() == 0, each.err
        assert {each["topic"] for each in messages(one)} == {"md.A.quote"}
        assert "2 of 2 messages shown" in one.err  # messages of other groups were not received
        assert sorted(each["topic"] for each in messages(everything)) == sorted(f"md.{s}.quote" for s in "AABBCC")
        assert {each["topic"] for each in messages(plain)} == {"md.B.quote"}


def test_a_channel_beside_a_map_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "groups.toml"
    path.write_text('version = 1\ndefault = "239.1.1.1"\n')
    for words, what in (
        (["sub", "239.1.1.1:7401", "--map", str(path)], "exclude each other"),
        (["sub", "--map", str(tmp_path / "missing.toml")], "cannot be read"),
        (["sub", "--accept", "yesterday"], "yesterday"),
    ):
        done = completed(*words)
        assert done.returncode != 0
        assert what in done.stderr


def test_a_subscriber_that_receives_nothing_says_why() -> None:
    channel = str(free_channel())
    with running("sub", channel, "--seconds", "0.1") as sub:
        assert sub.end() == 1
        assert f"-- no message yet: nothing arrives from {channel}; `penstock pub` publishes there" in sub.err


def test_a_subscriber_whose_topics_match_nothing_says_so() -> None:
    receiver = SimpleNamespace(counters={"messages_delivered": 1_234})
    options = SubOptions(where="bid_price > 5")
    said = _explain_silence(cast(SocketReceiver, receiver), "239.255.74.1:7401", ["md.B.>"], options)
    assert said == "1,234 messages arrived from 239.255.74.1:7401, none of them on md.B.> with bid_price > 5"


def test_a_subscriber_without_the_filter_module_that_it_wants_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.filter.client.discovery.answers", lambda place: False)
    done = run_here("sub", "--filter", "auto", str(free_channel()), "--seconds", "0.1")
    assert "no filter module answers at 127.0.0.1:7402, and nothing arrives" in done.stderr
