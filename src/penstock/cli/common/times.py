"""Times on the command line."""

from datetime import UTC, datetime

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ConfigurationError


def parse_time(text: str, option: str) -> int:
    """Return nanoseconds since 1970."""
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is not a time", where=option, hint="write 2026-01-31T15:30:00, or nanoseconds since 1970"
        ) from None
    time = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * NS_PER_SECOND + since.microseconds * 1_000
