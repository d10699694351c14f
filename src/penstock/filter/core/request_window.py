"""Numbers of repair requests, each of which is admitted once (an anti-replay window, as in IPsec)."""

REQUEST_WINDOW = 1_024
"""Newest numbers of a requester that may arrive in any order; older ones are refused."""

REQUESTERS_MAX = 8
"""Requesters of an application that are remembered: usually it is one for as long as the application runs."""


class RequestWindow:
    """The requests of one application."""

    def __init__(self) -> None:
        self._received: dict[int, tuple[int, int]] = {}  # by requester: its newest number, and a bit for each before

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
