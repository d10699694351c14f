"""Names of sessions. A source that counts anew under the name it had begins `day#2`, then `day#3`, and so on."""

from penstock.wire.term import session_parts


def session_name(name: str, number: int) -> str:
    """What the session is called that is the how manieth of this name."""
    return f"{name}#{number}" if number > 1 else name


def after_reset(name: str) -> str:
    """What the one after this is called."""
    said, number = session_parts(name)
    return session_name(said, number + 1)


def is_later_of_same(name: str, other: str) -> bool:
    """Whether the source calls both the same, but has counted anew between; who came later did not see how often."""
    said, number = session_parts(name)
    other_said, other_number = session_parts(other)
    return said == other_said and number > other_number
