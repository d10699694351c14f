"""The models that come with Penstock: one TOML document each, in the directory library/ beside this file."""

import difflib
from functools import cache
from pathlib import Path

from penstock.base.errors import ModelError
from penstock.model.model import MessageModel

DIRECTORY = Path(__file__).parent / "library"


OWN = ("agent_", "engine_", "filter_", "router_", "tree_")
"""What the names of models begin with that Penstock's nodes speak of themselves in."""


def is_own(model: MessageModel) -> bool:
    """Whether it is one of Penstock's own, which applications do not publish."""
    return model.name.startswith(OWN) and model.name in shipped_names()


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
