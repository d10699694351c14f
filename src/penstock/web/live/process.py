"""Run the console process, supervised by `penstock up` or in the foreground."""

import asyncio

from penstock.base.files import make_directory
from penstock.net.live.event_loop import run_agent
from penstock.node.console_config import ConsoleConfig
from penstock.node.plant import Plant
from penstock.node.process import Supervised
from penstock.node.roles import Ready, Tell, heeding, run_supervised
from penstock.runtime.running import run_live
from penstock.web.live.server import ConsoleServer


def main() -> None:
    """Entry point of the supervised process."""
    run_supervised(_run)


def _run(plant: Plant, name: str, tell: Tell, supervised: Supervised) -> int:
    config = plant.node(name)
    assert isinstance(config, ConsoleConfig)
    return run_console(plant, config, tell, supervised)


def run_console(plant: Plant, config: ConsoleConfig, tell: Tell, supervised: Supervised | None = None) -> int:
    """Run the console until Ctrl-C, SIGTERM or the supervisor's order; return the exit status. The current directory
    is that of the document, where relative paths start."""
    make_directory(config.state_directory)

    async def serve(stop: asyncio.Event) -> None:
        await run_live(
            lambda: ConsoleServer(plant, config),
            heeding(stop, supervised),
            started=lambda console: tell(Ready(console.url, console.url)),
        )

    return run_agent(serve, name=config.name)
