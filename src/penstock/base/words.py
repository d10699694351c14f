"""Numbers in sentences."""


def counted(count: int, noun: str) -> str:
    """Format a count with its noun: 1 message, 2,000 messages."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
