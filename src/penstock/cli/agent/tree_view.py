"""Draws a distribution tree from the pages of its agents."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import typer

from penstock.base.errors import ConfigurationError, UnreachableError
from penstock.base.readable import harmless_json, printable
from penstock.node.plant import Plant
from penstock.top.core.places import Place, place_given, places_of_plant
from penstock.top.live.fetching import fetch
from penstock.tree.core.status import AgentStatus


def print_tree(plant: Path | None, nodes: list[str], *, is_json: bool) -> None:
    if (plant is None) == (not nodes):
        raise ConfigurationError("give either a plant or the pages of agents")
    places = places_of_plant(Plant.load(plant)) if plant is not None else [place_given(each) for each in nodes]
    agents, silent = asyncio.run(_statuses([each for each in places if each.role in ("", "agent")]))
    if is_json:
        for each in agents:
            typer.echo(harmless_json(msgspec.json.encode(each).decode()))
        return
    for line in drawn(agents):
        typer.echo(printable(line))
    for name, why in silent:
        typer.echo(printable(f"{name}: {why}"))
    if nodes and not agents:
        raise UnreachableError(
            "no agent answers at these addresses",
            hint="use addresses of pages, which `penstock up` and the logs print, not control ports",
        )


async def _statuses(places: list[Place]) -> tuple[list[AgentStatus], list[tuple[str, str]]]:
    found, silent = [], []
    for reading in await asyncio.gather(*(fetch(place) for place in places)):
        if isinstance(reading.status, AgentStatus):
            found.append(reading.status)
        else:
            silent.append((reading.place.name, reading.why or "is not an agent"))
    return found, silent


def drawn(agents: list[AgentStatus]) -> Iterator[str]:
    """A line for each party, children indented below their parents."""
    known = {each.name: each for each in agents}
    for each in agents:
        if each.parent not in known:
            yield from _drawn(each, known, 0, frozenset())


def _drawn(agent: AgentStatus, known: dict[str, AgentStatus], depth: int, above: frozenset[str]) -> Iterator[str]:
    rooted = "" if agent.is_rooted else ", no way to the root"
    last = ", ".join(f"{each.name} {each.last:,}" for each in agent.streams)
    yield f"{'  ' * depth}{agent.name}: {agent.state}, term {agent.term}{rooted}; {last or 'no streams'}"
    for link in agent.links:
        child = known.get(link.name)
        if child is not None and child.parent == agent.name and child.name not in above | {agent.name}:
            yield from _drawn(child, known, depth + 1, above | {agent.name})
        elif link.role != "parent":
            lag = ", lagging" if link.is_lagging else ""
            yield f"{'  ' * (depth + 1)}{link.name}: {link.role}{lag}, {link.packets_out:,} messages"
