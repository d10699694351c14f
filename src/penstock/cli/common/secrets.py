"""The secret of links to nodes on other hosts, from a file or typed."""

from getpass import getpass
from pathlib import Path
from typing import Annotated

import typer

from penstock.net.secret import Secret, read_secret

TYPED = Path("-")

SecretOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A file with the secret of links to nodes on other hosts; -: ask for it."),
]


def given_secret(path: Path | None) -> Secret | None:
    """Read the secret that the option names; None without one."""
    if path is None:
        return None
    return Secret(getpass("Secret: ").strip().encode()) if path == TYPED else read_secret(path)
