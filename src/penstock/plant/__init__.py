"""The nodes around the distribution engine: ticker plant, connection multiplexer, edge cache.

Each is one engine with its own upstream and its own kinds of consumers. `penstock plant|mux|edge` run them, or
`penstock up`. Read config.py first, then driver.py.
"""

from penstock.plant.config import MuxConfig, NodeConfig, PlantConfig
from penstock.plant.edge_config import EdgeConfig
from penstock.plant.status import NodeStatus
from penstock.plant.views import Views

__all__ = ["EdgeConfig", "MuxConfig", "NodeConfig", "NodeStatus", "PlantConfig", "Views"]
