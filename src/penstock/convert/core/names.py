"""Names in documents, and what was meant when one is wrong."""

import difflib
import re
from collections.abc import Iterable

NAME = re.compile(r"[a-z][a-z0-9_]*")


def guess(name: str, known: Iterable[str]) -> str:
    """A hint: the nearest name there is, and all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return f"{meant}there are: {', '.join(names)}" if names else "there are none"
