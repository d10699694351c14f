"""From plant.toml to the configuration of every node."""

import re
from pathlib import Path

import pytest

from penstock.admin.config import AdminConfig
from penstock.base.errors import ConfigurationError, PenstockError
from penstock.demo.layout import write_layout
from penstock.demo.reports import DemoOptions
from penstock.feed.adapter_config import AdapterConfig
from penstock.feed.core.play.config import PlayerConfig
from penstock.filter.module_config import FilterModuleConfig
from penstock.node.checking import check_files
from penstock.node.plant import Plant

AGENTS = """
name = "trial"

[[agent]]
name = "root"
role = "root"

[[agent]]
name = "leaf"
"""

PLANT = """
name = "trial"

[[administration]]
policy = "policy.toml"
port = 7400

[[administration]]
name = "spare"
policy = "policy.toml"
port = 7401
role = "standby"
peer = { address = "penstock://127.0.0.1:7400", credentials = "spare.toml" }

[[feed]]
name = "nasdaq"
table = "itch"
spin = true
sync.active_lost_ms = 250
admin = { credentials = "feed.toml", topics = ["md.us.eq.>"] }

[[feed.streams]]
id = 1
name = "totalview"
lines = [{ group = "239.255.10.1", port = 26400 }]

[[feed.adapter]]
name = "nasdaq-a"
publish.channel = { group = "239.255.20.1", port = 17401 }
peers.port = 17501

[[feed.adapter]]
name = "nasdaq-b"
spin = false
sync.pause_ms = 7
publish.channel = { group = "239.255.20.2", port = 17401 }
peers = { host = "10.0.0.2", port = 17502 }

[feed.peers]
secret_file = "nasdaq.secret"

[[player]]
name = "exchange"
lines = [{ group = "239.255.10.1", port = 26400 }]
"""


def load(tmp_path: Path, text: str) -> Plant:
    path = tmp_path / "plant.toml"
    path.write_text(text)
    return Plant.load(path)


@pytest.mark.spec("AUTH-7")
def test_the_document_names_the_group_that_may_read_files(tmp_path: Path) -> None:
    assert load(tmp_path, PLANT).files_group == ""
    assert load(tmp_path, PLANT + '[files]\ngroup = "marketdata"\n').files_group == "marketdata"
    with pytest.raises(ConfigurationError, match="files"):
        load(tmp_path, PLANT + "[files]\ngroup = 7\n")


def test_every_node_gets_the_values_of_the_document_and_the_derived_ones(tmp_path: Path) -> None:
    plant = load(tmp_path, PLANT)
    assert list(plant.nodes) == ["admin", "spare", "nasdaq-a", "nasdaq-b", "exchange"]
    kinds = [AdminConfig, AdminConfig, AdapterConfig, AdapterConfig, PlayerConfig]
    assert [type(config) for config in plant.nodes.values()] == kinds
    first, second = plant.node("nasdaq-a"), plant.node("nasdaq-b")
    assert isinstance(first, AdapterConfig)
    assert isinstance(second, AdapterConfig)
    assert (first.feed, first.index, second.index) == ("nasdaq", 0, 1)
    assert (first.spin, second.spin) == (True, False)
    assert (second.sync.active_lost_ms, second.sync.pause_ms) == (250, 7)
    assert first.admin.url == "penstock://127.0.0.1:7400,127.0.0.1:7401"
    assert first.admin.credentials == "feed.toml"
    assert [(peer.index, peer.host, peer.port) for peer in first.peers.others] == [(1, "10.0.0.2", 17502)]
    assert [(peer.index, peer.host, peer.port) for peer in second.peers.others] == [(0, "127.0.0.1", 17501)]
    assert first.state_directory == "state/nasdaq-a"
    spare = plant.node("spare")
    assert isinstance(spare, AdminConfig)
    assert (spare.directory, spare.role) == ("state/spare", "standby")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('table = "itch"', 'tabel = "itch"', "unknown key 'tabel'"),
        ('table = "itch"', "table = 3", "feed[0].adapter[0]"),
        ("peers.port = 17501", "", "nasdaq-a"),
        ('name = "nasdaq-b"', 'name = "nasdaq-a"', "two nodes are called 'nasdaq-a'"),
        ('name = "nasdaq"', "", "missing key 'name'"),
        ("[[feed.adapter]]", "[[feed.adaptor]]", "a feed needs adapters"),
        ("[[player]]", "[[players]]", "unknown key 'players'"),
        ("port = 7401", "prot = 7401", "administration spare"),
    ],
)
def test_an_error_is_reported_with_its_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in PLANT
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, PLANT.replace(old, new))
    assert said in str(caught.value)
    assert "plant.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ('[[plant]]\nname = "p"\nadmin.credentials = "p.toml"', "p distributes nothing"),
        ('[[plant]]\nname = "p"\nchannels = ["239.255.74.1:7401"]', "p would serve every process"),
        ('[[filter]]\nname = "f"', "f would serve every process"),
        ('[[agent]]\nname = "g"\nparent = "127.0.0.1:7420"', "g would serve every process"),
        ('[[router]]\nname = "r"', "r would serve every process"),
        ('[[mux]]\nname = "m"\naccess = "open"', "m would serve every process"),
        ('[[edge]]\nname = "e"\naccess = "open"', "e would serve every process"),
        ('[[edge]]\nname = "e"\naccess = "open"\nadmin.credentials = "p.toml"', "without a token"),
        ('[[plant]]\nname = "p"\nsubscribe = ["md.>.x"]\nadmin.credentials = "p.toml"', "plant p: subscribe"),
        ('[[mux]]\nname = "m"\nupstream.topics = ["md..x"]', "upstream: topics"),
        ('[[mux]]\nname = "m"\ncontrol.host = "0.0.0.0"', "tls and secret_file"),
        ('[[edge]]\nname = "e"\nwebsocket.host = "0.0.0.0"', "which needs tls"),
    ],
)
def test_a_node_that_cannot_serve_is_refused_when_the_document_is_read(tmp_path: Path, node: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, f"{PLANT}\n{node}\n")
    assert said in str(caught.value)


def test_the_page_address_of_a_node_is_removed_when_it_ends(tmp_path: Path) -> None:
    plant = load(tmp_path, PLANT)
    plant.pages.note("nasdaq-a", "http://127.0.0.1:9")
    assert plant.page("nasdaq-a") == "http://127.0.0.1:9"
    plant.pages.forget("nasdaq-a")
    plant.pages.forget("nasdaq-a")
    assert plant.page("nasdaq-a") == ""


def test_an_empty_plant_and_an_unknown_node_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has no nodes"):
        load(tmp_path, 'name = "empty"')
    with pytest.raises(ConfigurationError, match="nasdaq-b"):
        load(tmp_path, PLANT).node("nasdaq-c")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('table = "itch"', 'table = "itchh"', "itch"),
        ('policy = "policy.toml"', 'policy = "polcy.toml"', "polcy.toml"),
        ('credentials = "feed.toml"', 'credentials = "fed.toml"', "fed.toml"),
        ("port = {b}", "port = {a}", "adapter-a and adapter-b have the same address"),
    ],
)
def test_files_that_the_document_names_are_read_too(tmp_path: Path, old: str, new: str, said: str) -> None:
    layout = write_layout(tmp_path, DemoOptions(subscribers=1))
    check_files(Plant.load(layout.plant))
    text = layout.plant.read_text()
    a, b = re.findall(r"peers.port = (\d+)", text)
    old, new = old.format(b=b), new.format(a=a)
    assert old in text
    layout.plant.write_text(text.replace(old, new))
    with pytest.raises(PenstockError) as caught:
        check_files(Plant.load(layout.plant))
    assert said in str(caught.value)


def test_the_documented_plant_is_valid(tmp_path: Path, project: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", (project / "docs" / "how-to" / "plant.md").read_text(), flags=re.DOTALL)
    nodes = load(tmp_path, text).nodes
    assert list(nodes) == ["admin", "nasdaq-a", "nasdaq-b", "host-1", "exchange"]
    module = nodes["host-1"]
    assert isinstance(module, FilterModuleConfig)
    assert (module.admin.url, module.state_directory) == ("penstock://127.0.0.1:7400", "state/host-1")


def test_an_error_in_an_agent_is_reported_with_its_place_in_the_document(tmp_path: Path) -> None:
    path = tmp_path / "plant.toml"
    path.write_text(AGENTS)
    with pytest.raises(ConfigurationError) as caught:
        Plant.load(path)
    assert str(caught.value) == f'{path}: agent[1]: agent leaf: the agent needs a parent (parent = "host:port")'
