"""The administration server and authentic packets: who gets keys, which epochs count, and when keys change."""

import pytest

from admin_plant import Plant
from penstock.admin.authentication import EPOCHS_AHEAD
from penstock.base.errors import ForbiddenError, RequestError
from penstock.security import Policy
from penstock.security.authentication import PUBLISHERS, scope_of
from penstock.security.authentication_state import AuthenticationState
from penstock.security.brokering import Authentication, AuthenticationChanged, PublisherRequest, Vouched


def changes(plant: Plant, client: str) -> list[Authentication]:
    return [each.authentication for each in plant.events(client) if isinstance(each, AuthenticationChanged)]


def vouched(told: Authentication) -> dict[int, tuple[int, int]]:
    return {each.publisher_id: (each.epoch_first, each.epoch_last) for each in told.publishers}


@pytest.mark.spec("AUTH-2")
def test_adapters_and_subscribers_get_the_keys_and_epochs_of_the_feed() -> None:
    plant = Plant()
    registered = plant.register(epoch=5).authentication
    assert registered is not None
    (stream,) = plant.subscribe("alice", "md.us.eq.>").streams
    assert stream.authentication == registered
    assert (registered.scope, [each.key_id for each in registered.keys], registered.active_key_id) == ("itch", [1], 1)
    assert vouched(registered) == {11: (5, 5 + EPOCHS_AHEAD)}
    assert plant.register(epoch=6).authentication.publishers[0].epoch_first == 6  # type: ignore[union-attr]


@pytest.mark.spec("AUTH-2")
def test_epochs_do_not_go_back_and_publisher_ids_are_not_shared() -> None:
    plant = Plant()
    plant.register(epoch=5)
    with pytest.raises(RequestError, match="epoch 4 is before the last one of itch/a, 5"):
        plant.register(epoch=4)
    with pytest.raises(ForbiddenError, match="publisher id 11 is that of itch/a"):
        plant.register(adapter="b", index=1, publisher_id=11)


@pytest.mark.spec("AUTH-2")
def test_publishers_that_clients_claim_are_vouched_for_also_after_a_takeover() -> None:
    plant = Plant()
    assert vouched(plant.core.authenticate(plant.caller("alice"), plant.now_ns).scopes[0]) == {}
    claimed = plant.core.claim_publisher(plant.caller("feed"), PublisherRequest(name="quotes"), plant.now_ns)
    (told,) = changes(plant, "alice")
    assert told.scope == PUBLISHERS
    assert vouched(told) == {claimed.publisher_id: (1, 1 + EPOCHS_AHEAD)}
    plant.core.promote("a test", plant.now_ns)
    (scope,) = plant.core.authenticate(plant.caller("alice"), plant.now_ns).scopes
    first, last = vouched(scope)[claimed.publisher_id]
    assert first == claimed.epoch
    assert last > claimed.epoch + 1_024  # the server before may have given out some that are not known here


@pytest.mark.spec("AUTH-1")
def test_a_holder_that_loses_its_right_has_keys_that_are_worth_nothing_soon() -> None:
    plant = Plant()
    plant.register()
    plant.subscribe("alice", "md.us.eq.>")
    plant.subscribe("bob", "md.us.eq.>", name="s2")
    plant.revoke("alice")
    (pending,) = changes(plant, "bob")
    assert ([each.key_id for each in pending.keys], pending.active_key_id) == ([1, 2], 1)
    assert not changes(plant, "alice")
    plant.wait(plant.limits.key_grace_s + 0.1)
    active = changes(plant, "feed")[-1]
    assert ([each.key_id for each in active.keys], active.active_key_id) == ([1, 2], 2)
    plant.wait(plant.limits.key_grace_s + 0.1)
    rotated = changes(plant, "bob")[-1]
    assert ([each.key_id for each in rotated.keys], rotated.active_key_id) == ([2], 2)
    assert rotated == changes(plant, "feed")[-1]
    assert not changes(plant, "alice")


@pytest.mark.spec("AUTH-1")
def test_who_may_not_listen_to_the_groups_gets_no_keys() -> None:
    plant = Plant()
    plant.register(sealed=True)
    (part,) = plant.subscribe("carol", "md.us.eq.AAPL.quote").streams
    assert part.authentication is None
    (scope,) = plant.core.authenticate(plant.caller("carol"), plant.now_ns).scopes
    assert scope.scope == PUBLISHERS


@pytest.mark.spec("AUTH-1")
def test_filters_get_the_keys_of_all_feeds_also_of_those_that_come_later() -> None:
    plant = Plant()
    text = plant.core.policy.text.replace("[clients.carol]", '[clients.carol]\nroles = ["filter"]')
    plant.set_policy(Policy.parse(text))
    assert [each.scope for each in plant.core.authenticate(plant.caller("carol"), plant.now_ns).scopes] == [PUBLISHERS]
    plant.register(epoch=3)
    (told,) = changes(plant, "carol")
    assert (told.scope, vouched(told)) == ("itch", {11: (3, 3 + EPOCHS_AHEAD)})
    plant.register(epoch=4)
    assert vouched(changes(plant, "carol")[-1]) == {11: (4, 4 + EPOCHS_AHEAD)}


def test_what_a_node_was_told_is_kept_for_its_next_start(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "state" / "authentication.json"
    told = Plant().register().authentication
    assert told is not None
    heard: list[object] = []
    state = AuthenticationState(path, heard.append)
    state.renew([told])
    state.note(told)  # nothing new
    assert heard == [[scope_of(told)]]
    assert path.stat().st_mode & 0o777 == 0o600
    again: list[object] = []
    assert AuthenticationState(path, again.append).scopes == [scope_of(told)]
    assert again == heard


def test_a_scope_names_each_key_and_publisher_once() -> None:
    told = Plant().register().authentication
    assert told is not None
    twice = Authentication(
        scope=told.scope,
        keys=told.keys * 2,
        active_key_id=told.active_key_id,
        publishers=[*told.publishers, Vouched(publisher_id=11, epoch_first=9, epoch_last=9)],
    )
    scope = scope_of(twice)
    assert len(scope.keys) == 1
    assert [(each.publisher_id, each.epoch_first) for each in scope.publishers] == [(11, 9)]
    assert len(scope.keys[0].key) == 16
    assert "hidden" in repr(scope)
