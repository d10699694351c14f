"""Options that select a channel."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.net.udp import Channel

_STANDARD = Channel()
CHANNEL = str(_STANDARD)
INTERFACE = _STANDARD.interface

ChannelArgument = Annotated[str, typer.Argument(metavar="[CHANNEL]", help="Multicast group and port.")]
InterfaceOption = Annotated[str, typer.Option(help="The address of the interface to use.")]
MapOption = Annotated[
    Path | None,
    typer.Option("--map", metavar="FILE", help="The map of topics to multicast groups."),
]
FromStartOption = Annotated[
    bool, typer.Option("--from-start", help="Request earlier packets that publishers still have.")
]
