"""WantCompiler: checks wants and compiles their conditions for the fan-out."""

from collections.abc import Iterable, Sequence

from penstock.base.errors import FilterExpressionError
from penstock.filter.core.interests import KnownModels
from penstock.filter.core.kernel._condition import Condition
from penstock.model import MessageModel
from penstock.topics.interest import Interest
from penstock.tree.core.control import Want

CompiledWants = list[tuple[Sequence[str], Condition | None]]


class WantCompiler:
    def __init__(self, models: Iterable[MessageModel]) -> None:
        self._known = KnownModels({model.id: model for model in models})

    def compile(self, wants: Iterable[Want], *, is_agent: bool) -> CompiledWants:
        """TopicError or FilterExpressionError if a want is invalid. An agent's condition on fields that are unknown
        here is left out: the agents below evaluate it again."""
        compiled: CompiledWants = []
        for want in wants:
            for topic in want.topics:
                Interest.parse(topic)
            compiled.append((want.topics, self._condition(want.where, is_agent)))
        return compiled

    def _condition(self, where: str, is_agent: bool) -> Condition | None:
        if not where:
            return None
        try:
            return Condition(self._known.predicates(where))
        except FilterExpressionError:
            if is_agent:
                return None
            raise
