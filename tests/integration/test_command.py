"""The command as a user runs it: a real process, its output, its exit status."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-c", "from penstock.cli.main import main; main()"]


def run(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "160"}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=timeout, env=environment)


def test_help_teaches() -> None:
    result = run("--help")
    assert result.returncode == 0
    for command in ("penstock demo", "penstock model show quote", "penstock sim --seed 7", "penstock bench --list"):
        assert command in result.stdout


@pytest.mark.parametrize("command", ["demo", "sim", "bench", "model"])
def test_every_command_explains_itself(command: str) -> None:
    result = run(command, "--help")
    assert result.returncode == 0
    assert "Usage" in result.stdout


def test_version() -> None:
    assert re.fullmatch(r"penstock \d+\.\d+\.\d+\n", run("--version").stdout)


def test_demo_ends_by_itself_with_a_summary() -> None:
    result = run("demo", "--seconds", "1", "--loss", "0.1")
    assert result.returncode == 0, result.stderr
    assert "every message came once, in order and unchanged, or its loss was reported" in result.stdout


def test_demo_ends_cleanly_on_ctrl_c_and_serves_metrics_meanwhile() -> None:
    process = subprocess.Popen(
        [*COMMAND, "demo", "--metrics-port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        started = process.stderr.readline()
        found = re.search(r"url=(http://127\.0\.0\.1:\d+)", started)
        assert found, started
        with urllib.request.urlopen(f"{found[1]}/metrics", timeout=10) as answer:
            assert b"# TYPE" in answer.read() or answer.status == 200
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert "every message came once" in output


def test_sim_prints_what_happened_and_replays(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    first = run("sim", "--seed", "3", "--minutes", "0.03", "--trace", str(trace))
    second = run("sim", "--seed", "3", "--minutes", "0.03")
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert "pub-1" in trace.read_text()


def test_bench_lists_and_refuses_unknown_names() -> None:
    listing = run("bench", "--list")
    assert [line.split()[0] for line in listing.stdout.splitlines()] == ["codec", "match", "model", "predicate"]
    wrong = run("bench", "speed")
    assert wrong.returncode == 1
    assert "no bench is called 'speed' (there are: codec, match, model, predicate)" in wrong.stderr


def test_bench_writes_one_json_object_per_line() -> None:
    result = run("bench", "model", "--json")
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    keys = ["bench", "metric", "value", "unit", "against", "against_value", "ratio", "conditions"]
    assert lines
    assert all(list(line) == keys for line in lines)
    assert "field_read_ns" in [line["metric"] for line in lines]


def test_a_wrong_option_is_refused_with_the_right_ones_at_hand() -> None:
    result = run("sim", "--sed", "3")
    assert result.returncode == 2
    assert "--seed" in result.stderr
