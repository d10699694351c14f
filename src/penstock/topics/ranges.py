"""Split numeric ranges into few blocks of 2**shift numbers, aligned to 2**shift.

A number lies in exactly one block of each shift. Matching a number therefore takes one lookup per shift in use, at most
64, however many ranges a table has.
"""

NUMBER_MAX = 2**64 - 1
SHIFT_MAX = 63


def blocks(low: int, high: int) -> list[tuple[int, int]]:
    """Return the inclusive range as (shift, value >> shift), in order; at most 126 blocks."""
    found = []
    while low <= high:
        # The largest aligned block that begins at `low` and does not exceed `high`.
        alignment = (low & -low).bit_length() - 1 if low else SHIFT_MAX
        shift = min(alignment, (high - low + 1).bit_length() - 1, SHIFT_MAX)
        found.append((shift, low >> shift))
        low += 1 << shift
    return found
