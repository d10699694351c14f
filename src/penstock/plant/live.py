"""A live node of the kind that its configuration is of."""

from penstock.plant.config import AnyNodeConfig, PlantConfig
from penstock.plant.driver import LiveNode
from penstock.plant.edge import LiveEdge
from penstock.plant.edge_config import EdgeConfig
from penstock.plant.multiplexer import LiveMux
from penstock.plant.ticker_plant import LivePlant


def live_node(config: AnyNodeConfig) -> LiveNode:
    if isinstance(config, PlantConfig):
        return LivePlant(config)
    return LiveEdge(config) if isinstance(config, EdgeConfig) else LiveMux(config)
