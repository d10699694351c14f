"""A feed written as the guide describes, in every command: by path, by the table's modules, and as an installed
package."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from children import child_environment
from own_feed_kit import DATAGRAMS, TOPICS, install_own_feed, write_own_feed
from penstock.net.udp import free_ports
from waiting import PATIENCE_SECONDS, wait_until

COMMAND = [sys.executable, "-c", "from penstock.cli.main import main; main()"]


def run(directory: Path, *arguments: str, path: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *arguments], cwd=directory, env=environment_with(path), capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


def environment_with(path: Path | None) -> dict[str, str]:
    """The environment of a child process; `path` is a directory with installed packages."""
    environment = child_environment()
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return environment


def topics(done: "subprocess.CompletedProcess[str]") -> list[str]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["topic"] for line in done.stdout.splitlines()]


@pytest.mark.spec("DAY-10")
def test_the_guides_feed_is_converted_and_looked_into_by_the_command(tmp_path: Path) -> None:
    write_own_feed(tmp_path)
    assert topics(run(tmp_path, "convert", "run", "toy.toml", "toy.pcap")) == TOPICS
    # importing its module also registers the table under its name
    assert topics(run(tmp_path, "convert", "run", "toy", "toy.pcap", "--module", "toy.py")) == TOPICS
    moved = run(tmp_path, "convert", "run", "toy.toml", "toy.pcap", "--prefix", "md.other")
    assert topics(moved) == [topic.replace("md.toy.", "md.other.") for topic in TOPICS]
    shown = run(tmp_path, "feed", "info", "toy.pcap", "--module", "toy.py", "--json")
    assert shown.returncode == 0, shown.stderr
    (stream,) = json.loads(shown.stdout)["streams"]
    assert (stream["framing"], stream["session"], stream["messages"]) == ("toy", "monday", 3)
    assert run(tmp_path, "feed", "info", "toy.pcap").returncode == 1


@pytest.mark.spec("DAY-10")
def test_an_installed_feed_is_found_by_its_names(tmp_path: Path) -> None:
    site = install_own_feed(tmp_path)
    write_own_feed(tmp_path)
    assert topics(run(tmp_path, "convert", "run", "toy", "toy.pcap", path=site)) == TOPICS
    assert run(tmp_path, "feed", "info", "toy.pcap", path=site).returncode == 0
    (site / "acme_feeds" / "toy.py").write_text("import nothing_of_that_name\n")
    broken = run(tmp_path, "convert", "run", "toy", "toy.pcap", path=site)
    assert broken.returncode == 1
    assert "entry point 'toy' of penstock.feeds (acme_feeds.toy): cannot load the module" in broken.stderr
    assert "nothing_of_that_name" in broken.stderr


@pytest.mark.spec("DAY-10", "FEED-2")
@pytest.mark.parametrize("way", ["path", "installed"])
def test_an_adapter_takes_a_framing_and_functions_of_ones_own(tmp_path: Path, way: str) -> None:
    site = None
    named = 'modules = ["toy.py"]\ntable = "toy.toml"'
    if way == "installed":
        site = install_own_feed(tmp_path)
        named = 'table = "toy"'
    write_own_feed(tmp_path)
    line, group = free_ports(2)
    (tmp_path / "plant.toml").write_text(f"""
name = "example"
[[feed]]
name = "toy"
{named}
service.open = true
streams = [{{ id = 1, name = "toy", framing = "toy", lines = [{{ port = {line} }}], arbitration.join = "start" }}]
publish.channel = {{ group = "239.255.74.9", port = {group} }}
[[feed.adapter]]
name = "toy-a"
""")
    checked = run(tmp_path.parent, "up", "--check", str(tmp_path / "plant.toml"), path=site)
    assert checked.returncode == 0, checked.stderr
    process = subprocess.Popen(
        [*COMMAND, "adapter", "--config", str(tmp_path / "plant.toml"), "--name", "toy-a"],
        cwd=tmp_path.parent, env=environment_with(site), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]

        def is_converted() -> bool:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
                for data in DATAGRAMS:
                    sending.sendto(data, ("127.0.0.1", line))
            with urllib.request.urlopen(f"{url}/status", timeout=PATIENCE_SECONDS) as answer:
                (stream,) = json.load(answer)["streams"]
            return stream["next_source_sequence"] == 4 and stream["next_message_sequence"] == 4

        wait_until(is_converted, "three messages of the toy exchange")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_plant_whose_module_is_missing_or_wrong_is_refused_with_file_and_reason(tmp_path: Path) -> None:
    write_own_feed(tmp_path)
    plant = tmp_path / "plant.toml"
    text = """
name = "example"
[[feed]]
name = "toy"
modules = ["mine.py"]
table = "itch"
service.open = true
streams = [{ id = 1, name = "toy", framing = "toy", lines = [{ port = 7000 }] }]
[[feed.adapter]]
name = "toy-a"
"""
    plant.write_text(text)
    missing = run(tmp_path, "up", "--check", "plant.toml")
    assert missing.returncode == 1
    assert "mine.py: there is no such file" in missing.stderr
    (tmp_path / "mine.py").write_text("x = 1\n\nx.nothing\n")
    failing = run(tmp_path, "up", "--check", "plant.toml")
    assert (
        "mine.py: cannot load the module: AttributeError: 'int' object has no attribute 'nothing' (line 3)"
        in failing.stderr
    )
    (tmp_path / "mine.py").write_text("def broken(:\n")
    assert "mine.py: cannot load the module: SyntaxError" in run(tmp_path, "up", "--check", "plant.toml").stderr
    (tmp_path / "mine.py").write_text("")
    unknown = run(tmp_path, "up", "--check", "plant.toml")
    assert "unknown framing 'toy'" in unknown.stderr
    assert "Traceback" not in unknown.stderr
