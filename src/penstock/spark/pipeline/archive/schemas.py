"""The columns of tables, in Spark's DDL, and how they may change: columns are added, and never removed or retyped.

    evolved("trade", known, new)               # the columns of both; ArchiveSchemaError if one has two types

Rows of an older version of a model are null in the columns that they do not have.
"""

import re
from collections.abc import Iterator

from penstock.base.errors import ArchiveSchemaError

PARTITION_COLUMNS = ("date", "stream")

_COMMENT = re.compile(r"\s+COMMENT\s+'.*", re.IGNORECASE | re.DOTALL)


def evolved(table: str, known: str, new: str) -> str:
    """`known` with the columns that only `new` has, before the columns of the partition that end it."""
    columns, added = columns_of(known), columns_of(new)
    for name, column in added.items():
        if name in columns and type_of(columns[name]) != type_of(column):
            raise ArchiveSchemaError(
                f"column {name!r} of table {table!r} is {type_of(columns[name])} in the archive "
                f"and {type_of(column)} in the new rows",
                hint="a field keeps its type and decimals in all versions of a model; add a field of another name, "
                "or write into a new archive",
            )
    missing = [column for name, column in added.items() if name not in columns]
    if not missing:
        return known
    names = list(columns)
    end = len(names)
    while end and names[end - 1] in PARTITION_COLUMNS:
        end -= 1
    texts = list(columns.values())
    return ", ".join([*texts[:end], *missing, *texts[end:]])


def columns_of(ddl: str) -> dict[str, str]:
    """By name, the text of each column."""
    return {text.split(None, 1)[0].strip("`").casefold(): text for text in _split(ddl)}


def type_of(column: str) -> str:
    kind = _COMMENT.sub("", column.split(None, 1)[1]).upper()
    return kind.replace("NOT NULL", "").replace(" ", "")


def _split(ddl: str) -> Iterator[str]:
    """The columns: what stands between commas that are not in brackets or quotes."""
    depth, start, is_quoted, is_escaped = 0, 0, False, False
    for index, letter in enumerate(ddl):
        if is_escaped:  # a quote within a comment
            is_escaped = False
        elif letter == "\\":
            is_escaped = True
        elif letter == "'":
            is_quoted = not is_quoted
        elif is_quoted:
            continue
        elif letter in "(<":
            depth += 1
        elif letter in ")>":
            depth -= 1
        elif letter == "," and depth == 0:
            yield ddl[start:index].strip()
            start = index + 1
    if ddl[start:].strip():
        yield ddl[start:].strip()
