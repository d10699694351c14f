"""Environment: the configuration, time, counters and accounts that all parts of an agent share."""

from penstock.base.counters import Counters
from penstock.tree.config import TreeConfig
from penstock.tree.core.accounts import Accounts


class Environment:
    """Only the agent sets `config` and `now_ns`; its parts read them, and count in `counters` and `accounts`."""

    def __init__(self, config: TreeConfig, counters: Counters) -> None:
        self.config = config
        self.now_ns = 0
        """The time of the current event."""
        self.counters = counters
        self.accounts = Accounts()
