from typing_extensions import Buffer

from penstock.model import MessageModel

RULE_FIRST: int
RULE_MAX: int
RULE_MIN: int
RULE_SUM: int
NO_SPAN: int

class ConflationPlan:
    model: MessageModel
    is_conflatable: bool
    needs_accumulator: bool
    def __init__(self, model: MessageModel) -> None: ...
    @staticmethod
    def of(model: MessageModel) -> ConflationPlan: ...
    def merged(
        self, held: Buffer, update: Buffer, held_version: int | None = None, version: int | None = None
    ) -> bytes: ...

class SpanStore:
    plan: ConflationPlan
    in_use: int
    spans_max: int
    def __init__(self, plan: ConflationPlan, spans_max: int) -> None: ...
    def put(self, number: int, update: Buffer, version: int, item_version: int, started_ns: int = 0) -> int: ...
    def take(self, number: int) -> tuple[int, int, int, int, bytes]: ...
