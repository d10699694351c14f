"""The distribution tree: agents that carry streams from a root to leaves, and heal the tree themselves.

A publisher publishes at the root, where each stream gets its numbers and is kept in a journal; agents below pass on
what their children want, and nothing else; subscribers sit at leaves. What agents tell their neighbours is a stream of
its own, the infostream. It is not the brokerless network (penstock.filter) and does not conflate records by class
(penstock.engine, penstock.plant). Read _frame.pxd first for what is on a link, then _fanout.pyi for what an agent
does with a packet.
"""

from penstock.tree.config import AgentConfig, BackoffConfig, ReactionConfig, StreamConfig, TreeConfig
from penstock.tree.core.agent import DistributionAgent
from penstock.tree.core.events import Party
from penstock.tree.core.infostream import Infostream

__all__ = [
    "AgentConfig",
    "BackoffConfig",
    "DistributionAgent",
    "Infostream",
    "Party",
    "ReactionConfig",
    "StreamConfig",
    "TreeConfig",
]
