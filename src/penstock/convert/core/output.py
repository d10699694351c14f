"""An output while it is compiled: its model, its topic, and the record with everything that is always the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from penstock.base.errors import PenstockError, TableError
from penstock.base.limits import TOPIC_SIZE_MAX
from penstock.convert.core.document import OutputDocument
from penstock.convert.core.functions import Site, exactly_scaled, resolve
from penstock.convert.core.targets import Target, field_target
from penstock.model import Field, MessageModel, shipped
from penstock.topics import check_topic

SYMBOL_SIZE_IN_TOPIC_MAX = 48
"""Bytes of a symbol in a topic, every character of it escaped."""


@dataclass
class OutputPlan:
    """One way an output is emitted; two that differ in a constant are two."""

    name: str
    model: MessageModel
    topic: str
    topic_kind: int
    is_about_instrument: bool
    blank: bytearray

    @staticmethod
    def begin(
        name: str, document: OutputDocument, topic_kind: Callable[[str], int], directory: Path, where: str
    ) -> OutputPlan:
        here = f"{where}: output.{name}"
        for placeholder in re.findall(r"\{([^}]*)\}", document.topic):
            if placeholder != "symbol":
                raise TableError(
                    f"{{{placeholder}}} means nothing in a topic",
                    where=f"{here}.topic",
                    hint="{prefix}, {symbol} or {venue}; a table that uses {prefix} or {venue} declares it",
                )
        model = _model(document.model, directory, here)
        example = document.topic.replace("{symbol}", "A" * SYMBOL_SIZE_IN_TOPIC_MAX)
        try:
            check_topic(example)
        except PenstockError as error:
            hint = f"at most {TOPIC_SIZE_MAX} bytes, with a symbol of {SYMBOL_SIZE_IN_TOPIC_MAX}"
            raise TableError(str(error), where=f"{here}.topic", hint=hint) from None
        is_about = "{symbol}" in document.topic
        return OutputPlan(
            name, model, document.topic, topic_kind(document.topic), is_about, bytearray(bytes(model.new()))
        )

    def put_text(self, into: Field, text: str, where: str) -> None:
        self._set(into, text, where)

    def put_constant(self, into: Field, arguments: tuple[str, ...], where: str) -> None:
        """Into the blank record: what is always the same is stored once."""
        if into.type == "text":
            self._set(into, ", ".join(arguments), where)
        elif into.storage[0] == "f":
            self._set(into, float(_decimal(arguments, where)), where)
        elif into.is_decimal:
            self._set(into, _decimal(arguments, where), where)
        else:
            target = field_target(into)
            number = resolve(target.names, list(arguments), where)
            if not target.low <= number <= target.high:
                raise TableError(f"{number} is not within {target.low} to {target.high}", where=where)
            self.blank[into.offset : into.end] = (number % (1 << 8 * into.size)).to_bytes(into.size, "little")

    def _set(self, into: Field, value: object, where: str) -> None:
        try:
            setattr(self.model.view(self.blank), into.name, value)
        except PenstockError as error:
            raise TableError(error.what, where=where, hint=error.hint) from None

    @staticmethod
    def constant_number(arguments: tuple[str, ...], site: Site, target: Target | None) -> int:
        """A constant that goes through functions or into a verb."""
        if target is not None and target.decimals is not None:
            _decimal(arguments, site.where)
            return exactly_scaled(site, arguments[0], target.decimals)
        return resolve(site.names, list(arguments), site.where)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputPlan) and (self.name, self.topic, bytes(self.blank)) == (
            other.name,
            other.topic,
            bytes(other.blank),
        )


def _decimal(arguments: tuple[str, ...], where: str) -> Decimal:
    try:
        (text,) = arguments
        number = Decimal(text)
        if not number.is_finite():
            raise ValueError(text)
    except (ValueError, InvalidOperation):
        raise TableError(f"constant({', '.join(arguments)}) is not one number", where=where) from None
    return number


def _model(name: str, directory: Path, where: str) -> MessageModel:
    try:
        return MessageModel.load(directory / name) if name.endswith(".toml") else shipped(name)
    except PenstockError as error:
        raise TableError(error.what, where=f"{where}.model", hint=error.hint) from None
