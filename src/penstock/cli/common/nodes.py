"""What commands share that run one node of a plant in the foreground."""

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
from penstock.net.live.agent import run_agent
from penstock.node.pages import Pages
from penstock.node.plant import Plant
from penstock.runtime.running import SWITCH_SECONDS, L, Runnable, run_live

C = TypeVar("C")


class Controlled(Runnable, Protocol):
    """A driver that accepts control sessions."""

    @property
    def control_port(self) -> int: ...


def described_node(path: Path, name: str | None, kind: type[C], what: str) -> tuple[C, Pages | None]:
    """The configuration in a node's own document; or in a plant's, of its node of that name, which must be of this
    kind: then its paths begin at the document's directory, so that becomes the current one, and others look for its
    page among the plant's."""
    if name is None:
        _refuse_plant(path, what)
        return load_toml(path, kind), None
    plant = Plant.load(path)
    found = plant.node(name)
    if not isinstance(found, kind):
        raise ConfigurationError(f"{name} is no {what}", where=str(path), hint="run it with `penstock node`")
    os.chdir(path.parent)
    return found, plant.pages


def _refuse_plant(path: Path, what: str) -> None:
    tables = parse_toml(read_document(path), dict[str, Any], where=str(path)).get(what)
    if isinstance(tables, list):
        names = ", ".join(str(each.get("name", "?")) for each in tables if isinstance(each, dict))
        raise ConfigurationError("this is a plant's document", where=str(path), hint=f"say --name, one of: {names}")


def announce(name: str, facts: dict[str, object], pages: Pages | None = None) -> None:
    """When the node runs: one line of JSON on standard output; and where its page is, for those who have the plant's
    document."""
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
    """Run a node until Ctrl-C or SIGTERM. `facts_of` gives what is announced when it runs; `on_hangup` is called on
    SIGHUP."""
    sys.setswitchinterval(SWITCH_SECONDS)

    def started(live: L) -> None:
        announce(name, {**facts_of(live), "url": live.node.url}, pages)

    run_in_foreground(lambda stop: run_live(make, stop, started=started, on_hangup=on_hangup), name=name)


def control_facts(kind: str, name: str) -> Callable[[Controlled], dict[str, object]]:
    """What a node announces that clients connect to."""
    return lambda live: {kind: name, "control_port": live.control_port}


def run_in_foreground(main: Callable[[asyncio.Event], Awaitable[object]], *, name: str) -> NoReturn:
    """As run_agent(), which logs it, and then say as other commands what the node fails for."""
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
