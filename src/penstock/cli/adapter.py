"""`penstock adapter`: run one feed adapter."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.base.config import load_toml
from penstock.base.errors import ConfigurationError
from penstock.feed.adapter_config import AdapterConfig
from penstock.feed.driver import LiveAdapter
from penstock.net.agent import run_agent
from penstock.node.plant import Plant

SWITCH_SECONDS = 0.0005
"""How long the data thread and the loop's let each other wait for the interpreter."""


def adapter(
    config: Annotated[Path, typer.Option(help="The adapter's own configuration, or a plant's: a TOML document.")],
    name: Annotated[str | None, typer.Option(help="Which adapter, when the document is a plant's.")] = None,
) -> None:
    """Take source streams in, convert them, publish application messages, and keep in step with the feed's other
    adapters.

    When it runs, one line of JSON on standard output says where it listens. Ctrl-C or SIGTERM ends it in order.
    """
    chosen = load_toml(config, AdapterConfig) if name is None else _of_plant(config, name)

    sys.setswitchinterval(SWITCH_SECONDS)

    async def main(stop: asyncio.Event) -> None:
        live = LiveAdapter(chosen)
        await live.start()
        status = live.status()
        facts = {
            "adapter": status.name,
            "publisher_id": status.publisher_id,
            "service_port": status.service_port,
            "peers_port": status.peers_port,
            "url": live.endpoint_url,
        }
        sys.stdout.write(msgspec.json.encode(facts).decode() + "\n")
        sys.stdout.flush()
        await live.run(stop)

    raise typer.Exit(run_agent(main, name=chosen.name))


def _of_plant(path: Path, name: str) -> AdapterConfig:
    found = Plant.load(path).node(name)
    if not isinstance(found, AdapterConfig):
        raise ConfigurationError(f"{name} is no adapter", where=str(path), hint="run it with `penstock node`")
    os.chdir(path.parent)  # a plant's paths begin there
    return found
