"""A witness as a process of its own, and in a plant (REPL-14)."""

import json
import signal
import urllib.request
from pathlib import Path

import msgspec
import pytest

from certificates import make_certificate
from command_here import run_here
from integration.command_kit import running
from integration.live_kit import write_toml
from penstock.assured.core.status import WitnessStatus
from penstock.assured.live.lease_memory import MEMORY_NAME
from penstock.assured.node_config import LeaseAccess, WitnessConfig
from penstock.base.errors import ConfigurationError
from penstock.net.secret import write_private
from penstock.node.checking import check_files
from penstock.node.plant import Plant

pytestmark = pytest.mark.spec("REPL-14")


def witness_config(directory: Path) -> WitnessConfig:
    return WitnessConfig(
        name="tower", routers=("east", "west"), state_directory=str(directory / "tower"), control=LeaseAccess(port=0)
    )


def test_a_witness_says_where_it_is_and_how(tmp_path: Path) -> None:
    path = tmp_path / "tower.toml"
    write_toml(path, witness_config(tmp_path))
    with running("witness", "run", "--config", str(path)) as process:
        process.wait_for_output("control_port")
        facts = json.loads(process.out.splitlines()[0])
        with urllib.request.urlopen(f"{facts['url']}/status") as answer:
            status = msgspec.json.decode(answer.read(), type=WitnessStatus)
        assert (status.epoch, status.holder, status.in_touch, status.is_storing) == (0, "", [], True)
        with urllib.request.urlopen(f"{facts['url']}/metrics") as answer:
            assert "penstock_witness_routers" in answer.read().decode()
        told = run_here("witness", "status", "--node", facts["url"].removeprefix("http://"))
        assert told.stdout == "tower: epoch 0, not granted yet; in touch with no router\n"
        process.process.send_signal(signal.SIGTERM)
        assert process.end() == 0


def test_a_witness_does_not_start_with_a_damaged_memory(tmp_path: Path) -> None:
    path = tmp_path / "tower.toml"
    write_toml(path, witness_config(tmp_path))
    (tmp_path / "tower").mkdir()
    (tmp_path / "tower" / MEMORY_NAME).write_text('{"checksum": 1, "kept": {}}')
    with running("witness", "run", "--config", str(path)) as process:
        assert process.end() == 1
        assert "lease-memory" in process.out + process.err
        assert "would vote twice" in process.out + process.err


PLANT = """
name = "pair"

[[witness]]
name = "tower"
routers = ["east", "west"]
control.port = 7461

[[witness]]
name = "mast"
routers = ["north", "south"]
control.port = {port}
"""


REACHED = """
name = "pair"

[[witness]]
name = "tower"
routers = ["east", "west"]
control.port = 0
metrics_host = "0.0.0.0"
"""


def test_a_plant_has_witnesses_each_in_its_own_place(tmp_path: Path) -> None:
    path = tmp_path / "plant.toml"
    path.write_text(PLANT.format(port=7462))
    plant = Plant.load(path)
    check_files(plant)
    tower = plant.node("tower")
    assert isinstance(tower, WitnessConfig)
    assert tower.state_directory == "state/tower"
    path.write_text(PLANT.format(port=7461))
    with pytest.raises(ConfigurationError, match="tower and mast have the same address"):
        check_files(Plant.load(path))


def test_a_page_that_other_machines_reach_is_read_with_the_files_of_the_document(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "127.0.0.1")
    path, token = tmp_path / "plant.toml", tmp_path / "page.token"
    path.write_text(REACHED)
    with running("witness", "run", "--config", str(path), "--name", "tower") as process:
        assert process.end() == 1
        assert "metrics_access.certificate, metrics_access.private_key, metrics_access.token_file" in process.err
    write_private(token, b"a-token-of-the-operator")
    files = f'certificate = "{certificate.name}", private_key = "{key.name}", token_file = "{token.name}"'
    path.write_text(f"{REACHED}metrics_access = {{ {files} }}\n")
    with running("witness", "run", "--config", str(path), "--name", "tower") as process:
        process.wait_for_output("control_port")
        facts = json.loads(process.out.splitlines()[0])
        assert facts["url"].startswith("https://0.0.0.0:")
        assert run_here("witness", "status", str(path)).stdout.startswith("tower: epoch 0")
        page = facts["url"].replace("0.0.0.0", "127.0.0.1")
        options = ["--once", "--json", "--interval", "0.1", "--ca-file", str(certificate), "--token-file", str(token)]
        with running("top", "--node", page, *options) as top:
            assert top.end() == 1, "no router is in touch with it"
            assert "0 routers in touch" in json.loads(top.out)["nodes"][0]["detail"]
        token.chmod(0o644)
        with running("top", str(path), "--once", "--json", "--interval", "0.1") as top:
            assert top.end() == 1
            assert "other users can access this file" in json.loads(top.out)["nodes"][0]["detail"]


def test_a_witness_has_a_name_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="three voters"):
        WitnessConfig(name="east", routers=("east", "west"), state_directory=str(tmp_path))


VOTERS = """
name = "pair"

[[router]]
name = "east"
control.port = 7460

[router.pair]
routers = ["east", "west"]
voting = {{ witness = "tower", listen.port = {port}, voters = {{ west = "127.0.0.1:7472", tower = "127.0.0.1:7470" }} }}

[[witness]]
name = "tower"
routers = ["east", "west"]
lease_ms = {lease_ms}
control.port = 7470
"""


def test_a_plants_document_is_refused_whose_voters_would_not_vote_together(tmp_path: Path) -> None:
    path = tmp_path / "plant.toml"
    for port, lease_ms, why in (
        (7471, 3_000, ""),
        (7471, 1_000, "have different voting configurations"),
        (7470, 3_000, "east and tower have the same address"),
    ):
        path.write_text(VOTERS.format(port=port, lease_ms=lease_ms))
        if not why:
            check_files(Plant.load(path))
            continue
        with pytest.raises(ConfigurationError, match=why):
            check_files(Plant.load(path))


def test_a_router_says_where_both_other_voters_are(tmp_path: Path) -> None:
    path = tmp_path / "plant.toml"
    path.write_text(VOTERS.format(port=7471, lease_ms=3_000).replace('west = "127.0.0.1:7472", ', ""))
    with pytest.raises(ConfigurationError, match="voters has places of tower"):
        Plant.load(path)
