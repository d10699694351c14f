"""Compute fields with offsets from a model's document.

Little-endian. Parts follow each other in declared order, each starting and ending on 8 bytes; within a part, fields
follow each other in declared order, each with its natural alignment (text: 1). Nothing is reordered, so that a field
added at the end of a part by a later version does not move existing fields.
"""

import keyword
import re
from collections.abc import Iterable, Iterator

import msgspec

from penstock.base.errors import ModelError
from penstock.base.limits import FIELD_COUNT_MAX, RECORD_SIZE_MAX
from penstock.model.document import Conflation, FieldDocument, FieldType, ModelDocument
from penstock.model.message import RESERVED_NAMES

WHOLE_RECORD = "record"
"""The name of the only part of a model that declares no parts."""

NAME = re.compile(r"[a-z][a-z0-9_]*")
VALUE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

# In numpy's notation: kind, then bytes.
STORAGE = {
    **{f"{kind}{8 * size}": f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)},
    "f32": "f4",
    "f64": "f8",
    "price": "i8",
    "quantity": "i8",
    "timestamp": "i8",
    "enum": "u1",
}

KEYS_BY_TYPE = {"price": "decimals", "quantity": "decimals", "text": "size", "enum": "values", "flags": "bits"}
"""The key that a type requires; other types refuse it."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a record, at a fixed offset."""

    name: str
    type: FieldType
    storage: str
    """The representation of the bytes in numpy's notation: i1 … u8, f4, f8, or S and the size of a text."""
    offset: int
    size: int
    part: str
    since: int = 1
    optional: bool = False
    conflate: Conflation = "last"
    decimals: int = 0
    values: dict[str, int] = {}
    bits: dict[str, int] = {}
    description: str = ""

    @property
    def end(self) -> int:
        return self.offset + self.size

    @property
    def missing(self) -> int | None:
        """The integer that represents a missing value; None for a required field, a float or a text."""
        if not self.optional or self.storage[0] in "fS":
            return None
        if self.type == "enum":
            return 0
        return -(1 << (8 * self.size - 1)) if self.storage[0] == "i" else (1 << (8 * self.size)) - 1

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and greatest valid integer, without the missing value; (0, 0) for float and text."""
        if self.storage[0] in "fS":
            return 0, 0
        bits = 8 * self.size
        low, high = (0, (1 << bits) - 1) if self.storage[0] == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        return low + (self.missing == low), high - (self.missing == high)

    @property
    def is_decimal(self) -> bool:
        """True if the integers represent decimal numbers: a price, or a quantity with decimals."""
        return self.type == "price" or (self.type == "quantity" and self.decimals > 0)

    @property
    def type_text(self) -> str:
        """The type with its parameters: price(4), text(16)."""
        argument = {"price": self.decimals, "quantity": self.decimals, "text": self.size}.get(self.type)
        return self.type if argument is None else f"{self.type}({argument})"


class Part(msgspec.Struct, frozen=True):
    """A stretch of the record that can be written and checked independently."""

    name: str
    offset: int
    size: int


def lay_out(document: ModelDocument, where: str) -> tuple[tuple[Field, ...], tuple[Part, ...]]:
    """Return the fields in the order of their offsets, and the parts."""
    _check_name(document.name, where)
    declared = list(_expand(document, where))
    if len(declared) > FIELD_COUNT_MAX:
        raise ModelError(f"the model has {len(declared)} fields, above the limit of {FIELD_COUNT_MAX}", where=where)
    _refuse_repeated([field.name for field in declared], "field", where)
    part_names = [part.name for part in document.parts] or [WHOLE_RECORD]
    _refuse_repeated(part_names, "part", where)
    sizes_reserved = {part.name: part.size for part in document.parts}

    fields: list[Field] = []
    parts: list[Part] = []
    offset = 0
    for name in part_names:
        _check_name(name, where)
        placed = list(_place([field for field in declared if field.part == name], offset, where))
        if not placed:
            raise ModelError(f"part {name!r} has no field", where=where)
        size = _aligned(placed[-1].end, 8) - offset
        reserved = sizes_reserved.get(name)
        if reserved is not None and reserved < size:
            raise ModelError(f"part {name!r} needs {size} bytes, but its size is {reserved}", where=where)
        parts.append(Part(name, offset, reserved or size))
        fields += placed
        offset += reserved or size
        if offset > RECORD_SIZE_MAX:
            raise ModelError(f"the record exceeds the limit of {RECORD_SIZE_MAX} bytes", where=where)
    return tuple(fields), tuple(parts)


def _expand(document: ModelDocument, where: str) -> Iterator[FieldDocument]:
    """Yield the validated fields, with repeated ones written out."""
    part_names = [part.name for part in document.parts]
    for index, field in enumerate(document.field):
        here = f"{where}: field[{index}] {field.name!r}"
        if ("{n}" in field.name) != (field.repeat is not None):
            raise ModelError("a repeated field has both {n} in its name and a repeat", where=here)
        _check_part(field.part, part_names, here)
        _check_type(field, here)
        if field.since > document.version:
            raise ModelError(f"since {field.since} is later than the model's version {document.version}", where=here)
        part = field.part or WHOLE_RECORD
        for n in range(1, (field.repeat or 1) + 1):
            name = field.name.replace("{n}", str(n))
            _check_name(name, here)
            if name in RESERVED_NAMES:
                raise ModelError(f"{name!r} is reserved", where=here, hint="every message has this attribute")
            yield msgspec.structs.replace(field, name=name, part=part, repeat=None)


def _place(declared: Iterable[FieldDocument], offset: int, where: str) -> Iterator[Field]:
    since = 1
    for field in declared:
        if field.since < since:
            raise ModelError(
                f"field {field.name!r} is older than the field before it",
                where=where,
                hint="a later version adds its fields at the end of a part",
            )
        since = field.since
        storage, size = _storage(field)
        offset = _aligned(offset, 1 if field.type == "text" else size)
        yield Field(
            name=field.name,
            type=field.type,
            storage=storage,
            offset=offset,
            size=size,
            part=field.part,
            since=field.since,
            optional=field.optional,
            conflate=field.conflate,
            decimals=field.decimals or 0,
            values=field.values or {},
            bits=field.bits or {},
            description=field.description,
        )
        offset += size


def _storage(field: FieldDocument) -> tuple[str, int]:
    if field.type == "text":
        assert field.size is not None
        return f"S{field.size}", field.size
    if field.type == "flags":
        assert field.bits
        bit_max = max(field.bits.values())
        size = 1 if bit_max < 8 else 2 if bit_max < 16 else 4
        return f"u{size}", size
    storage = STORAGE[field.type]
    return storage, int(storage[1:])


def _check_type(field: FieldDocument, here: str) -> None:
    needed = KEYS_BY_TYPE.get(field.type)
    for key in KEYS_BY_TYPE.values():
        given = getattr(field, key) is not None
        if given and key != needed:
            raise ModelError(f"type {field.type!r} takes no {key!r}", where=here)
        if not given and key == needed:
            raise ModelError(f"type {field.type!r} needs {key!r}", where=here)
    if field.values is not None:
        _check_mapping(field.values, "values", here)
        if field.optional and 0 in field.values.values():
            raise ModelError("0 means missing in an optional enum", where=here, hint="number its values from 1")
    if field.bits is not None:
        _check_mapping(field.bits, "bits", here)
        if field.optional:
            raise ModelError("flags cannot be optional", where=here, hint="0 means that no flag is set")
    if field.conflate in ("max", "min", "sum") and field.type in ("text", "enum", "flags"):
        raise ModelError(
            f"{field.type} cannot be conflated by {field.conflate}", where=here, hint="use last, first or never"
        )


def _check_mapping(names: dict[str, int], key: str, here: str) -> None:
    if not names:
        raise ModelError(f"{key!r} is empty", where=here)
    for name in names:
        if not VALUE_NAME.fullmatch(name):
            raise ModelError(f"{name!r} in {key!r} is not a name", where=here, hint="use letters, digits and _")
    _refuse_repeated([str(number) for number in names.values()], f"number in {key!r}", here)


def _check_part(part: str, part_names: list[str], here: str) -> None:
    if part_names and not part:
        raise ModelError(f"the field needs a part, one of: {', '.join(part_names)}", where=here)
    if part_names and part not in part_names:
        raise ModelError(f"part {part!r} is not one of: {', '.join(part_names)}", where=here)
    if part and not part_names:
        raise ModelError(f"part {part!r} is not declared", where=here, hint="declare it in the model's parts")


def _check_name(name: str, here: str) -> None:
    # Lower case only, because Spark's names are case-insensitive.
    if keyword.iskeyword(name):
        raise ModelError(
            f"{name!r} is a Python keyword", where=here, hint="choose another name, because fields are attributes"
        )
    if not NAME.fullmatch(name):
        raise ModelError(
            f"{name!r} is not a name", where=here, hint="use lower-case letters, digits and _, for example bid_price"
        )


def _refuse_repeated(names: list[str], what: str, where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ModelError(f"duplicate {what} {name!r}", where=where)
        seen.add(name)


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
