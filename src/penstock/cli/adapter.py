"""`penstock adapter`: run one feed adapter."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.nodes import SWITCH_SECONDS, announce, described_node, run_in_foreground
from penstock.feed.live.adapter import LiveAdapter
from penstock.feed.live.config import AdapterConfig


def adapter(
    config: Annotated[Path, typer.Option(help="The adapter's own configuration, or a plant's: a TOML document.")],
    name: Annotated[str | None, typer.Option(help="Which adapter, when the document is a plant's.")] = None,
) -> None:
    """Take source streams in, convert them, publish application messages, and keep in step with the feed's other
    adapters.

    When it runs, one line of JSON on standard output says where it listens. Ctrl-C or SIGTERM ends it in order.
    """
    chosen, pages = described_node(config, name, AdapterConfig, "adapter")
    sys.setswitchinterval(SWITCH_SECONDS)

    async def main(stop: asyncio.Event) -> None:
        live = LiveAdapter(chosen)
        await live.node.start()
        status = live.status()
        facts = {
            "adapter": status.name,
            "publisher_id": status.publisher_id,
            "service_port": status.service_port,
            "peers_port": status.peers_port,
            "url": live.node.url,
        }
        announce(chosen.name, facts, pages)
        await live.node.run(stop)

    run_in_foreground(main, name=chosen.name)
