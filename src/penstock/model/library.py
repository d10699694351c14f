"""The shipped models: one TOML document each, in the directory library/ beside this file."""

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
"""Suffix of the names of models whose quantities have eight decimals."""

OWN = ("agent_", "engine_", "filter_", "router_", "tree_")
"""Prefixes of the names of models that Penstock's own nodes publish."""


def is_own(model: MessageModel) -> bool:
    """True for Penstock's own models, which applications do not publish."""
    return model.name.startswith(OWN) and model.name in shipped_names()


def shipped_names() -> list[str]:
    return sorted(path.stem for path in DIRECTORY.glob("*.toml"))


@cache
def shipped(name: str) -> MessageModel:
    """Return the shipped model with this name."""
    if name not in shipped_names():
        near = difflib.get_close_matches(name, shipped_names(), n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise ModelError(f"unknown model {name!r}", hint=f"{meant}shipped models: {', '.join(shipped_names())}")
    path = DIRECTORY / f"{name}.toml"
    text = read_document(path)
    if text.startswith("like = ") or "\nlike = " in text:
        return _variant(name, parse_toml(text, VariantDocument, where=path.name))
    return MessageModel.parse(text, where=str(path))


def with_fractions(name: str) -> str:
    """Return the name of the equivalent shipped model with decimals in its quantities; without one, the same name."""
    return f"{name}{FRACTIONS}" if f"{name}{FRACTIONS}" in shipped_names() else name


def _variant(name: str, document: VariantDocument) -> MessageModel:
    """Return the base model's document with this name, id and decimals, as a complete document."""
    text = read_document(DIRECTORY / f"{document.like}.toml")
    for old, new in (
        (r"^id = \d+$", f"id = {document.id}"),
        (rf'^name = "{document.like}"$', f'name = "{name}"'),
        (r'^type = "quantity"\ndecimals = 0$', f'type = "quantity"\ndecimals = {document.quantity_decimals}'),
    ):
        text, count = re.subn(old, new, text, flags=re.MULTILINE)
        assert count, (name, old)
    return MessageModel.parse(text, where=f"{name}.toml")
