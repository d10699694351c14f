"""Names of sessions. A source that counts anew under the name it had begins `day#2`, then `day#3`, and so on."""


def session_name(name: str, number: int) -> str:
    """What the session is called that is the how manieth of this name."""
    return f"{name}#{number}" if number > 1 else name


def after_reset(name: str) -> str:
    """What the one after this is called."""
    said, number = _parts(name)
    return session_name(said, number + 1)


def is_later_of_same(name: str, other: str) -> bool:
    """Whether the source calls both the same, but has counted anew between; who came later did not see how often."""
    said, number = _parts(name)
    other_said, other_number = _parts(other)
    return said == other_said and number > other_number


def _parts(name: str) -> tuple[str, int]:
    said, mark, number = name.rpartition("#")
    is_counted = mark and number.isascii() and number.isdigit() and len(number) < 10
    return (said, int(number)) if is_counted else (name, 1)
