"""The nodes around the distribution engine: ticker plant, connection multiplexer, edge cache.

Each is one engine with its own upstream and its own kinds of consumers. `penstock plant|mux|edge` run them, or
`penstock up`. Read config.py first, then driver.py.
"""

from penstock.engine.link import NodeLink
from penstock.plant.desk import Desk
from penstock.plant.views import Views

__all__ = ["Desk", "NodeLink", "Views"]
