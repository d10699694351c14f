"""Names of sessions. After a restart of numbers under the same name, a session is called `day#2`, then `day#3`, and
so on."""

from penstock.wire.term import session_parts


def session_name(name: str, number: int) -> str:
    """The name of the n-th session with this name."""
    return f"{name}#{number}" if number > 1 else name


def after_reset(name: str) -> str:
    """The name of the session after this one."""
    said, number = session_parts(name)
    return session_name(said, number + 1)


def is_later_of_same(name: str, other: str) -> bool:
    """True if the source has the same name for both, with a restart of numbers in between; an adapter that started
    later does not know how many there were."""
    said, number = session_parts(name)
    other_said, other_number = session_parts(other)
    return said == other_said and number > other_number
