"""Checks the promises of routers against the history of their clients' calls and results. A pure function."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from judge.history import Acknowledged, AnyLine, Delivered, Ended, Ending, Published, Settled

ACKNOWLEDGED = frozenset({"stored", "asynchronous", "synchronous", "degraded", "known", "acknowledged"})
"""Outcomes of messages that are kept."""

TRUE_OUTCOMES = {
    "none": {"stored", "known", "acknowledged", "refused"},
    "asynchronous": {"asynchronous", "stored", "known", "acknowledged", "refused"},
    "synchronous": {"synchronous", "degraded", "known", "acknowledged", "refused"},
}
"""The possible results of a publisher's message, by its protection (REPL-3)."""

DEAD = "dead"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The promises of the routers that wrote the history."""

    wants: dict[str, frozenset[str]]
    """By endpoint: the first levels of its topics."""

    exclusive: frozenset[str] = frozenset()
    """Endpoints with one consumer at a time."""

    kept: frozenset[str] = ACKNOWLEDGED
    """Outcomes after which a message must be delivered."""

    firm: frozenset[str] = ACKNOWLEDGED
    """Outcomes after which it must be delivered in order, and a commit must hold. Where routers are replaced by force,
    that is what was on both disks."""

    in_order: frozenset[str] = frozenset({"none", "asynchronous", "synchronous"})
    """Protections whose messages are delivered in order. Where routers alternate, messages that only one of them has
    are delivered when it is active again."""


class _Transaction:
    def __init__(self) -> None:
        self.published: list[str] = []
        self.was_asked = False
        self.outcome = ""
        self.treatment = ""
        self.ended_at = 0


class _Judge:
    def __init__(self, history: Iterable[AnyLine], rules: Rules) -> None:
        self.rules = rules
        self.published: dict[str, Published] = {}
        self.outcomes: dict[str, list[str]] = defaultdict(list)
        self.deliveries: dict[tuple[str, str], list[Delivered]] = defaultdict(list)  # by endpoint and key
        self.by_name: dict[str, Delivered] = {}
        self.settled: dict[str, Settled] = {}
        self.transactions: dict[str, _Transaction] = defaultdict(_Transaction)
        for line in history:
            self._take(line)
        self.consumed: dict[str, list[Delivered]] = defaultdict(list)  # by transaction
        for line in self.settled.values():
            if line.transaction:
                self.consumed[line.transaction].append(self.by_name[line.delivery])

    def _take(self, line: AnyLine) -> None:
        match line:
            case Published(key=key, transaction=transaction):
                self.published[key] = line
                if transaction:
                    self.transactions[transaction].published.append(key)
            case Acknowledged(key=key, outcome=outcome):
                self.outcomes[key].append(outcome)
            case Delivered():
                self.deliveries[line.endpoint, line.key].append(line)
                self.by_name[line.delivery] = line
            case Settled(delivery=delivery, is_late=True):
                self.settled.pop(delivery, None)
            case Settled(delivery=delivery):
                self.settled[delivery] = line
            case Ending(transaction=transaction, is_commit=is_commit):
                self.transactions[transaction].was_asked = is_commit
            case Ended(transaction=transaction):
                found = self.transactions[transaction]
                found.outcome, found.treatment, found.ended_at = line.outcome, line.treatment, line.at

    def violations(self) -> Iterator[str]:
        yield from self._without_publisher()
        yield from self._untrue_outcomes()
        yield from self._unflagged()
        yield from self._disordered()
        yield from self._torn()
        yield from self._consumed_twice()
        yield from self._lost()

    # Deliveries

    def _without_publisher(self) -> Iterator[str]:
        for endpoint, key in self.deliveries:
            if key not in self.published:
                yield f"{endpoint} delivered {key}, which nobody published"
            elif endpoint != DEAD and endpoint not in self._wanting(key):
                yield f"{endpoint} delivered {key}, which it does not want"
            elif "refused" in self.outcomes[key]:
                yield f"{endpoint} delivered {key}, which was refused"

    def _untrue_outcomes(self) -> Iterator[str]:
        for key, outcomes in self.outcomes.items():
            if key not in self.published:
                yield f"{key} was acknowledged, but never published"
            elif untrue := set(outcomes) - TRUE_OUTCOMES[self.published[key].wanted]:
                yield f"{key} wanted {self.published[key].wanted} and was told {', '.join(sorted(untrue))}"

    def _unflagged(self) -> Iterator[str]:
        """One of a message's deliveries may be without the flag. It need not be the first in the histories: another
        consumer may have read its delivery earlier."""
        for (endpoint, key), deliveries in self.deliveries.items():
            if endpoint != DEAD and sum(not each.is_redelivered for each in deliveries) > 1:
                yield f"{endpoint} delivered {key} again and did not say so"

    def _disordered(self) -> Iterator[str]:
        """At an exclusive endpoint the first deliveries of a publisher's messages are in its order; at a shared one,
        the first deliveries over each flow. Messages with different protections have no order."""
        highest: dict[tuple[str, str, str], tuple[int, str]] = {}
        seen: set[tuple[str, str]] = set()
        in_order = sorted((each for found in self.deliveries.values() for each in found), key=lambda each: each.at)
        for each in in_order:
            message = self.published.get(each.key)
            if message is None or each.endpoint == DEAD or not self._is_firm(message):
                continue
            if each.endpoint in self.rules.exclusive:
                counts, where = (each.endpoint, each.key) not in seen, each.endpoint
                seen.add((each.endpoint, each.key))
            else:
                counts, where = not each.is_redelivered, f"{each.endpoint} to {each.flow}"
            stream = (where, message.publisher, message.wanted)
            number, before = highest.get(stream, (-1, ""))
            if not counts:
                continue
            if message.number < number:
                yield f"{where} delivered {each.key} after {before}"
            else:
                highest[stream] = (message.number, each.key)

    # Transactions

    def _torn(self) -> Iterator[str]:
        for name, transaction in self.transactions.items():
            there = [key for key in transaction.published if self._places_of(key)]
            if not there or not self._is_judged(transaction):
                continue
            if self._is_undone(transaction):
                why = "was rolled back" if transaction.outcome else "was never committed"
                yield f"{there[0]} was delivered, and its transaction {name} {why}"
                continue
            for key in transaction.published:  # it was committed, whether the client was informed or not
                if missing := self._wanting(key) - self._places_of(key):
                    yield f"of transaction {name} {there[0]} was delivered, and {key} not by {min(missing)}"

    def _is_judged(self, transaction: _Transaction) -> bool:
        """Where routers are replaced by force, messages on only one of them may be half delivered when it fails."""
        wanted = {self.published[key].wanted for key in transaction.published}
        return self.rules.firm >= ACKNOWLEDGED or wanted == {"synchronous"}

    def _consumed_twice(self) -> Iterator[str]:
        for name, transaction in self.transactions.items():
            if not self._has_committed(transaction) or transaction.treatment not in self.rules.firm:
                continue
            firm = [each for each in self.consumed[name] if self._is_firm(self.published[each.key])]
            for consumed in firm:
                for each in self.deliveries[consumed.endpoint, consumed.key]:
                    is_same = each.id == consumed.id and each.delivery in self.settled
                    if is_same and each.at > transaction.ended_at:
                        yield f"{each.endpoint} delivered {each.key} again after transaction {name} had consumed it"

    def _has_committed(self, transaction: _Transaction) -> bool:
        return transaction.outcome == "committed"

    def _is_undone(self, transaction: _Transaction) -> bool:
        """The client was informed of the rollback, or never requested the commit."""
        return transaction.outcome == "rolled back" or not transaction.was_asked

    # Missing deliveries

    def _lost(self) -> Iterator[str]:
        for key, message in self.published.items():
            if self._outcome_of(message) not in self.rules.kept:
                continue
            for endpoint in sorted(self._wanting(key)):
                deliveries = self.deliveries.get((endpoint, key), [])
                if any(self._is_done_with(each) for each in deliveries):
                    continue
                if any(self._is_done_with(each) for each in self.deliveries.get((DEAD, key), [])):
                    continue
                what = (
                    "delivered it for the last time, and nobody was done with it"
                    if deliveries
                    else "never delivered it"
                )
                yield f"{key} was acknowledged ({self._outcome_of(message)}), and {endpoint} {what}"

    def _is_done_with(self, delivery: Delivered) -> bool:
        """True if a consumer has settled the delivery, so that the message need not be delivered again."""
        settled = self.settled.get(delivery.delivery)
        if settled is None or settled.what != "ack":
            return False
        if not settled.transaction:
            return True
        transaction = self.transactions[settled.transaction]
        if self._has_committed(transaction):
            return True
        return not self._is_undone(transaction) and (
            not transaction.published or any(self._places_of(key) for key in transaction.published)
        )

    def _outcome_of(self, message: Published) -> str:
        if message.transaction:
            transaction = self.transactions[message.transaction]
            return transaction.treatment if self._has_committed(transaction) else ""
        return next(iter(self.outcomes[message.key]), "")

    def _is_firm(self, message: Published) -> bool:
        return self._outcome_of(message) in self.rules.firm and message.wanted in self.rules.in_order

    def _wanting(self, key: str) -> set[str]:
        level = self.published[key].topic.partition(".")[0]
        return {name for name, levels in self.rules.wants.items() if level in levels}

    def _places_of(self, key: str) -> set[str]:
        """Endpoints that delivered the message."""
        return {endpoint for endpoint in (*self._wanting(key), DEAD) if (endpoint, key) in self.deliveries}


def violations(history: Iterable[AnyLine], rules: Rules) -> list[str]:
    """The violations; empty if every promise was kept."""
    return list(_Judge(history, rules).violations())
