"""The distribution tree of a plant as the console shows it: addresses of agents, and their messages."""

import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.net.guard import Guard
from penstock.net.secret import read_secret
from penstock.node.console_config import ConsoleConfig
from penstock.node.plant import Plant
from penstock.runtime.happening import Happening
from penstock.top.core.reading import Reading
from penstock.tree.config import AgentConfig
from penstock.tree.core.status import AgentStatus
from penstock.web.core.sentences import sentence_of
from penstock.web.gateway.core.replies import Info
from penstock.web.gateway.live.publishing import TreePlaces

SAID = "said"
QUIET = frozenset({"through", "load"})
"""Frequent messages that are not shown as events."""


def place_of(config: AgentConfig) -> str:
    """The address of an agent."""
    return config.control.advertised or f"{config.control.host}:{config.control.port}"


def guard_of(config: ConsoleConfig) -> Guard:
    secret = read_secret(Path(config.secret_file)) if config.secret_file else None
    tls = ssl.create_default_context(cafile=config.ca_file) if config.ca_file else None
    return Guard(secret, tls)


def places_in(plant: Plant, config: ConsoleConfig, guard: Guard) -> TreePlaces | None:
    """Return the addresses for links of browsers: the configured agents, or the leaves of the document; None without
    a tree."""
    agents = [each for each in plant.nodes.values() if isinstance(each, AgentConfig)]
    if not agents:
        return None
    parents = {each.parent for each in agents}
    below = [each for each in agents if each.role == "agent"]
    leaves = [place_of(each) for each in below if place_of(each) not in parents]
    roots = [place_of(each) for role in ("root", "standby") for each in agents if each.role == role]
    return TreePlaces(agents[0].tree, config.agents or tuple(leaves or map(place_of, agents)), tuple(roots), guard)


class Happenings:
    """Finds the new happenings of agents between two polls."""

    def __init__(self) -> None:
        self._last_ns: dict[str, int] = {}

    def take(self, readings: Sequence[Reading]) -> list[Info]:
        found = [info for reading in readings for info in self._of(reading)]
        return sorted(found, key=lambda info: info.time_ms)

    def _of(self, reading: Reading) -> Iterator[Info]:
        if not isinstance(reading.status, AgentStatus):
            return
        name = reading.status.name
        last_ns = self._last_ns.get(name, 0)
        for each in reading.status.happenings:
            if each.direction == SAID and each.time_ns > last_ns and each.what not in QUIET:
                yield _info(name, each)
        newest = [each.time_ns for each in reading.status.happenings]
        self._last_ns[name] = max([last_ns, *newest])


def _info(agent: str, happening: Happening) -> Info:
    return Info(
        agent=agent,
        info=happening.what,
        topic=f"infostream.{happening.what}",
        time_ms=happening.time_ns / 1_000_000,
        detail=sentence_of(happening.what, happening.values, happening.party),
        fields=dict(happening.values),
    )
