"""The nodes around the distribution engine: ticker plant, connection multiplexer, edge cache.

Each is one engine with its own upstream and its own kinds of consumers. `penstock plant|mux|edge` run them, or
`penstock up`. Read config.py first, then live/driver.py.
"""

from penstock.plant.config import MuxConfig, NodeConfig, PlantConfig
from penstock.plant.core.status import NodeStatus
from penstock.plant.core.views import Views
from penstock.plant.edge_config import EdgeConfig

__all__ = ["EdgeConfig", "MuxConfig", "NodeConfig", "NodeStatus", "PlantConfig", "Views"]
