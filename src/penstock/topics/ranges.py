"""Numeric ranges as few blocks of 2**shift numbers that begin at a multiple of 2**shift.

A number lies in exactly one block of each shift. So, however many ranges a table has, matching a number takes one
look-up per shift in use: at most 64.
"""

NUMBER_MAX = 2**64 - 1
SHIFT_MAX = 63


def blocks(low: int, high: int) -> list[tuple[int, int]]:
    """The inclusive range as (shift, value >> shift), in order; at most 126 of them."""
    found = []
    while low <= high:
        # The largest block that begins at `low` and does not go beyond `high`.
        alignment = (low & -low).bit_length() - 1 if low else SHIFT_MAX
        shift = min(alignment, (high - low + 1).bit_length() - 1, SHIFT_MAX)
        found.append((shift, low >> shift))
        low += 1 << shift
    return found
