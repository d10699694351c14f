"""Texts of strangers made fit to be read, without anything that a terminal would obey."""

import re

CONTROL = re.compile("[\x7f-\x9f]")
"""Control characters that JSON may hold as they are."""


def printable(text: str) -> str:
    """The text, if it can do no harm to a terminal; else with its control characters escaped."""
    return text if text.isprintable() else repr(text)


def harmless_json(text: str) -> str:
    """The same JSON, in which no control character is left."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
