"""Choose the most helpful of several refusals of a condition, one per model."""

import re
from collections.abc import Sequence

from penstock.base.errors import FilterExpressionError
from penstock.model import MessageModel
from penstock.model.library import is_own

Refusal = tuple[MessageModel, FilterExpressionError]


def most_helpful(where: str, refusals: Sequence[Refusal]) -> FilterExpressionError | None:
    """Return the refusal for the model that has most of the words as fields; application models come before Penstock's
    own.
    """
    words = set(re.findall(r"\w+", where))

    def fit(refusal: Refusal) -> tuple[int, bool, bool]:
        model = refusal[0]
        near = len(words & set(model.fields_by_name))
        return (0 if is_own(model) else near, not is_own(model), model.name == "quote")

    return max(refusals, key=fit)[1] if refusals else None
