"""Links between nodes on one machine are protected, too, where clients need tokens."""

import stat
from pathlib import Path
from typing import Any

import pytest

from penstock.assured.node_config import (
    LeaseAccess,
    LivePairConfig,
    PairAccess,
    RouterNodeConfig,
    VotingConfig,
    WitnessConfig,
)
from penstock.base.errors import ConfigurationError
from penstock.demo.layout import write_layout
from penstock.demo.reports import DemoOptions
from penstock.feed.adapter_config import AdapterConfig, LineAddress, PeerConfig, PeersConfig, SourceStreamConfig
from penstock.feed.adapter_config import AdminConfig as FeedAdminConfig
from penstock.feed.config import ServiceConfig
from penstock.net.secret import read_secret
from penstock.node.plant import Plant
from penstock.security.core.access import AdminAccess

ADMIN = AdminAccess(url="penstock://127.0.0.1:7400", credentials="router.toml")


def router(pair: dict[str, Any], **values: Any) -> RouterNodeConfig:
    made = LivePairConfig(routers=("a", "b"), **pair)
    return RouterNodeConfig(name="a", state_directory="state", pair=made, **values)


@pytest.mark.spec("AUTH-5")
def test_with_an_administration_server_the_link_of_a_pair_needs_a_secret() -> None:
    assert router({}).pair is not None  # without an administration server, every client has all rights
    with pytest.raises(ConfigurationError, match=r"pair\.link has no secret_file"):
        router({}, admin=ADMIN)
    assert router({"link": PairAccess(secret_file="s")}, admin=ADMIN).pair is not None


@pytest.mark.spec("AUTH-5")
def test_with_an_administration_server_the_links_of_a_lease_need_a_secret() -> None:
    def voting(listen: LeaseAccess) -> dict[str, Any]:
        voters = {"b": "127.0.0.1:7471", "w": "127.0.0.1:7472"}
        made = VotingConfig(witness="w", voters=voters, listen=listen)
        return {"link": PairAccess(secret_file="s"), "voting": made}

    with pytest.raises(ConfigurationError, match=r"pair\.voting\.listen has no secret_file"):
        router(voting(LeaseAccess()), admin=ADMIN)
    assert router(voting(LeaseAccess(secret_file="s")), admin=ADMIN).pair is not None


def document(directory: Path) -> Path:
    return write_layout(directory, DemoOptions(tree=False, router=True)).plant


@pytest.mark.spec("AUTH-5")
def test_a_plant_has_one_secret_for_its_routers_and_their_witness(tmp_path: Path) -> None:
    plant = Plant.load(document(tmp_path))
    routers = [each for each in plant.nodes.values() if isinstance(each, RouterNodeConfig)]
    (witness,) = [each for each in plant.nodes.values() if isinstance(each, WitnessConfig)]
    files = {witness.control.secret_file}
    for each in routers:
        assert each.pair is not None
        assert each.pair.voting is not None
        files |= {each.pair.link.secret_file, each.pair.voting.listen.secret_file}
    (file,) = files
    plant.make_secrets()
    made = (tmp_path / file).read_bytes()
    assert stat.S_IMODE((tmp_path / file).stat().st_mode) == 0o600
    read_secret(tmp_path / file)
    plant.make_secrets()  # also when another process creates it
    assert (tmp_path / file).read_bytes() == made
    assert list((tmp_path / file).parent.glob("*.new")) == []


def adapter(**values: Any) -> AdapterConfig:
    stream = SourceStreamConfig(id=1, name="s", lines=(LineAddress(port=26_400),))
    return AdapterConfig(name="a", feed="f", table="itch", streams=(stream,), state_directory="state", **values)


@pytest.mark.spec("AUTH-5")
@pytest.mark.parametrize("peers", [{"port": 17_501}, {"others": (PeerConfig(index=1, port=17_502),)}])
def test_with_an_administration_server_adapters_of_a_feed_need_a_secret(peers: dict[str, Any]) -> None:
    admin = FeedAdminConfig(url="penstock://127.0.0.1:7400", credentials="feed.toml")
    with pytest.raises(ConfigurationError, match="peers has no secret_file"):
        adapter(admin=admin, peers=PeersConfig(**peers))
    assert adapter(admin=admin, peers=PeersConfig(**peers, secret_file="s")).peers.is_linked
    assert not adapter(admin=admin).peers.is_linked  # the only adapter of its feed does not listen
    assert adapter(service=ServiceConfig(open=True), peers=PeersConfig(**peers)).peers.is_linked


@pytest.mark.spec("AUTH-5")
def test_a_plant_has_one_secret_for_the_adapters_of_a_feed(tmp_path: Path) -> None:
    path = document(tmp_path)
    plant = Plant.load(path)
    adapters = [each for each in plant.nodes.values() if isinstance(each, AdapterConfig)]
    assert len(adapters) == 2
    (file,) = {each.peers.secret_file for each in adapters}
    plant.make_secrets()
    assert stat.S_IMODE((tmp_path / file).stat().st_mode) == 0o600
    read_secret(tmp_path / file)
    text = path.read_text()
    path.write_text(text.replace("peers.port = ", 'peers.secret_file = "mine"\npeers.port = '))
    named = [each for each in Plant.load(path).nodes.values() if isinstance(each, AdapterConfig)]
    assert {each.peers.secret_file for each in named} == {"mine"}
    path.write_text(text.replace("peers.port = ", 'peers.host = "10.0.0.1"\npeers.port = '))
    with pytest.raises(ConfigurationError, match="peers has no secret_file"):
        Plant.load(path)  # a secret that is created here exists only on this machine


def test_a_secret_that_the_document_names_is_used(tmp_path: Path) -> None:
    path = document(tmp_path)
    text = path.read_text()
    assert text.count("link.port = ") == 2
    path.write_text(text.replace("link.port = ", 'link.secret_file = "mine"\nlink.port = '))
    routers = [each for each in Plant.load(path).nodes.values() if isinstance(each, RouterNodeConfig)]
    assert {each.pair.link.secret_file for each in routers if each.pair} == {"mine"}


def test_a_plant_without_an_administration_server_has_no_such_secret(tmp_path: Path) -> None:
    path = tmp_path / "plant.toml"
    router = """
[[router]]
name = "{}"
[router.pair]
routers = ["a", "b"]
"""
    path.write_text('name = "bare"\n' + router.format("a") + router.format("b"))
    plant = Plant.load(path)
    plant.make_secrets()
    assert not list(tmp_path.rglob("*.secret"))
