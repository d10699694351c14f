"""The refusal of a condition that no model can meet helps its author."""

import pytest

from penstock.base.errors import FilterExpressionError
from penstock.filter.core.interests import KnownModels
from penstock.model import shipped, shipped_names


@pytest.mark.parametrize(
    ("where", "model", "hint"),
    [
        ("bid_price > 100 AND simbol = 'AAPL'", "quote", "symbol"),
        ("prise > 100 AND trade_id > 0", "trade", "price"),
        ("nonsense = 1", "quote", ""),
    ],
)
def test_the_refusal_names_the_intended_model(where: str, model: str, hint: str) -> None:
    known = KnownModels({each.id: each for each in map(shipped, shipped_names())})
    with pytest.raises(FilterExpressionError) as caught:
        known.predicates(where)
    assert f"{model}" in str(caught.value)
    assert hint in str(caught.value)
    assert "agent_account" not in str(caught.value)
