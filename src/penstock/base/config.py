"""Configuration: parse TOML documents into typed, frozen values, or raise an error with the key and the expected value.

A package declares its configuration as subclasses of Config. msgspec checks types and bounds (msgspec.Meta); this
module turns its errors into one clear sentence. Values created in Python are checked like those read from a file.
"""

import difflib
import functools
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from penstock.base.errors import ConfigurationError, UnknownKeyError
from penstock.base.limits import DOCUMENT_SIZE_MAX

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z"
NAME_IN_WORDS = "a name of letters, digits, dots, dashes and underscores, starting with a letter or digit"


class _ConfigMeta(msgspec.StructMeta):
    """Makes fields keyword-only: msgspec does not inherit kw_only, so subclasses would accept positional fields."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> "_ConfigMeta":
        return super().__new__(cls, name, bases, namespace, **{"frozen": True, "kw_only": True, **options})


class Config(msgspec.Struct, metaclass=_ConfigMeta, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of all configuration values: frozen, keyword-only, each field checked on creation."""

    def __post_init__(self) -> None:
        for name, kind in _fields_of(type(self)):
            value = getattr(self, name)
            try:
                msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                where = type(self).__name__
                _refuse_unknown(value, msgspec.inspect.type_info(kind), where, name)
                what, path = explained(str(error))
                inner = path if not path or path.startswith("[") else f".{path}"
                raise ConfigurationError(what, where=f"{where}: {name}{inner}") from None


@functools.cache
def _fields_of(kind: type[Config]) -> list[tuple[str, Any]]:
    return [(field.name, field.type) for field in msgspec.structs.fields(kind)]


T = TypeVar("T")


def load_toml(path: Path, kind: type[T], *, size_max: int = DOCUMENT_SIZE_MAX) -> T:
    """Read a TOML file as a value of `kind`."""
    return parse_toml(read_document(path, size_max=size_max), kind, where=str(path))


def read_document(path: Path, *, size_max: int = DOCUMENT_SIZE_MAX) -> str:
    """Read a text file of at most `size_max` bytes."""
    try:
        size = path.stat().st_size
        if size > size_max:
            raise ConfigurationError(f"the document has {size} bytes, above the limit of {size_max}", where=str(path))
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"is not UTF-8 text (byte {error.start})", where=str(path)) from None


def parse_toml(text: str, kind: type[T], *, where: str) -> T:
    """Read TOML text as a value of `kind`; `where` names the text in errors."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"is not valid TOML: {error or 'nested too deeply'}", where=where) from None
    return convert(data, kind, where=where)


def convert(data: Any, kind: type[T], *, where: str) -> T:
    """Convert plain data (from TOML or JSON) to a value of `kind`."""
    _refuse_unknown(data, msgspec.inspect.type_info(kind), where, path="")
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        what, path = explained(str(error))
        raise ConfigurationError(what, where=f"{where}: {path}" if path else where) from None


def _refuse_unknown(data: Any, info: msgspec.inspect.Type, where: str, path: str) -> None:
    """Refuse unknown keys and choices, listing the valid ones, which msgspec's error does not list."""
    match info:
        case msgspec.inspect.Metadata():
            _refuse_unknown(data, info.type, where, path)
        case msgspec.inspect.StructType() if isinstance(data, dict):
            fields = {field.encode_name: field.type for field in info.fields}
            for key, value in data.items():
                here = _join(path, key)
                if key not in fields:
                    hint = f"{_guess(key, fields)}expected one of: {', '.join(fields)}"
                    raise UnknownKeyError(f"unknown key {here!r}", where=where, hint=hint)
                _refuse_unknown(value, fields[key], where, here)
        case msgspec.inspect.CollectionType() if isinstance(data, list | tuple):
            for index, value in enumerate(data):
                _refuse_unknown(value, info.item_type, where, f"{path}[{index}]")
        case msgspec.inspect.DictType() if isinstance(data, dict):
            for key, value in data.items():
                _refuse_unknown(value, info.value_type, where, _join(path, key))
        case msgspec.inspect.LiteralType():
            _refuse_unknown_choice(data, info.values, where, path)
        case msgspec.inspect.EnumType() if not isinstance(data, info.cls):
            _refuse_unknown_choice(data, [each.value for each in info.cls], where, path)
        case msgspec.inspect.UnionType():
            others = [kind for kind in info.types if not isinstance(kind, msgspec.inspect.NoneType)]
            if len(others) == 1 and data is not None:
                _refuse_unknown(data, others[0], where, path)


def _refuse_unknown_choice(data: Any, choices: Iterable[Any], where: str, path: str) -> None:
    known = list(choices)
    if data in known or type(data) not in {type(choice) for choice in known}:
        return  # valid, or of another type, which msgspec reports
    names = [str(choice) for choice in known]
    what = f"{data!r} is not one of: {', '.join(names)}"
    raise ConfigurationError(what, where=f"{where}: {path}" if path else where, hint=_guess(str(data), names).rstrip())


def _guess(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def explained(message: str) -> tuple[str, str]:
    """Split an msgspec error "Expected `int`, got `str` - at `$.a.b[0]`" into the sentence and the path a.b[0]. The
    pattern for names is replaced by a description.
    """
    match = re.fullmatch(r"(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?", message, flags=re.DOTALL)
    if match is None:
        return message, ""
    sentence = match[1].replace("Object missing required field", "missing key").replace("`", "'")
    sentence = sentence.replace(f"'str' matching regex {NAME_PATTERN!r}", NAME_IN_WORDS)
    return sentence[:1].lower() + sentence[1:], match[2] or ""
