"""The command as a user runs it: a real process, its output, its exit status."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from children import child_environment
from command_here import run_here
from integration.command_kit import COMMAND
from penstock.bench.catalogue import BENCHES, Bench
from penstock.cli.main import COMMANDS, SUMMARIES


def run(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "160"}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=timeout, env=environment)


def test_help_teaches() -> None:
    result = run_here("--help")
    assert result.returncode == 0
    for command in ("penstock demo", "penstock model show quote", "penstock sim --seed 7", "penstock bench --list"):
        assert command in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    result = run_here(command, "--help")
    assert result.returncode == 0
    assert "Usage" in result.stdout


def test_version() -> None:
    assert re.fullmatch(r"penstock \d+\.\d+\.\d+\n", run("--version").stdout)
    assert run("-V").stdout == run("--version").stdout


def test_the_list_of_commands_is_complete_and_imports_none_of_them() -> None:
    assert list(SUMMARIES) == list(COMMANDS)
    program = (
        "import sys; sys.argv[1:] = ['--help']\n"
        "from penstock.cli.main import COMMANDS, main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "files = {place.partition(':')[0] for place in COMMANDS.values()}\n"
        "print([each for each in files if f'penstock.cli.{each}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], env=child_environment(), capture_output=True, text=True)
    assert done.stdout.endswith("\n[]\n"), done.stdout + done.stderr


@pytest.mark.parametrize("group", ["admin", "pipeline", "feed"])
def test_summaries_of_commands_are_not_cut(group: str) -> None:
    listed = run_here(group, "--help").stdout.partition("Commands:")[2]
    assert listed
    assert "..." not in listed


def test_a_mistyped_command_is_suggested() -> None:
    assert "Did you mean 'sub'?" in run_here("sbu").stderr


def test_output_that_nobody_reads_ends_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as output:
        result = subprocess.run([*COMMAND, "bench", "--list"], stdout=output, stderr=subprocess.PIPE, timeout=120)
    assert result.stderr == b""


def test_sim_fits_80_columns_and_writes_json() -> None:
    one = run_here("sim", "--seed", "3", "--minutes", "0.01")
    several = run_here("sim", "--seeds", "2", "--minutes", "0.01")
    for result in (one, several):
        assert result.stderr == ""
        assert max(map(len, result.stdout.splitlines())) <= 80
    lines = run_here("sim", "--seed", "3", "--seeds", "2", "--minutes", "0.01", "--json").stdout.splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [3, 4]
    assert json.loads(lines[0])["digest"][:16] in one.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("--trace", "/nowhere/t"),
            "error [config]: --trace /nowhere/t: cannot be written: No such file or directory\n",
        ),
        (("--trace", "/dev/full"), "error [config]: --trace /dev/full: cannot be written: No space left on device\n"),
        (
            ("--trace", "t", "--seeds", "2"),
            "error [config]: --trace writes the events of one run, but --seeds asks for",
        ),
    ],
)
def test_sim_refuses_a_trace_it_cannot_write(arguments: tuple[str, ...], expected: str) -> None:
    result = run_here("sim", "--minutes", "0.01", *arguments)
    assert result.returncode == 1
    assert result.stderr.startswith(expected)


def test_sim_prints_what_happened_and_replays(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    first = run("sim", "--seed", "3", "--minutes", "0.03", "--trace", str(trace))
    second = run("sim", "--seed", "3", "--minutes", "0.03")
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert "pub-1" in trace.read_text()


def test_bench_lists_and_refuses_unknown_names() -> None:
    listing = run_here("bench", "--list")
    assert [line.split()[0] for line in listing.stdout.splitlines()] == list(BENCHES)
    names = [json.loads(line)["name"] for line in run_here("bench", "--list", "--json").stdout.splitlines()]
    assert names == list(BENCHES)
    assert "error [config]: no bench is called 'modle' (did you mean 'model'?" in run_here("bench", "modle").stderr
    wrong = run_here("bench", "zzz")
    assert wrong.returncode == 1
    assert f"no bench is called 'zzz' (there are: {', '.join(BENCHES)})" in wrong.stderr


def test_a_peer_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BENCHES, "absent", Bench("no_such_peer", "measures beside nothing"))
    told = run_here("bench", "absent").stderr
    assert "bench absent compares with penstock.bench.no_such_peer, which is not installed (make bench" in told


def test_bench_writes_one_json_object_per_line() -> None:
    result = run("bench", "model", "--json")
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    keys = ["bench", "metric", "value", "unit", "against", "against_value", "ratio", "conditions", "missing"]
    assert lines
    assert all(list(line) == keys for line in lines)
    assert "field_read_ns" in [line["metric"] for line in lines]


def test_a_wrong_option_is_refused_with_the_right_ones_at_hand() -> None:
    result = run_here("sim", "--sed", "3")
    assert result.returncode == 2
    assert "--seed" in result.stderr
