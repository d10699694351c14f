"""Creates the driver that matches a node's configuration."""

from penstock.plant.config import AnyNodeConfig, PlantConfig
from penstock.plant.edge_config import EdgeConfig
from penstock.plant.live.driver import LiveNode
from penstock.plant.live.edge import LiveEdge
from penstock.plant.live.multiplexer import LiveMux
from penstock.plant.live.ticker_plant import LivePlant


def live_node(config: AnyNodeConfig) -> LiveNode:
    if isinstance(config, PlantConfig):
        return LivePlant(config)
    return LiveEdge(config) if isinstance(config, EdgeConfig) else LiveMux(config)
