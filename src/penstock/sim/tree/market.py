"""Messages of a simulated tree, and interests of subscribers: conditions for the tree, code for the checkers."""

from functools import lru_cache

from penstock.model import MessageModel
from penstock.tree.core.control import Want

MODEL = MessageModel.parse(
    """
id = 900
name = "sim_tree"
version = 1
description = "A message of a simulated publisher"
conflate = false

[[field]]
name = "number"
type = "u64"
description = "The publisher's own"

[[field]]
name = "publisher"
type = "u32"
description = "Who published it"

[[field]]
name = "level"
type = "u32"
description = "What conditions speak of"
"""
)

NAMES = ("a", "b", "c", "d")
KINDS = ("x", "y")
LEVELS = 100


def topics_of(stream: str) -> list[str]:
    return [f"{stream}.{name}.{kind}" for name in NAMES for kind in KINDS]


class Taste:
    """An interest, and an equivalent function that is independent of the tree's matching."""

    def __init__(self, stream: str, name: str = "*", kind: str = "*", level_min: int = 0) -> None:
        self.stream, self.name, self.kind, self.level_min = stream, name, kind, level_min
        where = f"level >= {level_min}" if level_min else ""
        topic = f"{stream}.>" if name == kind == "*" else f"{stream}.{name}.{kind}"
        self.wants: tuple[Want, ...] = (Want((topic,), where),)

    def wants_it(self, topic: str, payload: bytes | memoryview) -> bool:
        stream, name, kind = topic.split(".")
        is_topic = stream == self.stream and self.name in ("*", name) and self.kind in ("*", kind)
        return is_topic and level_of(bytes(payload)) >= self.level_min

    def __repr__(self) -> str:
        return f"{self.stream}.{self.name}.{self.kind} >= {self.level_min}"


@lru_cache(maxsize=65_536)
def level_of(payload: bytes) -> int:
    return int(MODEL.view(payload).level)


def number_of(payload: bytes) -> tuple[int, int]:
    """Publisher and number."""
    message = MODEL.view(payload)
    return int(message.publisher), int(message.number)
