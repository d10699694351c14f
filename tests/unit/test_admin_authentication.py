"""The administration server and packet authentication: key holders, valid epochs and key rotation."""

from pathlib import Path

import msgspec
import pytest

from admin_plant import NOW_NS, Plant
from penstock.admin.core.authentication import EPOCHS_AHEAD
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ForbiddenError, LocalProtocolError, NotEntitledError, RequestError
from penstock.security import Policy
from penstock.security.core.authentication import PUBLISHERS, is_older, scope_of
from penstock.security.core.brokering import (
    Authentication,
    AuthenticationChanged,
    PublisherRequest,
    StreamMoved,
    Vouched,
)
from penstock.security.live.authentication_state import AuthenticationState
from penstock.wire import Authenticator, Packer


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
    assert stream.authentication is not None
    assert msgspec.structs.replace(stream.authentication, number=registered.number) == registered
    assert (registered.scope, [each.key_id for each in registered.keys], registered.active_key_id) == ("itch", [1], 1)
    assert vouched(registered) == {11: (5, 5 + EPOCHS_AHEAD)}
    assert plant.register(epoch=6).authentication.publishers[0].epoch_first == 6  # type: ignore[union-attr]


@pytest.mark.spec("AUTH-2")
def test_epochs_do_not_decrease_and_publisher_ids_are_not_shared() -> None:
    plant = Plant()
    plant.register(epoch=5)
    with pytest.raises(RequestError, match="epoch 4 is before the last one of itch/a, 5"):
        plant.register(epoch=4)
    with pytest.raises(ForbiddenError, match="publisher id 11 is that of itch/a"):
        plant.register(adapter="b", index=1, publisher_id=11)


@pytest.mark.spec("AUTH-2")
def test_publishers_that_clients_claimed_stay_valid_after_a_takeover() -> None:
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
    assert last > claimed.epoch + 1_024  # the previous server may have issued ids that this server does not know


@pytest.mark.spec("AUTH-1")
def test_a_holder_that_loses_its_right_has_keys_that_soon_become_invalid() -> None:
    plant = Plant()
    plant.register()
    plant.subscribe("alice", "md.us.eq.>")
    plant.subscribe("bob", "md.us.eq.>", name="s2")
    plant.revoke("alice")
    (pending,) = changes(plant, "bob")
    assert ([each.key_id for each in pending.keys], pending.active_key_id) == ([1, 2], 1)
    (taken,) = changes(plant, "alice")
    assert (taken.scope, taken.keys, taken.publishers) == ("itch", [], [])
    plant.confirm("feed")
    plant.wait(plant.limits.key_grace_s + 0.1)
    active = changes(plant, "feed")[-1]
    assert ([each.key_id for each in active.keys], active.active_key_id) == ([1, 2], 2)
    plant.confirm("feed")
    plant.wait(plant.limits.key_grace_s + 0.1)
    rotated = changes(plant, "bob")[-1]
    assert ([each.key_id for each in rotated.keys], rotated.active_key_id) == ([2], 2)
    assert rotated == changes(plant, "feed")[-1]
    assert changes(plant, "alice") == [taken]


def accepts(told: Authentication, recorded: bytes) -> bool:
    """True if a receiver that starts with these keys accepts the datagram."""
    return Authenticator([scope_of(told)]).check(recorded, ("10.0.0.66", 6_666)) is not None


def wait_beating(plant: Plant, seconds: int, *adapters: str) -> None:
    for _ in range(seconds):
        for each in adapters:
            plant.beat(each)
        plant.wait(1)


@pytest.mark.spec("AUTH-1", "AUTH-4")
@pytest.mark.parametrize("has_another", [True, False])
def test_recorded_packets_of_a_silent_adapter_are_refused_by_a_fresh_receiver(has_another: bool) -> None:
    plant = Plant()
    registered = plant.register(epoch=5).authentication
    assert registered is not None
    others = ("b",) if has_another else ()
    if has_another:
        plant.register(adapter="b", index=1, publisher_id=12, epoch=1)
    packer = Packer(11, 7, 5)
    packer.add("md.us.eq.AAPL.quote", b"an old price")
    packet = packer.flush() or b""
    recorded = packet + Authenticator([scope_of(registered)]).trailer(packet)

    def fresh() -> Authentication:
        """The keys and epochs that a newly started filter module gets."""
        scopes = plant.core.authenticate(plant.caller("filter"), plant.now_ns).scopes
        (told,) = (each for each in scopes if each.scope == "itch")
        return told

    limits = plant.limits
    limit_s = 6 * limits.adapter_lost_s if has_another else limits.key_lease_s
    wait_beating(plant, int(limit_s) - 1, *others)
    assert accepts(fresh(), recorded)
    wait_beating(plant, int(2 * limits.key_rotation_s) + 4, *others)
    rotated = fresh()
    assert not accepts(rotated, recorded)
    assert vouched(rotated)[11][0] == 5, "packets of the adapter are accepted again after it received the new key"
    wait_beating(plant, int(2 * limit_s), *others)
    assert fresh().active_key_id == rotated.active_key_id, "the keys are replaced once per silence"
    again = plant.register(epoch=6).authentication
    assert again is not None
    assert again.active_key_id == rotated.active_key_id
    wait_beating(plant, int(limit_s + 2 * limits.key_rotation_s) + 4, *others)
    assert fresh().active_key_id > rotated.active_key_id, "and once more for the next silence"


@pytest.mark.spec("AUTH-2")
def test_holders_that_poll_for_events_learn_of_a_claimed_publisher() -> None:
    plant = Plant()
    for name in ("alice", "bob"):
        plant.core.authenticate(plant.caller(name), plant.now_ns)
        plant.confirm(name)
    plant.core.claim_publisher(plant.caller("feed"), PublisherRequest(name="quotes"), plant.now_ns)
    number = plant.core.state.meta.event_number

    def unaware() -> list[str]:
        return plant.core.authentication.unaware(PUBLISHERS, number, plant.now_ns)

    assert unaware() == ["alice", "bob"]
    for name, left in (("alice", ["bob"]), ("bob", [])):
        answer = plant.core.events(plant.caller(name), 0)
        plant.core.readers.begin(name, name, answer.next_after, plant.now_ns)
        assert unaware() == left


def keys_of(told: Authentication) -> tuple[list[int], int]:
    return [each.key_id for each in told.keys], told.active_key_id


def rotating() -> Plant:
    """Alice has lost her right, and key 2 is pending."""
    plant = Plant()
    plant.register()
    plant.subscribe("alice", "md.us.eq.>")
    plant.subscribe("bob", "md.us.eq.>", name="s2")
    plant.confirm("feed")
    plant.revoke("alice")
    return plant


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize("late", ["feed", "bob"])
def test_a_new_key_waits_for_holders_that_have_not_confirmed_it(late: str) -> None:
    plant = rotating()
    plant.core.readers.begin(late, "its only session", 0, plant.now_ns)  # the poll for events is not answered yet
    for _ in range(3):
        plant.wait(3)
        plant.beat(key_ids=())
        plant.confirm("feed", "another process")
        assert keys_of(changes(plant, "bob")[-1]) == ([1, 2], 1)
    plant.wait(1)  # key_rotation_s
    assert keys_of(changes(plant, "bob")[-1]) == ([1, 2], 2)
    for _ in range(3):
        plant.wait(3)
        assert keys_of(changes(plant, "bob")[-1]) == ([1, 2], 2)
    plant.wait(1)
    assert keys_of(changes(plant, "bob")[-1]) == ([2], 2)


@pytest.mark.spec("AUTH-1")
def test_an_adapter_that_never_polls_for_events_delays_a_key_and_does_not_block_it() -> None:
    plant = Plant()
    plant.register()
    plant.subscribe("alice", "md.us.eq.>")
    plant.revoke("alice")
    plant.wait(9.9)
    assert keys_of(changes(plant, "feed")[-1]) == ([1, 2], 1)
    plant.wait(0.1)
    assert keys_of(changes(plant, "feed")[-1]) == ([1, 2], 2)


@pytest.mark.spec("AUTH-1")
def test_a_reader_that_has_left_delays_no_key() -> None:
    plant = rotating()
    reader = plant.core.readers.begin("bob", "bob", 0, plant.now_ns)
    plant.core.readers.end(reader, plant.now_ns, is_gone=True)
    plant.confirm("feed")
    plant.wait(1.1)
    assert keys_of(changes(plant, "bob")[-1]) == ([1, 2], 2)


@pytest.mark.spec("AUTH-1", "AUTH-2")
def test_a_reader_that_logs_in_again_stays_the_same_reader() -> None:
    plant = Plant()
    plant.core.authenticate(plant.caller("bob"), plant.now_ns)
    plant.confirm("bob", "former")
    plant.core.claim_publisher(plant.caller("feed"), PublisherRequest(name="quotes"), plant.now_ns)
    number, readers = plant.core.state.meta.event_number, plant.core.readers
    open_request = readers.begin("bob", "former", number - 1, plant.now_ns)
    readers.change_session("bob", "former", "new")
    assert readers.behind(["bob"], number, plant.now_ns) == ["bob"]
    readers.end(open_request, plant.now_ns)
    readers.end(readers.begin("bob", "new", number, plant.now_ns), plant.now_ns)
    assert readers.behind(["bob"], number, plant.now_ns) == []
    plant.now_ns += 10 * NS_PER_SECOND + 1  # adapter_lost_s: the reader is forgotten
    assert readers.behind(["bob"], number + 1, plant.now_ns) == []


@pytest.mark.spec("AUTH-1", "AUTH-2")
@pytest.mark.parametrize(("client", "former"), [("alice", "of bob"), ("bob", "unknown")])
def test_a_login_does_not_affect_readers_of_other_clients_or_sessions(client: str, former: str) -> None:
    plant = Plant()
    plant.confirm("bob", "of bob")
    plant.core.readers.change_session(client, former, "new")
    plant.core.readers.begin(client, "new", 1_000, plant.now_ns)
    assert plant.core.readers.behind(["bob"], 1_000, plant.now_ns) == ["bob"]


@pytest.mark.spec("AUTH-1", "AUTH-6")
def test_repeated_revocations_do_not_postpone_the_new_key() -> None:
    plant = Plant()
    plant.register()
    for name in ("alice", "bob", "carol"):
        plant.subscribe(name, "md.us.eq.AAPL.quote", name=name)
    plant.revoke("alice")
    plant.wait(6)
    plant.revoke("bob")
    plant.wait(4)
    assert keys_of(changes(plant, "feed")[-1]) == ([1, 3], 3)


@pytest.mark.spec("AUTH-1")
def test_a_rotation_continues_by_its_age_after_a_restart() -> None:
    again = rotating().again(NOW_NS + 2 * NS_PER_SECOND)
    again.wait(7.9)
    assert keys_of(changes(again, "bob")[-1]) == ([1, 2], 1)  # no holder has confirmed the key to this server
    again.wait(0.1)
    assert keys_of(changes(again, "bob")[-1]) == ([1, 2], 2)
    confirmed = rotating().again(NOW_NS + 2 * NS_PER_SECOND)
    confirmed.confirm("feed")
    confirmed.wait(0)
    assert keys_of(changes(confirmed, "bob")[-1]) == ([1, 2], 2)


@pytest.mark.spec("AUTH-1", "AUTH-6")
def test_a_rotation_continues_after_the_clock_was_set_back() -> None:
    plant = rotating()
    plant.core.readers.end(plant.core.readers.begin("bob", "bob", 0, plant.now_ns), plant.now_ns)
    plant.now_ns -= 3_600 * NS_PER_SECOND
    plant.wait(0)
    plant.wait(9.9)
    assert keys_of(changes(plant, "feed")[-1]) == ([1, 2], 1)
    plant.wait(0.1)  # key_rotation_s
    assert keys_of(changes(plant, "feed")[-1]) == ([1, 2], 2)
    assert plant.core.readers.behind(["bob"], 1, plant.now_ns) == ["bob"]
    plant.now_ns -= 3_600 * NS_PER_SECOND
    plant.wait(0)
    plant.wait(10)
    assert keys_of(changes(plant, "feed")[-1]) == ([2], 2)
    assert plant.core.readers.behind(["bob"], 1, plant.now_ns + 1) == []  # no poll from the reader for adapter_lost_s
    assert [each.is_live for each in plant.core.adapter_statuses()] == [True]
    plant.wait(0.1)
    assert [each.is_live for each in plant.core.adapter_statuses()] == [False]


@pytest.mark.spec("AUTH-1")
def test_publishers_of_clients_are_waited_for_after_a_restart() -> None:
    plant = Plant()
    plant.core.authenticate(plant.caller("alice"), plant.now_ns)
    plant.core.claim_publisher(plant.caller("feed"), PublisherRequest(name="quotes"), plant.now_ns)
    plant.core.authenticate(plant.caller("feed"), plant.now_ns)
    text = plant.core.policy.text.replace("[clients.alice]", "[clients.alice]\nexpires = 2000-01-01T00:00:00Z")
    plant.set_policy(Policy.parse(text))
    again = plant.again(plant.now_ns)
    again.wait(9.9)
    assert keys_of(changes(again, "feed")[-1])[1] == 1
    again.confirm("feed")
    again.wait(0)
    assert keys_of(changes(again, "feed")[-1])[1] == 2


@pytest.mark.spec("AUTH-1")
def test_a_holder_without_a_right_to_all_of_a_grown_sealed_feed_causes_a_new_authentication_key() -> None:
    plant = Plant()
    plant.subscribe("alice", "md.us.eq.>")
    plant.register(sealed=True)
    (stream,) = plant.core.renew(plant.caller("alice"), "s1", plant.now_ns).streams
    assert stream.authentication is not None
    plant.register(sealed=True, topics=["md.us.eq.>", "derived.>"])
    plant.confirm("feed")
    plant.wait(plant.limits.key_grace_s)
    assert keys_of(changes(plant, "feed")[-1]) == ([1, 2], 2)
    assert [keys_of(each) for each in changes(plant, "alice")] == [([], 0)]


def older_and_newer() -> tuple[Authentication, Authentication]:
    plant = rotating()
    older = changes(plant, "bob")[-1]
    plant.confirm("feed")
    plant.wait(1)
    newer = changes(plant, "bob")[-1]
    assert (older.active_key_id, newer.active_key_id) == (1, 2)
    return older, newer


@pytest.mark.spec("AUTH-1", "AUTH-6")
def test_a_node_never_applies_an_older_state() -> None:
    older, newer = older_and_newer()
    state = AuthenticationState(None, lambda scopes: None)
    state.note(newer)
    state.note(older)
    assert state.scopes == [scope_of(newer)]
    state.renew([older])
    assert state.scopes == [scope_of(newer)]
    state.renew([msgspec.structs.replace(older, scope="another feed")])
    assert {each.name for each in state.scopes} == {"itch", "another feed"}
    state.renew([newer])
    assert state.scopes == [scope_of(newer)]


def test_the_state_of_a_new_server_with_another_signing_key_is_applied() -> None:
    older, newer = older_and_newer()
    state = AuthenticationState(None, lambda scopes: None)
    state.note(newer)
    anew = msgspec.structs.replace(older, issuer="another one")
    state.renew([anew])
    assert state.scopes == [scope_of(anew)]


@pytest.mark.spec("AUTH-2")
def test_answers_from_before_and_after_a_registration_are_distinguished() -> None:
    plant = Plant()
    plant.register()
    before = plant.subscribe("alice", "md.us.eq.>").streams[0].authentication
    plant.register(adapter="b", index=1, publisher_id=12)
    (moved,) = [each for each in plant.events("alice") if isinstance(each, StreamMoved)]
    after = moved.streams[0].authentication
    assert before is not None
    assert after is not None
    assert set(vouched(after)) == {11, 12}
    assert is_older(before, after)


def test_a_server_that_takes_over_numbers_its_keys_beyond_those_of_its_predecessor() -> None:
    plant = rotating()
    plant.core.promote("a test", plant.now_ns)
    plant.revoke("bob")
    assert keys_of(changes(plant, "feed")[-1])[0][-1] > 1_024


@pytest.mark.spec("AUTH-1")
def test_a_client_without_the_right_to_multicast_gets_no_keys() -> None:
    plant = Plant()
    plant.register(sealed=True)
    (part,) = plant.subscribe("carol", "md.us.eq.AAPL.quote").streams
    assert part.authentication is None
    (scope,) = plant.core.authenticate(plant.caller("carol"), plant.now_ns).scopes
    assert scope.scope == PUBLISHERS


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize("client", ["root", "dora"])
def test_a_client_without_a_live_grant_gets_no_keys_of_publishers(client: str) -> None:
    plant = Plant()
    plant.core.claim_publisher(plant.caller("quill"), PublisherRequest(name="quotes"), plant.now_ns)
    with pytest.raises(NotEntitledError, match=f"{client} may not check packets of publishers"):
        plant.core.authenticate(plant.caller(client), plant.now_ns)
    for entitled in ("alice", "quill", "feed", "filter"):
        assert plant.core.authenticate(plant.caller(entitled), plant.now_ns).scopes[0].keys


@pytest.mark.spec("AUTH-6")
@pytest.mark.parametrize("client", ["alice", "quill"])
def test_a_client_whose_grants_are_all_withdrawn_loses_the_keys_of_publishers(client: str) -> None:
    plant = Plant()
    for each in ("alice", "bob", "quill"):
        plant.core.authenticate(plant.caller(each), plant.now_ns)
    plant.revoke(client)
    (taken,) = changes(plant, client)
    assert (taken.scope, taken.keys, taken.publishers) == (PUBLISHERS, [], [])
    assert [each.key_id for each in changes(plant, "bob")[-1].keys] == [1, 2]
    with pytest.raises(NotEntitledError):
        plant.core.authenticate(plant.caller(client), plant.now_ns)


@pytest.mark.spec("AUTH-1")
def test_filters_get_the_keys_of_all_feeds_including_later_feeds() -> None:
    plant = Plant()
    text = plant.core.policy.text.replace("[clients.carol]", '[clients.carol]\nroles = ["filter"]')
    plant.set_policy(Policy.parse(text))
    assert [each.scope for each in plant.core.authenticate(plant.caller("carol"), plant.now_ns).scopes] == [PUBLISHERS]
    plant.register(epoch=3)
    (told,) = changes(plant, "carol")
    assert (told.scope, vouched(told)) == ("itch", {11: (3, 3 + EPOCHS_AHEAD)})
    plant.register(epoch=4)
    assert vouched(changes(plant, "carol")[-1]) == {11: (4, 4 + EPOCHS_AHEAD)}


@pytest.mark.spec("AUTH-1")
def test_a_filter_with_the_credentials_of_an_adapter_gets_the_keys_of_its_feed() -> None:
    plant = Plant()
    plant.set_policy(Policy.parse(plant.core.policy.text.replace('["adapter"]', '["adapter", "filter"]')))
    plant.core.authenticate(plant.caller("feed"), plant.now_ns)
    plant.register(epoch=3)
    (told,) = changes(plant, "feed")
    assert (told.scope, vouched(told)) == ("itch", {11: (3, 3 + EPOCHS_AHEAD)})


def test_a_node_stores_the_state_that_it_received_for_its_next_start(tmp_path: Path) -> None:
    path = tmp_path / "state" / "authentication.json"
    told = Plant().register().authentication
    assert told is not None
    heard: list[object] = []
    state = AuthenticationState(path, heard.append)
    state.renew([told])
    state.note(told)  # no change
    assert heard == [[scope_of(told)]]
    assert path.stat().st_mode & 0o777 == 0o600
    again: list[object] = []
    assert AuthenticationState(path, again.append).scopes == [scope_of(told)]
    assert again == heard


@pytest.mark.spec("AUTH-2")
def test_an_adapter_may_use_an_id_that_its_client_claimed() -> None:
    plant = Plant()
    plant.core.authenticate(plant.caller("filter"), plant.now_ns)
    claimed = plant.core.claim_publisher(plant.caller("feed"), PublisherRequest(name="x"), plant.now_ns).publisher_id
    plant.register(publisher_id=claimed)
    in_publishers, left, in_feed = changes(plant, "filter")
    assert [(each.scope, list(vouched(each))) for each in (in_publishers, left, in_feed)] == [
        (PUBLISHERS, [claimed]),
        (PUBLISHERS, []),
        ("itch", [claimed]),
    ]
    authenticator = Authenticator()
    state = AuthenticationState(None, authenticator.use)
    state.renew([in_publishers])
    state.note(in_feed)
    assert [(each.name, len(each.publishers)) for each in state.scopes] == [(PUBLISHERS, 0), ("itch", 1)]
    state.note(left)
    assert [(each.name, len(each.publishers)) for each in state.scopes] == [(PUBLISHERS, 0), ("itch", 1)]


def with_one_key_id_in_two_scopes() -> tuple[Authentication, Authentication]:
    told = Plant().register().authentication
    assert told is not None
    return told, msgspec.structs.replace(told, scope="another feed", publishers=[])


def test_a_state_that_cannot_be_applied_is_not_stored(tmp_path: Path) -> None:
    path = tmp_path / "authentication.json"
    good, bad = with_one_key_id_in_two_scopes()
    state = AuthenticationState(path, Authenticator().use)
    state.note(good)
    with pytest.raises(LocalProtocolError, match="duplicate authentication key id 1"):
        state.note(bad)
    assert state.scopes == AuthenticationState(path, Authenticator().use).scopes == [scope_of(good)]
    newer = msgspec.structs.replace(good, number=good.number + 1, active_key_id=0)
    state.note(newer)
    assert state.scopes == [scope_of(newer)]


@pytest.mark.parametrize("data", [b"{", msgspec.json.encode(with_one_key_id_in_two_scopes())])
def test_a_node_starts_without_keys_if_its_file_cannot_be_used(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "authentication.json"
    path.write_bytes(data)
    path.chmod(0o600)
    state = AuthenticationState(path, Authenticator().use)
    assert state.scopes == []
    good, _ = with_one_key_id_in_two_scopes()
    state.renew([good])
    assert AuthenticationState(path, Authenticator().use).scopes == [scope_of(good)]


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


@pytest.mark.spec("AUTH-6")
def test_a_filter_module_that_loses_its_role_is_told_to_drop_the_keys() -> None:
    plant = Plant()
    plant.register()
    scopes = plant.core.authenticate(plant.caller("filter"), plant.now_ns).scopes
    state = AuthenticationState(None, lambda scopes: None)
    state.renew(scopes)
    plant.set_policy(Policy.parse(plant.core.policy.text.replace('roles = ["filter"]', "roles = []")))
    for each in changes(plant, "filter"):  # immediately, before the rotation ends
        state.note(each)
    keys = {each.name: [key.key_id for key in each.keys] for each in state.scopes}
    assert keys["itch"] == []
    assert keys[PUBLISHERS] == []
