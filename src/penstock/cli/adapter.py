"""`penstock adapter`: run one feed adapter."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.common.nodes import described_node, run_node
from penstock.feed.adapter_config import AdapterConfig
from penstock.feed.live.driver import LiveAdapter


def adapter(
    config: Annotated[Path, typer.Option(help="The configuration of the adapter or of a plant (TOML).")],
    name: Annotated[str | None, typer.Option(help="The adapter's name, if the document is a plant's.")] = None,
) -> None:
    """Run a feed adapter: receive source streams, convert them, publish messages, and stay synchronised with the feed's
    other adapters.

    When the adapter runs, one line of JSON on standard output has its addresses. Ctrl-C or SIGTERM shuts it down.
    """
    chosen, pages = described_node(config, name, AdapterConfig, "adapter")
    run_node(chosen.name, lambda: LiveAdapter(chosen), _facts_of, pages)


def _facts_of(live: LiveAdapter) -> dict[str, object]:
    status = live.status()
    return {
        "adapter": status.name,
        "publisher_id": status.publisher_id,
        "service_port": status.service_port,
        "peers_port": status.peers_port,
    }
