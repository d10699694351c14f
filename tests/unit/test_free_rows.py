"""Free rows of preallocated tables."""

import pytest

from penstock.base.free_rows import FreeRows


def test_previously_used_rows_are_assigned_first() -> None:
    rows = FreeRows(4)
    assert (len(rows), [rows.take() for _ in range(3)], len(rows)) == (4, [0, 1, 2], 1)
    rows.give_back(1)
    rows.give_back(0)
    assert len(rows) == 3
    assert [rows.take() for _ in range(3)] == [0, 1, 3]
    assert not rows
    with pytest.raises(IndexError):
        rows.take()
