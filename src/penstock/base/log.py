"""Structured logs: an event name and key-value pairs, as text for people or as JSON lines for machines.

    log = logger("middleware.receiver")
    log.warning("id_collision", publisher_id=7, source="10.0.0.3:4000")

Values whose key speaks of a secret are never written.
"""

import logging
import sys
from typing import Any, Literal, TextIO

import msgspec

SECRET_WORDS = ("secret", "password", "token", "credential", "private", "key_material")
HIDDEN = "(hidden)"


class Logger:
    """What a component logs with; made by logger()."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"penstock.{name}")

    def debug(self, event: str, **fields: Any) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._write(logging.ERROR, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event, extra={"fields": {key: _shown(key, fields[key]) for key in fields}})


def logger(name: str) -> Logger:
    return Logger(name)


def configure(*, style: Literal["text", "json"] = "text", level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send Penstock's logs to `stream` (standard error unless told otherwise); replaces an earlier call's choice."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if style == "json" else _TextFormatter())
    root = logging.getLogger("penstock")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False


def _shown(key: str, value: Any) -> Any:
    return HIDDEN if any(word in key.lower() for word in SECRET_WORDS) else value


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname.lower(),
            "component": record.name.removeprefix("penstock."),
            "event": record.getMessage(),
            **_fields(record),
        }
        return msgspec.json.encode(line, enc_hook=str).decode()


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={value}" for key, value in _fields(record).items())
        component = record.name.removeprefix("penstock.")
        time = self.formatTime(record, "%H:%M:%S")
        return f"{time} {record.levelname:7} {component} {record.getMessage()} {fields}".rstrip()
