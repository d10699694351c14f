"""The judge of message routers finds every kind of error in invented histories, and none in correct ones."""

from pathlib import Path

import msgspec
import pytest

from judge.checker import Rules, violations
from judge.history import (
    Acknowledged,
    AnyLine,
    Delivered,
    Ended,
    Ending,
    Fault,
    History,
    Published,
    Settled,
    read_history,
)

RULES = Rules(
    wants={"orders": frozenset({"orders"}), "audit": frozenset({"orders", "fills"})}, exclusive=frozenset({"orders"})
)
BOTH = frozenset({"synchronous"})
REPLACED = Rules(wants=RULES.wants, exclusive=RULES.exclusive, kept=BOTH, firm=BOTH)
TURNS = Rules(wants={"orders": frozenset({"orders"})}, exclusive=frozenset({"orders"}), in_order=BOTH)
ONE = Rules(wants={"orders": frozenset({"orders"})}, exclusive=frozenset({"orders"}))
SHARED = Rules(wants={"orders": frozenset({"orders"})})


class Made:
    """A history written by hand; each line is later than the one before."""

    def __init__(self) -> None:
        self.lines: list[AnyLine] = []
        self._deliveries = 0

    def add(self, line: AnyLine) -> None:
        self.lines.append(msgspec.structs.replace(line, at=self.now))

    @property
    def now(self) -> int:
        return len(self.lines) + 1

    def published(self, number: int, outcome: str = "stored", **values: str) -> str:
        key = f"p.{number}"
        self.add(Published(key=key, publisher="p", number=number, **{"topic": "orders.new", **values}))
        if outcome:
            self.add(Acknowledged(key=key, outcome=outcome))
        return key

    def delivered(self, key: str, endpoint: str = "orders", *, again: bool = False, flow: str = "f") -> str:
        self._deliveries += 1
        name = f"d{self._deliveries}"
        self.add(Delivered(delivery=name, endpoint=endpoint, flow=flow, key=key, is_redelivered=again))
        return name

    def done(self, key: str, endpoint: str = "orders", *, again: bool = False, flow: str = "f") -> None:
        self.add(Settled(delivery=self.delivered(key, endpoint, again=again, flow=flow), what="ack"))

    def transaction(self, outcome: str, *keys: str, consumed: str = "", treatment: str = "stored") -> None:
        for key in keys:
            number = int(key.partition(".")[2])
            self.add(Published(key=key, publisher="p", number=number, topic="orders.x", transaction="t"))
        if consumed:
            self.add(Settled(delivery=consumed, what="ack", transaction="t"))
        if outcome != "never asked":
            self.add(Ending(transaction="t", is_commit=True))
        if outcome in ("committed", "rolled back"):
            is_committed = outcome == "committed"
            self.add(Ended(transaction="t", outcome=outcome, treatment=treatment if is_committed else ""))

    def judged(self, rules: Rules = ONE) -> list[str]:
        return violations(self.lines, rules)


@pytest.fixture
def made() -> Made:
    return Made()


def test_a_history_in_which_every_promise_was_kept_has_no_violations(made: Made) -> None:
    one, two = made.published(1), made.published(2)
    lost = made.published(3, outcome="")
    made.add(Fault(what="killed"))
    made.add(Settled(delivery=made.delivered(one), what="nack"))
    made.delivered(two)
    made.done(one, again=True)
    made.done(two, again=True)
    for key in (one, two, lost):
        made.done(key, "audit")
    made.done(lost)
    assert made.judged(RULES) == []


def test_an_acknowledged_message_without_a_delivery_is_lost(made: Made) -> None:
    key = made.published(1)
    made.done(key)
    assert made.judged(RULES) == ["p.1 was acknowledged (stored), and audit never delivered it"]


@pytest.mark.parametrize("what", ["nack", "reject", "late", "nothing"])
def test_an_unsettled_message_must_be_delivered_again(made: Made, what: str) -> None:
    delivery = made.delivered(made.published(1))
    if what == "late":
        made.add(Settled(delivery=delivery, what="ack", is_late=True))
    elif what != "nothing":
        made.add(Settled(delivery=delivery, what=what))
    (found,) = made.judged()
    assert "nobody was done with it" in found
    made.done("p.1", "dead" if what == "reject" else "orders", again=True)
    assert made.judged() == []


def test_a_delivered_message_that_was_not_published_is_found(made: Made) -> None:
    made.done("p.9")
    assert made.judged() == ["orders delivered p.9, which nobody published"]


def test_a_delivery_to_the_wrong_endpoint_is_found(made: Made) -> None:
    key = made.published(1, topic="fills.new", outcome="")
    made.done(key)
    assert made.judged() == ["orders delivered p.1, which it does not want"]


def test_a_refused_message_must_not_be_delivered(made: Made) -> None:
    made.done(made.published(1, outcome="refused"))
    assert made.judged() == ["orders delivered p.1, which was refused"]


def test_a_redelivery_without_the_flag_is_found(made: Made) -> None:
    key = made.published(1)
    made.delivered(key)
    made.done(key)
    assert made.judged() == ["orders delivered p.1 again and did not say so"]


def test_a_redelivery_may_be_read_before_the_first_delivery(made: Made) -> None:
    key = made.published(1)
    made.done(key, again=True, flow="g")
    made.delivered(key)
    assert made.judged(SHARED) == []


def test_wrong_order_at_an_exclusive_endpoint_is_found(made: Made) -> None:
    one, two = made.published(1), made.published(2)
    made.done(two, flow="f")
    made.done(one, again=True, flow="g")
    assert made.judged() == ["orders delivered p.1 after p.2"]


def test_wrong_order_over_one_flow_of_a_shared_endpoint_is_found(made: Made) -> None:
    one, two, three = (made.published(number) for number in (1, 2, 3))
    made.done(two, flow="f")
    made.done(one, flow="g")
    assert [each for each in made.judged(SHARED) if "p.3" not in each] == [], "no order between two flows"
    made.done(three, flow="g")
    made.delivered(two, again=True, flow="g")
    assert made.judged(SHARED) == [], "a redelivery has no order"
    four, five = made.published(4), made.published(5)
    made.done(five, flow="f")
    made.done(four, flow="f")
    assert made.judged(SHARED) == ["orders to f delivered p.4 after p.5"]


def test_messages_with_different_protections_have_no_order(made: Made) -> None:
    one, two = made.published(1), made.published(2, wanted="synchronous", outcome="degraded")
    made.done(two)
    made.done(one)
    assert made.judged() == []


@pytest.mark.parametrize(
    ("wanted", "told"), [("none", "synchronous"), ("asynchronous", "synchronous"), ("synchronous", "stored")]
)
def test_an_impossible_acknowledgement_is_found(made: Made, wanted: str, told: str) -> None:
    made.done(made.published(1, wanted=wanted, outcome=told))
    assert made.judged() == [f"p.1 wanted {wanted} and was told {told}"]


def test_an_acknowledgement_of_an_unknown_message_is_found(made: Made) -> None:
    made.add(Acknowledged(key="p.7", outcome="stored"))
    assert made.judged() == ["p.7 was acknowledged, but never published"]


def test_all_messages_of_a_commit_must_be_delivered(made: Made) -> None:
    made.transaction("committed", "p.1", "p.2")
    made.done("p.1")
    assert "p.2 was acknowledged (stored), and orders never delivered it" in made.judged()


def test_a_commit_with_an_unknown_outcome_is_atomic(made: Made) -> None:
    made.transaction("unknown", "p.1", "p.2")
    assert made.judged() == []
    made.done("p.1")
    assert made.judged() == ["of transaction t p.1 was delivered, and p.2 not by orders"]
    made.done("p.2")
    assert made.judged() == []


@pytest.mark.parametrize("outcome", ["rolled back", "never asked"])
def test_messages_of_a_rolled_back_transaction_are_not_delivered(made: Made, outcome: str) -> None:
    made.transaction(outcome, "p.1")
    made.done("p.1")
    (found,) = made.judged()
    assert found.startswith("p.1 was delivered, and its transaction t was")


@pytest.mark.parametrize("outcome", ["rolled back", "never asked", "unknown"])
def test_messages_consumed_in_a_rolled_back_transaction_must_be_redelivered(made: Made, outcome: str) -> None:
    consumed = made.delivered(made.published(1))
    made.transaction(outcome, "p.2", consumed=consumed)
    (found,) = made.judged()
    assert found.startswith("p.1 was acknowledged (stored), and orders delivered it for the last time")
    made.done("p.1", again=True)
    assert made.judged() == []


def test_messages_consumed_by_a_commit_must_not_be_redelivered(made: Made) -> None:
    consumed = made.delivered(made.published(1))
    made.transaction("committed", "p.2", consumed=consumed)
    made.done("p.2")
    assert made.judged() == []
    made.done("p.1", again=True)
    assert made.judged() == ["orders delivered p.1 again after transaction t had consumed it"]


def test_messages_on_both_disks_survive_a_forced_replacement(made: Made) -> None:
    made.published(1, wanted="asynchronous", outcome="asynchronous")
    made.published(2, wanted="synchronous", outcome="degraded")
    made.published(3, wanted="synchronous", outcome="")
    assert made.judged(REPLACED) == []
    made.published(4, wanted="synchronous", outcome="synchronous")
    assert [each.partition(",")[0] for each in made.judged(REPLACED)] == ["p.4 was acknowledged (synchronous)"] * 2


def test_messages_of_one_router_are_delivered_later_when_routers_alternate(made: Made) -> None:
    one, two = made.published(1), made.published(2)
    made.done(two)
    made.done(one)
    assert made.judged(TURNS) == []
    three, four = (made.published(number, wanted="synchronous", outcome="degraded") for number in (3, 4))
    made.done(four)
    made.done(three)
    assert made.judged(TURNS) == ["orders delivered p.3 after p.4"]


def test_a_history_of_a_killed_writer_is_readable(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    writers = [History(path) for path in paths]
    for number in range(4):
        writers[number % 2].write(Acknowledged(key=f"p.{number}", outcome="stored"))
    for writer in writers:
        writer.close()
    with paths[1].open("ab") as file:
        file.write(b'{"type":"Acknowl')
    found = read_history(*paths)
    assert [each.key for each in found if isinstance(each, Acknowledged)] == [f"p.{number}" for number in range(4)]
    assert [each.at for each in found] == sorted(each.at for each in found)
