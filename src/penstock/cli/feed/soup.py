"""`penstock feed play --soup`: a SoupBinTCP server until Ctrl-C."""

import asyncio

import typer

from penstock.cli.common.interrupt import Interrupt, interruptible
from penstock.feed.core.play.config import PlayerConfig
from penstock.feed.live.play.soup_player import SoupPlayer


def play_soup(config: PlayerConfig) -> None:
    with interruptible() as interrupt:
        player = asyncio.run(_play(config, interrupt))
    counters = player.counters
    typer.echo(
        f"{player.next_sequence - 1:,} messages made available, {counters['connections_opened']:,} logins, "
        f"{counters['connections_refused']:,} refused"
    )


async def _play(config: PlayerConfig, interrupt: Interrupt) -> SoupPlayer:
    player = SoupPlayer(config)
    async with player:
        typer.echo(f"logins are accepted at {config.host}:{player.port}", err=True)
        await player.run(lambda: interrupt.is_wanted)
    return player
