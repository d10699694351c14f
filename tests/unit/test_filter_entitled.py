"""Interests of an application, limited by its rights."""

from collections.abc import Iterable

import pytest

from penstock.base.errors import NotEntitledError, TopicError
from penstock.filter.core.entitled_interests import EntitledInterests, Plan
from penstock.filter.core.events import Interests
from penstock.security import Grant
from penstock.security.core.narrowing import entitlement_text, narrowed

pytestmark = pytest.mark.spec("ADM-7")


def grants(*patterns: str, delay_s: int = 0) -> list[Grant]:
    return [Grant(pattern, "receive", delay_s) for pattern in patterns]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("md.us.eq.AAPL", ["md.us.eq.AAPL"]),
        ("md.us.*.AAPL", ["md.us.*.AAPL"]),
        ("md.>", ["md.us.>", "md.eu.fx"]),
        ("md.*.fx", ["md.us.fx", "md.eu.fx"]),
        (">", ["md.us.>", "md.eu.fx"]),
        ("!md.anything", ["!md.anything"]),
        ("penstock.discontinuity", ["penstock.discontinuity"]),
    ],
)
def test_an_interest_is_restricted_to_the_grants(wanted: str, expected: list[str]) -> None:
    assert list(narrowed(grants("md.us.>", "md.eu.fx"), wanted)) == expected


@pytest.mark.parametrize("wanted", ["news", "md.eu.>", "/md.us.*/", "#urgent", ">"])
def test_topics_without_a_live_grant_are_refused(wanted: str) -> None:
    given = [*grants("md.us.*.q"), *grants("md.eu.>", "news", delay_s=900), Grant("news", "send")]
    if wanted == ">":
        assert narrowed(given, wanted) == ("md.us.*.q",)
        return
    with pytest.raises(NotEntitledError):
        narrowed(given, wanted)


def test_expressions_and_tags_need_a_grant_of_everything() -> None:
    for wanted in ("/md.us.*/", "#urgent"):
        assert narrowed(grants(">"), wanted) == (wanted,)


def test_invalid_interests_are_refused() -> None:
    with pytest.raises(TopicError):
        narrowed(grants(">"), "md..x")


class Told:
    """A core that records its instructions."""

    def __init__(self, entitled: EntitledInterests) -> None:
        self.entitled = entitled
        self.has: set[tuple[str, str]] = set()

    def change(self, add: Iterable[Interests] = (), remove: Iterable[Interests] = ()) -> Plan:
        plan = self.entitled.plan(add, remove)
        self.take(plan)
        self.entitled.commit(plan)
        return plan

    def take(self, plan: Plan) -> None:
        added = {(text, each.where) for each in plan.add for text in each.topics}
        self.has -= {(text, each.where) for each in plan.remove for text in each.topics} - added
        self.has |= added


def test_topics_common_to_two_interests_stay_until_both_are_removed() -> None:
    told = Told(EntitledInterests(grants("md.us.>")))
    told.change([Interests(["md.>", "md.*.eq"])])
    assert told.has == {("md.us.>", ""), ("md.us.eq", "")}
    told.change([Interests([">"])])
    told.change(remove=[Interests(["md.>", "never.there"])])
    assert told.has == {("md.us.>", ""), ("md.us.eq", "")}
    told.change(remove=[Interests([">"])])
    assert told.has == {("md.us.eq", "")}
    told.change([Interests(["md.*.eq"])], [Interests(["md.*.eq"])])
    assert told.has == {("md.us.eq", "")}
    told.change(remove=[Interests(["md.*.eq"])])
    assert told.has == set()


def test_denials_apply_under_every_condition_and_cannot_be_withdrawn() -> None:
    told = Told(EntitledInterests(grants("md.>", "!md.secret.>")))
    told.change([Interests(["md.a"]), Interests(["md.>"], where="price > 1")])
    denied = {("!md.secret.>", ""), ("!md.secret.>", "price > 1")}
    assert told.has == {("md.a", ""), ("md.>", "price > 1"), *denied}
    told.change([Interests(["!md.secret.>"])])
    told.change(remove=[Interests(["!md.secret.>"])])
    assert denied <= told.has
    told.change(remove=[Interests(["md.a"])])
    assert told.has == {("md.>", "price > 1"), ("!md.secret.>", "price > 1")}


def test_a_refused_change_changes_nothing() -> None:
    told = Told(EntitledInterests(grants("md.us.>")))
    told.change([Interests(["md.us.a"])])
    with pytest.raises(NotEntitledError):
        told.change([Interests(["md.us.b", "news"])], [Interests(["md.us.a"])])
    told.change(remove=[Interests(["md.us.a"])])
    assert told.has == set()


def test_changed_grants_change_the_instructions_to_the_core() -> None:
    told = Told(EntitledInterests(grants("md.us.>", "news")))
    told.change([Interests(["md.>"], groups=(7,)), Interests(["news"])])
    told.entitled, plan = told.entitled.regranted(grants("md.eu.>", "!md.eu.x"))
    told.take(plan)
    assert told.has == {("md.eu.>", ""), ("!md.eu.x", "")}
    assert [tuple(each.groups) for each in plan.add] == [(7,)]
    told.change(remove=[Interests(["md.>"])])
    assert told.has == set()


def test_entitlements_are_compared_by_the_topics_that_can_be_received() -> None:
    first = [*grants("a", "!b"), Grant("c", "send")]
    assert entitlement_text(first) == entitlement_text(grants("!b", "a"))
    assert entitlement_text(first) != entitlement_text(grants("a"))
    assert entitlement_text(grants("a")) != entitlement_text(grants("a", delay_s=1))
