"""The client's compiled pipeline gives the application the same as the cores do message by message."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_kit import by_pipeline, one_by_one, traffic


@pytest.mark.spec("SUB-4", "SYNC-7")
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 120))
def test_the_pipeline_equals_its_parts(seed: int, count: int) -> None:
    cuts = traffic(random.Random(seed), count)
    fast, slow = by_pipeline(cuts), one_by_one(cuts)
    assert fast.found == slow.found
    assert fast.figures() == slow.figures()
