"""How commands name the channel they work on."""

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
    typer.Option("--map", metavar="FILE", help="The map that says on which group each topic flows."),
]
FromStartOption = Annotated[
    bool, typer.Option("--from-start", help="Ask publishers for what they sent before, as far as they keep it.")
]
