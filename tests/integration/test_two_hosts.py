"""`penstock init --hosts a,b --tls`: the plant runs on two hosts (network namespaces) from its documents alone."""

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from command_here import run_here
from integration.command_kit import Running, completed, running
from netns_kit import network_or_skip
from penstock.base.errors import ConfigurationError
from penstock.bench.hosts import Host
from penstock.net.place import interface_to

PRIVATE = 0o077


class Plant(NamedTuple):
    home: Path
    """The directory of the second host's copy."""

    url: str
    second: Host
    ups: list[Running]


def init(directory: Path, hosts: str) -> str:
    made = run_here("init", directory, "--hosts", hosts, "--tls")
    assert made.returncode == 0, made.stderr
    return made.stdout


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    with network_or_skip(is_lossy=False) as network, contextlib.ExitStack() as stack:
        feeds, apps = network.add_host(), network.add_host()
        init(tmp_path / "made", f"feeds={feeds.address},apps={apps.address}")
        ups = []
        for name, host in (("feeds", feeds), ("apps", apps)):
            shutil.move(tmp_path / "made" / name, tmp_path / name)  # as if copied to the host
            with host.entered():
                up = stack.enter_context(running("--log-level", "INFO", "up", str(tmp_path / name / "plant.toml")))
            up.wait_for_output("the plant runs")
            ups.append(up)
        shutil.rmtree(tmp_path / "made")
        yield Plant(tmp_path / "apps", f"penstocks://{feeds.address}:7400", apps, ups)
        assert [each.interrupt() for each in ups] == [0, 0], [each.err for each in ups]


@pytest.mark.spec("OPS-2")
def test_a_plant_runs_on_two_hosts_by_multicast_and_by_tls(plant: Plant) -> None:
    first, second = plant.ups
    second.wait_for_match("adapter-b: backup, synchronised")
    assert "adapter-a: active" in first.out
    login = ("sub", "--connect", plant.url, "--credentials", str(plant.home / "alice.toml"), "--count", "20")
    secret = ("--secret", str(plant.home / "streams.secret"))
    with plant.second.entered():
        by_multicast = completed(*login, "--transport", "multicast", "md.us.eq.>")
        by_tls = completed(*login, *secret, "--transport", "tcp", "md.us.eq.>")
        unproved = completed(*login, "--transport", "tcp", "--seconds", "3", "md.us.eq.>")
    for each in (by_multicast, by_tls):
        assert each.returncode == 0, each.stderr
        assert re.search("20 messages in .* 0 lost", each.stderr), each.stderr
        assert each.stdout.count("md.us.eq.") == 20
    assert unproved.returncode == 1
    assert "needs a secret" in unproved.stderr


def test_the_interface_for_multicast_is_that_of_the_route() -> None:
    with network_or_skip(is_lossy=False) as network:
        one, other = network.add_host(), network.add_host()
        with one.entered():
            assert interface_to(other.address) == interface_to(one.address) == one.address
            assert interface_to("127.0.0.1") == interface_to("localhost") == "127.0.0.1"
            assert interface_to("0.0.0.0") == "0.0.0.0"
            with pytest.raises(
                ConfigurationError, match=r"no interface leads to 198\.51\.100\.7: Network is unreachable"
            ):
                interface_to("198.51.100.7")


def test_files_of_hosts_are_for_their_owner_and_keys_stay_on_their_host(tmp_path: Path) -> None:
    directory = tmp_path / "made"
    told = init(directory, "feeds=10.77.0.1,apps=10.77.0.2")
    files = [each for each in directory.rglob("*") if each.is_file()]
    assert not any(each.stat().st_mode & PRIVATE for each in directory.rglob("*"))
    assert {each.name for each in files if each.parent == directory} == {"ca.key"}
    keys = [each.read_bytes() for each in files if each.suffix == ".key"]
    assert len(set(keys)) == len(keys) == 3
    assert not (directory / "apps" / "operations.toml").exists()
    assert not (directory / "feeds" / "alice.toml").exists()
    assert f"scp -rp {directory / 'apps'} 10.77.0.2:made" in told
    for host in ("feeds", "apps"):
        checked = run_here("up", "--check", directory / host / "plant.toml")
        assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        ("10.0.0.7", "are not two hosts"),
        ("10.0.0.7,10.0.0.7", "are not two hosts"),
        ("a=10.0.0.7,b=127.0.0.1", "not an IPv4 address that the other host reaches"),
        ("a=10.0.0.7,b=::1", "not an IPv4 address that the other host reaches"),
        ("a=10.0.0.7,../b=10.0.0.8", "is not the name or address of a host"),
        ("a=10.0.0.7,no-such-host.invalid", "has no address"),
    ],
)
def test_hosts_that_cannot_be_two_are_refused_before_anything_is_made(tmp_path: Path, hosts: str, why: str) -> None:
    refused = run_here("init", tmp_path / "made", "--hosts", hosts, "--tls")
    assert refused.returncode == 1
    assert why in refused.stderr
    assert not (tmp_path / "made").exists()


def test_hosts_need_tls(tmp_path: Path) -> None:
    refused = run_here("init", tmp_path / "made", "--hosts", "10.0.0.7,10.0.0.8")
    assert "--hosts and --tls require each other" in refused.stderr
