"""The models that come with Penstock: one TOML document each, in the directory library/ beside this file."""

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
        raise ModelError(f"no model {name!r} is shipped", hint=f"there are: {', '.join(shipped_names())}")
    return MessageModel.load(DIRECTORY / f"{name}.toml")
