"""Options of data sources and sinks: text is parsed to checked values; an unknown option raises an error that lists the
valid ones.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError, UnknownKeyError

K = TypeVar("K", bound=Config)

NS_PER_US = 1_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_options(options: Mapping[str, str], kind: type[K], where: str) -> K:
    """Parse Spark's options, whose names are case-insensitive, to a value of `kind`. A sequence field takes a
    comma-separated list.
    """
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, object] = {}
    for key, value in options.items():
        name = key.lower()
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            meant = f"did you mean {near[0]!r}? " if near else ""
            raise UnknownKeyError(
                f"unknown option {key!r}", where=where, hint=f"{meant}valid options: {', '.join(sorted(fields))}"
            )
        is_list = fields[name].type == tuple[str, ...]
        values[name] = split_list(value) if is_list else value.strip()
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        what, _, path = str(error).replace("`", "'").partition(" - at '$.")
        name = path.rstrip("'")
        hint = f"the value is {values[name]!r}" if name in values else ""
        raise ConfigurationError(what, where=f"{where}: option {name}" if name else where, hint=hint) from None


def split_list(text: str) -> list[str]:
    """Split text at commas, unchanged and without empty parts; commas within braces and brackets do not split."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "{[(") - (character in "}])")
        if character == "," and depth <= 0:
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def parse_place(text: str, where: str) -> tuple[int | None, int | None]:
    """Parse a position in a journal to (sequence number, None) or (None, nanoseconds): 1000, or a time in ISO 8601."""
    if text.isdecimal():
        return int(text), None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is not a journal position",
            where=where,
            hint="use a sequence number, or a time such as 2026-07-01T14:30:00Z",
        ) from None
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH
    return None, ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * NS_PER_US
