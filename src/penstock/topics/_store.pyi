from enum import IntEnum
from typing import Final

class NodeKind(IntEnum):
    NODE_FREE = 0
    NODE_TOPIC = 1
    NODE_TAG = 2
    NODE_RANGED = 3
    NODE_TALLY = 4
    NODE_ROOT = 8
    NODE_LITERAL = 9
    NODE_PREFIX = 10
    NODE_BLOCK = 11
    NODE_STAR = 12
    NODE_REST = 13

NEGATIVE: Final[int]
SUBSCRIBER_MAX: Final[int]
BLOCK_KEY_SIZE: Final[int]
LENGTH_MAX: Final[int]
