"""What commands share that run one node of a plant in the foreground."""

import os
import sys
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from penstock.base.config import parse_toml, read_document
from penstock.base.errors import ConfigurationError
from penstock.node.plant import Plant

SWITCH_SECONDS = 0.0005
"""How long a node's data thread and the loop's let each other wait for the interpreter."""

C = TypeVar("C")


def node_of_plant(path: Path, name: str, kind: type[C], what: str) -> C:
    """The configuration of the plant's node of that name, which must be of this kind. Its paths begin at the document's
    directory, so that becomes the current one."""
    found = Plant.load(path).node(name)
    if not isinstance(found, kind):
        raise ConfigurationError(f"{name} is no {what}", where=str(path), hint="run it with `penstock node`")
    os.chdir(path.parent)
    return found


def refuse_plant(path: Path, what: str) -> None:
    """One node's own document is wanted: a plant's says which of its nodes."""
    tables = parse_toml(read_document(path), dict[str, Any], where=str(path)).get(what)
    if isinstance(tables, list):
        names = ", ".join(str(each.get("name", "?")) for each in tables if isinstance(each, dict))
        raise ConfigurationError("this is a plant's document", where=str(path), hint=f"say --name, one of: {names}")


def announce(facts: dict[str, object]) -> None:
    """One line of JSON on standard output, when the node runs."""
    sys.stdout.write(msgspec.json.encode(facts).decode() + "\n")
    sys.stdout.flush()
