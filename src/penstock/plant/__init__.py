"""The nodes around the distribution engine: ticker plant, connection multiplexer, edge cache.

Each node has one engine, its own upstream and its own kinds of consumers. Run nodes with `penstock plant|mux|edge` or
`penstock up`. Read config.py first, then live/driver.py.
"""

from penstock.plant.config import MuxConfig, NodeConfig, PlantConfig
from penstock.plant.core.status import NodeStatus
from penstock.plant.core.views import Views
from penstock.plant.edge_config import EdgeConfig

__all__ = ["EdgeConfig", "MuxConfig", "NodeConfig", "NodeStatus", "PlantConfig", "Views"]
