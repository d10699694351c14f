"""Suggestions for unknown names in documents."""

import difflib
import re
from collections.abc import Iterable

NAME = re.compile(r"[a-z][a-z0-9_]*")


def guess(name: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest known name and all known names."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return f"{meant}known names: {', '.join(names)}" if names else "none are defined"
