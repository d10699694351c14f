"""Message: a record with its fields as attributes."""

from typing import TYPE_CHECKING, Any, ClassVar

from penstock.model._message import Record
from penstock.model.jsontext import encode

if TYPE_CHECKING:
    from penstock.model.instruments import InstrumentDecimals
    from penstock.model.model import MessageModel

SHOWN_FIELDS_MAX = 12


class Message(Record):
    """One message of a model: a view of the record's bytes, which are not copied.

    Created by MessageModel.new() and MessageModel.view(). Every field of the model is an attribute; a value that is
    missing, or that the record's version lacks, is None. Assignments write into the buffer, if it is writable.
    bytes(message) and any other consumer of buffers gets the record.
    """

    __slots__ = ()

    model: ClassVar["MessageModel"]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def to_dict(self) -> dict[str, Any]:
        """Return the values by field name."""
        return {field.name: getattr(self, field.name) for field in self.model.fields}

    def to_json(self, shown: "InstrumentDecimals | None" = None) -> str:
        """Return a JSON object: prices as exact decimal numbers, enums by name, flags as a list of names. Numbers have
        the decimals of the model or, with `shown`, of the instrument (KnownInstruments.of()); their values are equal.
        """
        return encode(self, shown)

    def copy(self) -> "Message":
        """Return a writable copy with the same bytes, topic, seq and source."""
        copied = self.model.view(bytearray(self), self.version)
        copied.topic, copied.seq, copied.source = self.topic, self.seq, self.source
        return copied

    def __repr__(self) -> str:
        values = [f"{name}={value!r}" for name, value in self.to_dict().items() if value is not None]
        if len(values) > SHOWN_FIELDS_MAX:
            values[SHOWN_FIELDS_MAX:] = [f"… {len(values) - SHOWN_FIELDS_MAX} more"]
        head = [f"{self.topic} #{self.seq}"] if self.topic else []
        return f"<{self.model.name} {' '.join(head + values)}>"


class MessageClass(type):
    """The type of MessageModel.message_class."""

    model: "MessageModel"

    def __call__(cls, **values: Any) -> Message:
        """Create a writable message, like MessageModel.new()."""
        return cls.model.new(**values)


if TYPE_CHECKING:

    class TypedMessage(Message):
        """The base of the classes of models for type checkers: Message without attributes of any name."""

        __getattr__: None  # type: ignore[assignment, misc]


RESERVED_NAMES = frozenset(name for name in dir(Message) if not name.startswith("_")) | {"model"}
"""Attribute names of every message, which fields cannot have."""
