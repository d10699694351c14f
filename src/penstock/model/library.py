"""The models that come with Penstock: one TOML document each, in the directory library/ beside this file."""

import difflib
import re
from functools import cache
from pathlib import Path

from penstock.base.config import parse_toml, read_document
from penstock.base.errors import ModelError
from penstock.model.document import VariantDocument
from penstock.model.model import MessageModel

DIRECTORY = Path(__file__).parent / "library"


FRACTIONS = "_8"
"""What the names of models end in whose quantities have eight decimals."""

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
    path = DIRECTORY / f"{name}.toml"
    text = read_document(path)
    if text.startswith("like = ") or "\nlike = " in text:
        return _variant(name, parse_toml(text, VariantDocument, where=path.name))
    return MessageModel.parse(text, where=str(path))


def with_fractions(name: str) -> str:
    """The name of the shipped model that is like this one, but with decimals in its quantities; else the same name."""
    return f"{name}{FRACTIONS}" if f"{name}{FRACTIONS}" in shipped_names() else name


def _variant(name: str, document: VariantDocument) -> MessageModel:
    """The document of the other model with this one's name, id and decimals: it can be handed on like any other."""
    text = read_document(DIRECTORY / f"{document.like}.toml")
    for old, new in (
        (r"^id = \d+$", f"id = {document.id}"),
        (rf'^name = "{document.like}"$', f'name = "{name}"'),
        (r'^type = "quantity"\ndecimals = 0$', f'type = "quantity"\ndecimals = {document.quantity_decimals}'),
    ):
        text, count = re.subn(old, new, text, flags=re.MULTILINE)
        assert count, (name, old)
    return MessageModel.parse(text, where=f"{name}.toml")
