"""The transactions of a session's publishers (REPL-10). No I/O.

A router rolls back open transactions of a lost link. When a publisher is opened again, the router reports the last
transaction that it committed, which tells whether an unanswered commit arrived before the loss. That commit may not be
on its disk yet, so it is requested again, and answered when it is. Another router, which took over meanwhile, only
knows the transactions that were copied: one that it does not know may have been committed by its predecessor.
"""

from collections.abc import Callable

from penstock.assured.core.session.events import Answered, BeginTransaction, EndTransaction, Instruction
from penstock.assured.core.session.parts import PublisherPart
from penstock.assured.wire._layout import OUTCOME_STORED, OUTCOME_TRANSACTION
from penstock.assured.wire.control import Begin, Commit, Ended, Message, Refused, Rollback
from penstock.base.errors import LocalProtocolError
from penstock.net.core.client_session import Say

LOST = "the link to the router was lost before it was committed"
UNKNOWN = "another router took over before it answered"


class PublisherTransactions:
    def __init__(self, out: Callable[[Instruction], None], next_number: Callable[[], int]) -> None:
        self._out = out
        self._next_number = next_number
        self._beginning: dict[int, PublisherPart] = {}  # by request number
        self._failed: dict[PublisherPart, str] = {}  # already rolled back, with the reason
        self._ending: dict[PublisherPart, EndTransaction] = {}
        self._ends: dict[int, EndTransaction] = {}  # by request number
        self._epochs: dict[PublisherPart, int] = {}  # epoch in which the end was first requested
        self._last = 0  # numbers belong to a link: settlements refer to nothing else

    def begin(self, event: BeginTransaction, link: int) -> None:
        part = event.part
        if part.transaction:
            raise LocalProtocolError("the publisher has a transaction already", hint="one at a time")
        self._last = max(self._last, part.transaction_last) + 1
        part.transaction = part.transaction_last = self._last
        if not part.handle:
            self._failed[part] = LOST
            return
        number = self._next_number()
        self._beginning[number] = part
        self._out(Say(link, Begin(number, part.handle, part.transaction)))

    def end(self, event: EndTransaction, link: int, epoch: int) -> None:
        part = event.part
        self._ending[part] = event
        if part in self._failed:
            self._ended(part, 0, self._failed[part])
        elif part.handle:
            number = self._next_number()
            self._ends[number] = event
            self._epochs.setdefault(part, epoch)
            request = Commit if event.is_commit else Rollback
            self._out(Say(link, request(number, part.handle, part.transaction)))

    def lose(self, part: PublisherPart) -> None:
        """The part's link is gone: roll back the transaction, unless its end was requested."""
        self._beginning = {number: each for number, each in self._beginning.items() if each is not part}
        self._ends = {number: each for number, each in self._ends.items() if each.part is not part}
        if part.transaction and part not in self._ending:
            self._failed[part] = LOST

    def reopened(self, part: PublisherPart, committed: int, link: int, epoch: int) -> None:
        """The router reports the last transaction of the publisher that it accepted the commit of."""
        event = self._ending.get(part)
        if event is not None and event.is_commit and committed == part.transaction:
            part.window.pass_over(part.transaction)
            self.end(event, link, epoch)
        elif event is not None and event.is_commit and self._epochs.get(part, epoch) != epoch:
            self._end(part, 0, Refused("unknown", UNKNOWN))
        elif event is not None:
            self._ended(part, 0, LOST)
        elif part.transaction:  # its messages are not sent again
            part.window.end_transaction(part.transaction, OUTCOME_TRANSACTION)

    def answered(self, number: int, message: Message) -> bool:
        """Handle an answer. True if it belongs to a request of this class."""
        if (part := self._beginning.pop(number, None)) is not None:
            if isinstance(message, Refused):
                self._failed[part] = message.reason
            return True
        event = self._ends.pop(number, None)
        if event is None:
            return False
        if isinstance(message, Ended) and message.outcome == "committed":
            self._ended(event.part, message.treatment or OUTCOME_STORED, "")
        else:
            why = message.reason if isinstance(message, Refused) else getattr(message, "why", "")
            self._ended(event.part, 0, why)
        return True

    def _ended(self, part: PublisherPart, treatment: int, why: str) -> None:
        self._end(part, treatment, Ended(0, "committed" if treatment else "rolled_back", treatment, why))

    def _end(self, part: PublisherPart, treatment: int, answer: Ended | Refused) -> None:
        event = self._ending.pop(part)
        self._failed.pop(part, None)
        self._epochs.pop(part, None)
        part.end_transaction(treatment)
        self._out(Answered(event.token, answer))
