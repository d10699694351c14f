"""Structured logs: an event name and key-value pairs, as text for people or as JSON lines for machines.

    log = logger("middleware.receiver")
    log.warning("id_collision", publisher_id=7, source="10.0.0.3:4000")

Values whose key suggests a secret are never written, at any depth. In text, a value of more than one word is quoted and
its control characters are escaped, so that no value can forge a line or a field.
"""

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec

SECRET_WORDS = (
    "secret", "password", "passwd", "pwd", "token", "credential", "auth", "cookie", "session", "private", "api_key",
    "apikey", "key_material",
)  # fmt: skip
"""Parts of key names that suggest a secret."""
SECRET_NAMES = {"key", "keys", "proof"}
"""Whole key names that suggest a secret; for example, `key_id` does not."""
HIDDEN = "(hidden)"
DEPTH_MAX = 6

logging.getLogger("penstock").addHandler(logging.NullHandler())  # an application that does not configure logs sees none


class Logger:
    """Logs the events of a component; created by logger()."""

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
            self._logger.log(level, event, extra={"fields": _shown(fields)})


def logger(name: str) -> Logger:
    return Logger(name)


def configure(*, style: Literal["text", "json"] = "text", level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send Penstock's logs to `stream` (default: standard error); replaces the settings of an earlier call."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if style == "json" else _TextFormatter())
    root = logging.getLogger("penstock")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False


def _shown(value: Any, depth: int = 0) -> Any:
    """Return a loggable form of a value: secrets hidden, at most DEPTH_MAX levels."""
    if depth > DEPTH_MAX:
        return "..."
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, dict):
        return {_text(key): HIDDEN if _is_secret(key) else _shown(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_shown(each, depth + 1) for each in value]
    return _text(value) if isinstance(value, str) else value


def _text(value: Any) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()  # a lone surrogate cannot be encoded


def _is_secret(key: Any) -> bool:
    name = str(key).lower().replace("-", "_")
    return name in SECRET_NAMES or any(word in name for word in SECRET_WORDS)


def _quoted(value: Any) -> str:
    text = str(value)
    is_word = text.isprintable() and text and not set(text) & set(" ='\"\\")
    return text if is_word else repr(text)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "component": record.name.removeprefix("penstock."),
            "event": record.getMessage(),
            **_fields(record),
        }
        return msgspec.json.encode(line, enc_hook=str).decode()


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{_quoted(key)}={_quoted(value)}" for key, value in _fields(record).items())
        component = record.name.removeprefix("penstock.")
        time = self.formatTime(record, "%H:%M:%S")
        return f"{time} {record.levelname:7} {component} {_quoted(record.getMessage())} {fields}".rstrip()
