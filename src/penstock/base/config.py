"""Configuration: TOML documents into typed, frozen values, or an error that names the key and what was expected.

A package declares its configuration as subclasses of Config; msgspec checks types and bounds (msgspec.Meta), and
this module turns what is wrong into one clear sentence.
"""

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from penstock.base.errors import ConfigurationError, UnknownKeyError
from penstock.base.limits import DOCUMENT_SIZE_MAX


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of every configuration value."""


T = TypeVar("T")


def load_toml(path: Path, kind: type[T]) -> T:
    """Read a TOML file as a value of `kind`."""
    try:
        size = path.stat().st_size
        if size > DOCUMENT_SIZE_MAX:
            raise ConfigurationError(
                f"the document has {size} bytes, at most {DOCUMENT_SIZE_MAX} are read", where=str(path)
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"is not UTF-8 text (byte {error.start})", where=str(path)) from None
    return parse_toml(text, kind, where=str(path))


def parse_toml(text: str, kind: type[T], *, where: str) -> T:
    """Read TOML text as a value of `kind`; `where` names the text in errors."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"is not valid TOML: {error or 'nested too deeply'}", where=where) from None
    return convert(data, kind, where=where)


def convert(data: Any, kind: type[T], *, where: str) -> T:
    """Plain data (from TOML or JSON) as a value of `kind`."""
    _refuse_unknown_keys(data, msgspec.inspect.type_info(kind), where, path="")
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        what, path = _split_path(str(error))
        raise ConfigurationError(what, where=f"{where}: {path}" if path else where) from None


def _refuse_unknown_keys(data: Any, info: msgspec.inspect.Type, where: str, path: str) -> None:
    if isinstance(info, msgspec.inspect.StructType) and isinstance(data, dict):
        fields = {field.encode_name: field.type for field in info.fields}
        for key, value in data.items():
            here = f"{path}.{key}" if path else key
            if key not in fields:
                near = difflib.get_close_matches(key, fields, n=1)
                guess = f"did you mean {near[0]!r}? " if near else ""
                raise UnknownKeyError(
                    f"unknown key {here!r}", where=where, hint=f"{guess}expected one of: {', '.join(fields)}"
                )
            _refuse_unknown_keys(value, fields[key], where, here)
    elif isinstance(info, msgspec.inspect.CollectionType) and isinstance(data, list):
        for index, value in enumerate(data):
            _refuse_unknown_keys(value, info.item_type, where, f"{path}[{index}]")
    elif isinstance(info, msgspec.inspect.DictType) and isinstance(data, dict):
        for key, value in data.items():
            _refuse_unknown_keys(value, info.value_type, where, f"{path}.{key}" if path else str(key))
    elif isinstance(info, msgspec.inspect.UnionType):
        structs = [kind for kind in info.types if isinstance(kind, msgspec.inspect.StructType)]
        if len(structs) == 1:
            _refuse_unknown_keys(data, structs[0], where, path)


def _split_path(message: str) -> tuple[str, str]:
    """msgspec writes "Expected `int`, got `str` - at `$.a.b[0]`": the sentence, and the path as a.b[0]."""
    match = re.fullmatch(r"(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?", message, flags=re.DOTALL)
    if match is None:
        return message, ""
    sentence = match[1].replace("Object missing required field", "missing key").replace("`", "'")
    return sentence[:1].lower() + sentence[1:], match[2] or ""
