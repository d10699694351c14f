"""The models that come with Penstock: one TOML document each, in the directory library/ beside this file."""

import difflib
from functools import cache
from pathlib import Path

from penstock.base.errors import ModelError
from penstock.model.model import MessageModel

DIRECTORY = Path(__file__).parent / "library"


def shipped_names() -> list[str]:
    return sorted(path.stem for path in DIRECTORY.glob("*.toml"))


@cache
def shipped(name: str) -> MessageModel:
    """The shipped model of that name."""
    if name not in shipped_names():
        near = difflib.get_close_matches(name, shipped_names(), n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise ModelError(f"no model {name!r} is shipped", hint=f"{meant}there are: {', '.join(shipped_names())}")
    return MessageModel.load(DIRECTORY / f"{name}.toml")
