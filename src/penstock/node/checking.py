"""Checks of a plant document and the files that it names, without starting anything."""

from pathlib import Path

from penstock.admin.config import AdminConfig
from penstock.assured.node_config import RouterNodeConfig, WitnessConfig
from penstock.base.errors import ConfigurationError
from penstock.engine import ClassMap
from penstock.feed.adapter_config import AdapterConfig
from penstock.filter.module_config import FilterModuleConfig
from penstock.model import MessageModel
from penstock.node.console_config import ConsoleConfig
from penstock.node.document import NodeConfig
from penstock.node.plant import Plant
from penstock.node.trees import check_trees
from penstock.plant.config import NodeConfig as DistributionNodeConfig
from penstock.plant.edge_config import EdgeConfig
from penstock.security import Credentials, Policy
from penstock.topics import GroupMap
from penstock.tree.config import AgentConfig


def check_files(plant: Plant) -> None:
    """Check the files of the document: converter tables, policies, credentials. Refuse two nodes at the same address
    or path."""
    beside = plant.path.parent
    places: dict[str, str] = {}
    for config in plant.nodes.values():
        _check_node(config, beside, places)
    _check_voters(plant)
    agents = [config for config in plant.nodes.values() if isinstance(config, AgentConfig)]
    check_trees(agents, str(plant.path))
    for server in plant.servers:
        policy = Policy.parse(_text(beside / server.policy), where=server.policy)
        for agent in agents:
            _check_role(agent, beside, policy, server.policy)


def _check_node(config: NodeConfig, beside: Path, places: dict[str, str]) -> None:
    match config:
        case AdminConfig():
            Policy.parse(_text(beside / config.policy), where=config.policy)
            _take_place(places, f"tcp {config.host}:{config.port}", config.node)
        case AdapterConfig():
            config.load(beside)
            if config.admin.credentials:
                Credentials.load(beside / config.admin.credentials)
            _take_place(places, f"tcp {config.peers.host}:{config.peers.port}", config.name)
            _take_place(places, f"channel {config.publish.channel}", config.name)
        case FilterModuleConfig():
            if config.map:
                GroupMap.load(beside / config.map)
            _check_server(config, beside, places)
        case DistributionNodeConfig():
            if config.classes:
                ClassMap.load(beside / config.classes)
            _check_server(config, beside, places)
        case AgentConfig():
            _check_server(config, beside, places)
        case RouterNodeConfig():
            _check_server(config, beside, places)
            if config.pair is not None and config.name == config.pair.routers[1]:
                _take_place(
                    places, f"tcp {config.pair.link.host}:{config.pair.link.port}", f"the link to {config.name}"
                )
            if config.pair is not None and config.pair.voting is not None:
                listen = config.pair.voting.listen
                _take_place(places, f"tcp {listen.host}:{listen.port}", config.name)
        case WitnessConfig():
            _take_place(places, f"tcp {config.control.host}:{config.control.port}", config.name)
        case ConsoleConfig():
            if config.login_credentials:
                Credentials.load(beside / config.login_credentials)
            _take_place(places, f"tcp {config.host}:{config.port}", config.name)


def _check_voters(plant: Plant) -> None:
    """Refuse a pair and witness with different voting configurations."""
    for router in plant.nodes.values():
        if isinstance(router, RouterNodeConfig) and router.pair is not None and router.pair.voting is not None:
            lease = router.pair.voting.lease(router.pair.routers)
            witness = plant.nodes.get(lease.witness)
            if isinstance(witness, WitnessConfig) and witness.lease != lease:
                raise ConfigurationError(
                    f"{router.name} and {witness.name} have different voting configurations",
                    where=str(plant.path),
                    hint="set the same routers, in the same order, lease_ms and drift_ppm",
                )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", where=str(path)) from None


def _check_server(
    config: FilterModuleConfig | DistributionNodeConfig | AgentConfig | RouterNodeConfig,
    beside: Path,
    places: dict[str, str],
) -> None:
    for model in config.models:
        MessageModel.load(beside / model)
    if config.admin.credentials:
        Credentials.load(beside / config.admin.credentials)
    _take_place(places, f"tcp {config.control.host}:{config.control.port}", config.name)
    if isinstance(config, EdgeConfig):
        _take_place(places, f"tcp {config.websocket.host}:{config.websocket.port}", config.name)


def _check_role(agent: AgentConfig, beside: Path, policy: Policy, where: str) -> None:
    """Refuse an agent whose client may not check tokens, because it would refuse every login."""
    if not agent.admin.credentials:
        return
    client = policy.clients.get(Credentials.load(beside / agent.admin.credentials).client)
    if client is not None and "filter" not in client.roles:
        raise ConfigurationError(
            f"the client {client.name} lacks the role filter, with which the agent {agent.name} checks tokens",
            where=f"{where}: clients.{client.name}",
            hint='add "filter" to its roles',
        )


def _take_place(places: dict[str, str], place: str, name: str) -> None:
    if place.endswith(":0"):
        return  # 0: any free port
    if (other := places.setdefault(place, name)) != name:
        raise ConfigurationError(
            f"{other} and {name} have the same address: {place}", hint="give one of the two nodes another address"
        )
