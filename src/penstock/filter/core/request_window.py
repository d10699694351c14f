"""Anti-replay window for repair requests, as in IPsec: each request number is accepted once."""

REQUEST_WINDOW = 1_024
"""Number of recent request numbers that may arrive in any order; older ones are refused."""

REQUESTERS_MAX = 8
"""Maximum number of requesters remembered per application; usually there is only one."""


class RequestWindow:
    """The requests of one application."""

    def __init__(self) -> None:
        # by requester: the newest number, and a bit for each earlier one
        self._received: dict[int, tuple[int, int]] = {}

    def admits(self, requester: int, number: int) -> bool:
        """True if the number is new; it counts as received afterwards."""
        if not requester or not number:
            return False
        newest, received = self._received.get(requester, (0, 0))
        if number > newest:
            received = received << min(number - newest, REQUEST_WINDOW) | 1
        elif newest - number >= REQUEST_WINDOW or received >> (newest - number) & 1:
            return False
        else:
            received |= 1 << (newest - number)
        if requester not in self._received and len(self._received) >= REQUESTERS_MAX:
            del self._received[next(iter(self._received))]
        self._received[requester] = max(number, newest), received & ((1 << REQUEST_WINDOW) - 1)
        return True
