"""Adapters of a feed: the right to serve it, its streams and keys, and the loss of that right."""

import pytest

from admin_kit import KEYS, RULES, policy_text, registration
from admin_plant import Plant
from penstock.base.errors import ForbiddenError, NotEntitledError, NotFoundError, RequestError
from penstock.security import Policy
from penstock.security.core.brokering import AuthenticationChanged, KeysChanged, Registered, StreamMoved

SECOND_RULE = '\n[[rule]]\nwho = ["carol"]\nsend = ["md.us.eq.>", "derived.>"]\n'
OTHER_RULE = '\n[[rule]]\nwho = ["carol"]\nsend = ["other.>"]\n'


def policy_with_carol_as_adapter(rules: str) -> Policy:
    key = f'[clients.carol]\nkey = "{KEYS["carol"].public.text}"\n'
    return Policy.parse(policy_text(RULES + rules).replace(key, key + 'roles = ["adapter"]\n'))


def plant_with_carol(rules: str, *, sealed: bool = True) -> Plant:
    plant = Plant()
    plant.set_policy(policy_with_carol_as_adapter(rules))
    plant.register(sealed=sealed)
    return plant


def register_carol(plant: Plant, **values: object) -> Registered:
    told = registration(**{"adapter": "c", "index": 2, "publisher_id": 13, "sealed": True, **values})
    return plant.core.register(plant.caller("carol"), told, plant.now_ns)


@pytest.mark.spec("ADM-7")
def test_the_adapter_role_alone_gives_neither_a_stream_nor_keys() -> None:
    plant = plant_with_carol(OTHER_RULE)
    with pytest.raises(RequestError, match="publishes nothing"):
        register_carol(plant, topics=[], contributions=[], term=0x102)
    with pytest.raises(NotEntitledError, match="lets carol send all of md"):
        register_carol(plant, topics=["other.x"], contributions=[], term=0x102)
    assert list(plant.core.state.adapters) == ["itch/a"]
    assert plant.core.feeds.keys("itch")[0].holders == ("feed",)


@pytest.mark.spec("ADM-7")
def test_all_adapters_of_a_feed_seal_it_or_none_does() -> None:
    plant = plant_with_carol(SECOND_RULE)
    with pytest.raises(ForbiddenError, match="itch/a is sealed"):
        register_carol(plant, sealed=False)
    plant.register(sealed=False)  # the only adapter may switch between sealed and open
    with pytest.raises(ForbiddenError, match="not sealed"):
        register_carol(plant)


def test_a_feed_does_not_get_topics_that_its_other_adapters_may_not_publish() -> None:
    plant = plant_with_carol(SECOND_RULE + OTHER_RULE)
    with pytest.raises(NotEntitledError, match="lets feed send all of other"):
        register_carol(plant, topics=["md.us.eq.>", "other.>"])


@pytest.mark.spec("ADM-7", "ADM-5")
@pytest.mark.parametrize("loss", ["role", "send", "revoked", "gone"])
def test_an_adapter_that_loses_its_right_is_removed_and_its_key_replaced(loss: str) -> None:
    plant = Plant()
    plant.set_policy(policy_with_carol_as_adapter(SECOND_RULE))
    plant.subscribe("alice", "md.us.eq.>")
    plant.register(sealed=True)
    assert [each.key_id for each in register_carol(plant, term=0x102).keys] == [1]
    after = plant.core.state.meta.event_number
    if loss == "role":
        plant.set_policy(Policy.parse(policy_text(RULES + SECOND_RULE)))
    elif loss == "send":
        plant.set_policy(policy_with_carol_as_adapter(OTHER_RULE))
    elif loss == "revoked":
        plant.revoke("carol", "md.us.eq.AAPL.>")
    else:
        rules = RULES.replace('who = ["carol"]', 'who = ["dora"]')
        text = policy_text(rules).replace("[clients.carol]", "[clients.carola]")
        plant.set_policy(Policy.parse(text))
    assert list(plant.core.state.adapters) == ["itch/a"]
    events = plant.events("alice", after)
    (rotated,) = [each.authentication for each in events if isinstance(each, AuthenticationChanged)]
    assert [each.key_id for each in rotated.keys] == [1, 2]
    moved, keys = [each for each in events if not isinstance(each, AuthenticationChanged)][::-1]
    assert isinstance(keys, KeysChanged)
    assert [each.key_id for each in keys.keys] == [2]
    assert isinstance(moved, StreamMoved)
    assert [each.adapter for each in moved.streams[0].addresses] == ["a"]
    assert plant.core.feeds.keys("itch")[-1].holders == ("alice", "feed")
    assert not [each for each in plant.core.state.events("carol", after)[0] if isinstance(each.body, KeysChanged)]


@pytest.mark.spec("ADM-7")
def test_a_feed_without_adapters_still_gets_a_new_key() -> None:
    plant = Plant()
    plant.subscribe("alice", "md.us.eq.>")
    plant.register(sealed=True)
    plant.revoke("feed")
    with pytest.raises(NotFoundError):
        plant.beat()
    lost = plant.events("alice")[-1]
    assert isinstance(lost, StreamMoved)
    assert lost.streams == []
    assert [(each.state, each.holders) for each in plant.core.feeds.keys("itch")] == [
        ("active", ("alice", "feed")),
        ("pending", ()),
    ]


@pytest.mark.spec("ADM-7")
def test_a_subscriber_without_a_right_to_the_new_topics_of_a_feed_causes_a_new_key() -> None:
    plant = Plant()
    plant.subscribe("carol", "md.us.eq.*.quote")
    plant.register(sealed=True, topics=["md.us.eq.*.quote"])
    plant.set_policy(Policy.parse(policy_text()))
    (stream,) = plant.core.renew(plant.caller("carol"), "s1", plant.now_ns).streams
    assert [each.key_id for each in stream.keys] == [1]
    plant.register(sealed=True)
    assert plant.core.feeds.keys("itch")[-1].holders == ("feed",)
