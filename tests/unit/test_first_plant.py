"""The plant of `penstock init` listens on the default addresses of clients."""

import subprocess
import sys
from pathlib import Path

from children import child_environment
from command_here import run_here
from penstock.admin.config import AdminConfig
from penstock.assured.node_config import PORT_DEFAULT as ROUTER_PORT_DEFAULT
from penstock.demo.ports import Ports
from penstock.engine.control import EDGE_PORT_DEFAULT, MUX_PORT_DEFAULT, PLANT_PORT_DEFAULT
from penstock.filter.core.control import PORT_DEFAULT as FILTER_PORT_DEFAULT
from penstock.node.console_config import CONSOLE_PORT_DEFAULT
from penstock.node.plant import Plant
from penstock.plant.edge_config import WEBSOCKET_PORT_DEFAULT
from penstock.tree.config import PORT_DEFAULT as AGENT_PORT_DEFAULT


def test_a_first_plant_uses_the_default_port_of_every_node() -> None:
    ports = Ports.documented()
    assert ports.admin == AdminConfig(directory="state", policy="policy.toml").port
    assert ports.filter == FILTER_PORT_DEFAULT
    assert ports.nodes == [PLANT_PORT_DEFAULT, MUX_PORT_DEFAULT, EDGE_PORT_DEFAULT]
    assert ports.websocket == WEBSOCKET_PORT_DEFAULT
    assert ports.agents[0] == AGENT_PORT_DEFAULT
    assert ports.console == CONSOLE_PORT_DEFAULT
    assert ports.routers[0] == ROUTER_PORT_DEFAULT


def test_init_writes_the_documented_names_and_ports(tmp_path: Path) -> None:
    directory = tmp_path / "plant.d"
    made = run_here("init", directory)
    assert made.returncode == 0, made.stderr
    assert f"penstock://127.0.0.1:7400 --credentials {directory}/alice.toml" in made.stdout
    assert (directory / "alice.toml").stat().st_mode & 0o777 == 0o600
    assert Plant.load(directory / "plant.toml").console().port == CONSOLE_PORT_DEFAULT


def test_init_moves_all_ports_together(tmp_path: Path) -> None:
    directory = tmp_path / "plant.d"
    assert run_here("init", directory, "--port", 9_000).returncode == 0
    assert "74" not in {str(port)[:2] for port in _ports_in((directory / "plant.toml").read_text())}


def _ports_in(text: str) -> list[int]:
    return [int(word) for word in text.replace('"', " ").replace(":", " ").split() if word.isdigit() and len(word) == 4]


def test_spark_is_an_attribute_that_loads_on_first_use() -> None:
    program = "import sys, penstock; assert 'penstock.spark' not in sys.modules; print(penstock.spark.session.__name__)"
    done = subprocess.run([sys.executable, "-c", program], env=child_environment(), capture_output=True, text=True)
    assert done.stdout == "session\n", done.stderr


def test_a_minimal_plant_has_an_exchange_two_adapters_and_the_administration_server(tmp_path: Path) -> None:
    directory = tmp_path / "plant.d"
    made = run_here("init", directory, "--minimal")
    assert made.returncode == 0, made.stderr
    assert list(Plant.load(directory / "plant.toml").nodes) == ["admin", "adapter-a", "adapter-b", "exchange"]
    assert f"penstock sub --connect penstock://127.0.0.1:7400 --credentials {directory}/alice.toml" in made.stdout
    assert "--filter" not in made.stdout
