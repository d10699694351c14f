"""Escape control characters in untrusted text before it is shown on a terminal."""

import re

CONTROL = re.compile("[\x7f-\x9f]")
"""Control characters that JSON may contain unescaped."""


def printable(text: str) -> str:
    """Return the text unchanged if it is printable, else with escapes."""
    return text if text.isprintable() else repr(text)


def harmless_json(text: str) -> str:
    """Return the same JSON with all control characters escaped."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
