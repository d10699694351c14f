"""For compiled code."""

from enum import IntEnum

class LinkFault(IntEnum):
    FAULT_CLOSED = 0
    FAULT_CUT = 1
    FAULT_SLOW = 2
    FAULT_FRAME = 3
    FAULT_UNEXPECTED = 4
    FAULT_INFO = 5
    FAULT_PACKET = 6
    FAULT_MEMORY = 7
