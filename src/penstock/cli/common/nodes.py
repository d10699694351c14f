"""Shared by the commands that run one node of a plant in the foreground."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec
import typer

from penstock.base.config import load_toml, parse_toml, read_document
from penstock.base.errors import ConfigurationError, PenstockError
from penstock.net.live.event_loop import run_agent
from penstock.node.pages import Pages
from penstock.node.plant import Plant
from penstock.runtime.running import SWITCH_SECONDS, L, Runnable, run_live

C = TypeVar("C")


class Controlled(Runnable, Protocol):
    """A driver that accepts control sessions."""

    @property
    def control_port(self) -> int: ...


def described_node(path: Path, name: str | None, kind: type[C], what: str) -> tuple[C, Pages | None]:
    """Load the configuration from a node's own document, or from a plant's document by the name of a node of this
    kind. In the second case, the document's directory becomes the current one, and the node's page is recorded in
    the plant's directory."""
    if name is None:
        _refuse_plant(path, what)
        return load_toml(path, kind), None
    plant = Plant.load(path)
    found = plant.node(name)
    if not isinstance(found, kind):
        raise ConfigurationError(
            f"{name} is not a node of the kind {what}", where=str(path), hint="run it with `penstock node`"
        )
    os.chdir(path.parent)
    return found, plant.pages


def _refuse_plant(path: Path, what: str) -> None:
    tables = parse_toml(read_document(path), dict[str, Any], where=str(path)).get(what)
    if isinstance(tables, list):
        names = ", ".join(str(each.get("name", "?")) for each in tables if isinstance(each, dict))
        raise ConfigurationError("this is a plant's document", where=str(path), hint=f"add --name with one of: {names}")


def announce(name: str, facts: dict[str, object], pages: Pages | None = None) -> None:
    """Print one line of JSON when the node runs, and record the address of its page in the plant's directory."""
    if pages is not None:
        pages.note(name, str(facts["url"]))
    sys.stdout.write(msgspec.json.encode(facts).decode() + "\n")
    sys.stdout.flush()


def run_node(
    name: str,
    make: Callable[[], L],
    facts_of: Callable[[L], dict[str, object]],
    pages: Pages | None,
    *,
    on_hangup: Callable[[L], object] | None = None,
) -> NoReturn:
    """Run a node until Ctrl-C or SIGTERM. `facts_of` returns the announcement of a running node; `on_hangup` is
    called on SIGHUP."""
    sys.setswitchinterval(SWITCH_SECONDS)

    def started(live: L) -> None:
        announce(name, {**facts_of(live), "url": live.node.url}, pages)

    run_in_foreground(lambda stop: run_live(make, stop, started=started, on_hangup=on_hangup), name=name)


def control_facts(kind: str, name: str) -> Callable[[Controlled], dict[str, object]]:
    """The announcement of a node with a control port."""
    return lambda live: {kind: name, "control_port": live.control_port}


def run_in_foreground(main: Callable[[asyncio.Event], Awaitable[object]], *, name: str) -> NoReturn:
    """Call run_agent(), which logs errors, and then report the error as other commands do."""
    failures: list[PenstockError] = []

    async def watched(stop: asyncio.Event) -> None:
        try:
            await main(stop)
        except PenstockError as error:
            failures.append(error)
            raise

    status = run_agent(watched, name=name)
    if failures:
        raise failures[0]
    raise typer.Exit(status)
