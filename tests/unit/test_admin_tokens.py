"""Issued tokens, keys and event numbers after cancel, modify, restart and failover."""

import msgspec
import pytest

from admin_kit import policy_text
from admin_plant import NOW_NS, Plant
from penstock.admin import AdminLimits
from penstock.admin.core.issued import ISSUED_MAX
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import LimitError, NotEntitledError, RevokedError, TokenError
from penstock.security import Policy, PrivateKey
from penstock.security.core.brokering import GenerationChanged, Revoked
from penstock.security.core.token import TOKEN_SIZE_MAX
from penstock.security.live.gate import TokenGate


@pytest.mark.spec("ADM-5")
def test_tokens_of_a_cancelled_subscription_are_refused_until_they_expire() -> None:
    plant = Plant()
    plant.register()
    answer = plant.subscribe("alice", "md.us.>")
    plant.cancel("alice")
    told = plant.events("feed")[-1]
    assert isinstance(told, Revoked)
    assert (told.subscription_id, told.until_ns) == ("s1", answer.expires_ns)
    assert plant.events("alice") == []
    assert plant.register().revoked == [told]  # an adapter that was disconnected
    with pytest.raises(RevokedError):
        plant.subscribe("alice", "md.us.>")  # the id is not reused
    plant.wait(700)
    assert not plant.core.state.revoked


def test_the_number_of_cancelled_subscriptions_is_bounded() -> None:
    plant = Plant(AdminLimits(client_ended_max=2))
    for name in ("1", "2"):
        plant.subscribe("alice", "md.us.>", name=name)
        plant.cancel("alice", name)
    with pytest.raises(LimitError, match="ended 2"):
        plant.subscribe("alice", "md.us.>", name="3")
    plant.subscribe("bob", "md.us.>", name="3")
    plant.wait(700)
    plant.subscribe("alice", "md.us.>", name="4")


@pytest.mark.spec("ADM-5")
def test_modifying_a_subscription_first_does_not_evade_a_revocation() -> None:
    plant = Plant()
    plant.subscribe("alice", "md.us.eq.>")
    plant.modify("alice", "md.us.fut.>")
    plant.modify("alice", "md.us.opt.>")
    assert plant.revoke("alice", "md.us.eq.ZZ*.>") == ["s1"]


@pytest.mark.spec("ADM-5")
def test_an_older_token_is_valid_only_until_it_expires() -> None:
    plant = Plant()
    plant.subscribe("alice", "md.us.eq.>")
    plant.modify("alice", "md.us.fut.>")
    plant.wait(500)
    plant.core.renew(plant.caller("alice"), "s1", plant.now_ns)
    plant.wait(131)
    assert plant.revoke("alice", "md.us.eq.>") == []
    plant.modify("alice", "md.us.opt.>")
    assert len(plant.core.state.subscriptions["s1"].issued) == 1
    plant.modify("alice", "md.us.>")  # gives up the rest of the subscription
    assert not [each for each in plant.core.state.subscriptions["s1"].issued if "eq" in str(each.grants)]


@pytest.mark.spec("ADM-5")
def test_many_modifications_need_little_memory() -> None:
    plant = Plant()
    for number in range(5 * ISSUED_MAX):
        plant.subscribe("alice", f"md.us.eq.S{number}")
    assert len(plant.core.state.subscriptions["s1"].issued) == ISSUED_MAX
    again = plant.again(plant.now_ns)
    assert again.revoke("alice", "md.us.eq.X*") == []
    assert again.revoke("alice", "md.us.eq.S0") == ["s1"]


@pytest.mark.spec("ADM-3")
def test_a_token_that_no_reader_would_accept_is_refused_before_anything_changes() -> None:
    plant = Plant()
    plant.register()
    before = plant.subscribe("alice", "md.us.eq.>").grants
    plant.core.state.take_changes()
    topics = [f"md.us.eq.{number:019}" for number in range(2_000)]
    assert sum(map(len, topics)) < TOKEN_SIZE_MAX
    with pytest.raises(LimitError, match="fewer topics"):
        plant.subscribe("alice", *topics)
    assert plant.core.state.take_changes() == []
    assert plant.core.renew(plant.caller("alice"), "s1", plant.now_ns).grants == before


def test_the_topics_of_a_request_are_bounded_in_total() -> None:
    topics = [f"fx.{'x' * 200}.{number}" for number in range(400)]
    with pytest.raises(LimitError, match="65536"):
        Plant().subscribe("alice", *topics)
    with pytest.raises(NotEntitledError):
        Plant().subscribe("alice", *topics[:100])


# After a restart or a failover


@pytest.mark.spec("ADM-7", "ADM-8")
@pytest.mark.parametrize("is_promoted", [False, True])
def test_credentials_that_expired_while_the_server_was_down_replace_the_key(is_promoted: bool) -> None:
    plant = Plant()
    text = policy_text().replace("[clients.bob]\n", "[clients.bob]\nexpires = 2023-11-14T22:14:20Z\n")
    plant.set_policy(Policy.parse(text))
    plant.register(sealed=True)
    plant.subscribe("bob", "md.us.>")
    again = plant.again(NOW_NS + 61 * NS_PER_SECOND)
    if is_promoted:
        again.core.promote("the test says so", again.now_ns)
    else:
        again.core.begin(again.now_ns)
    assert "s1" in again.core.state.revoked
    assert again.core.feeds.keys("itch")[-1].holders == ("feed",)


@pytest.mark.spec("ADM-8")
def test_readers_of_events_learn_that_a_new_primary_may_lack_events() -> None:
    plant = Plant()
    plant.register()
    plant.subscribe("alice", "md.us.>")
    standby = plant.again(NOW_NS)
    plant.subscribe("alice", "md.us.>", name="s2")  # an event that the standby did not receive
    ahead = plant.core.events(plant.caller("feed"), 1).next_after
    standby.core.promote("the test says so", NOW_NS)
    number = standby.core.state.meta.event_floor
    assert number > ahead + 1_000_000
    for server in (standby, standby.again(NOW_NS)):
        for after in (0, 1, ahead, number - 1):
            answer = server.core.events(server.caller("feed"), after)
            assert not answer.is_complete
            assert isinstance(answer.events[-1].body, GenerationChanged)
            assert server.core.events(server.caller("feed"), answer.next_after).is_complete
            assert not server.core.events(server.caller("alice"), after).is_complete
        assert server.core.events(server.caller("feed"), number).is_complete
        answer = server.core.events(server.caller("feed"), answer.next_after + 5)  # an event of the lost primary
        assert not answer.is_complete
        assert answer.next_after == server.core.state.meta.event_number


# Filters


@pytest.mark.spec("ADM-7", "ADM-8")
def test_a_filter_checks_tokens_itself_and_receives_revocations() -> None:
    plant = Plant()
    brokered = plant.subscribe("alice", "md.us.>")
    plant.subscribe("bob", "md.us.>", name="s2")
    plant.revoke("bob")
    known = plant.core.verification()
    assert [each.subscription_id for each in known.revoked] == ["s2"]
    gate = TokenGate(None)
    with pytest.raises(TokenError):
        gate.verify(brokered.token, plant.now_ns)
    gate.renew(known)
    assert gate.verify(brokered.token, plant.now_ns).subject == "alice"
    plant.revoke("alice", reason="left the firm")
    (event,) = plant.events("filter", known.events_after)
    assert isinstance(event, Revoked)
    gate.note(event)
    with pytest.raises(RevokedError, match="left the firm"):
        gate.verify(brokered.token, plant.now_ns)
    plant.core.promote("the test says so", plant.now_ns)
    assert plant.events("filter")[-1] == GenerationChanged(generation=2, since_ns=plant.now_ns)


@pytest.mark.spec("AUTH-6")
def test_a_replaced_server_with_other_token_keys_does_not_make_revoked_tokens_valid(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plant = Plant()
    brokered = plant.subscribe("alice", "md.us.>")
    replaced = msgspec.structs.replace(
        plant.core.verification(), token_keys=[PrivateKey(bytes(range(1, 33))).public.text]
    )
    plant.core.promote("the test says so", plant.now_ns)
    plant.revoke("alice", reason="left the firm")
    known = plant.core.verification()
    gate = TokenGate(None)
    gate.renew(known)
    gate.renew(replaced)
    assert "promote it until its generation is not lower" in caplog.records[-1].fields["hint"]  # type: ignore[attr-defined]
    assert gate.state is not None
    assert (gate.state.token_keys, gate.state.generation) == (known.token_keys, known.generation)
    with pytest.raises(RevokedError, match="left the firm"):
        gate.verify(brokered.token, plant.now_ns)
    # the server's own key was replaced in the same generation: the new key is used, and revocations are kept
    gate.renew(msgspec.structs.replace(known, token_keys=replaced.token_keys, revoked=[]))
    assert gate.state.token_keys == replaced.token_keys
    assert [each.subscription_id for each in gate.state.revoked] == ["s1"]


@pytest.mark.spec("AUTH-6")
def test_an_older_revocation_event_does_not_shorten_a_newer_one() -> None:
    plant = Plant()
    gate = TokenGate(None)
    gate.renew(plant.core.verification())
    for until_ns in (5, 3):
        gate.note(Revoked(subscription_id="s1", client="alice", reason="left", until_ns=until_ns))
    assert gate.state is not None
    assert [each.until_ns for each in gate.state.revoked] == [5]


@pytest.mark.spec("AUTH-6")
def test_an_older_answer_shortens_no_revocation_and_restores_no_dropped_one() -> None:
    known = Plant().core.verification()
    gate = TokenGate(None)
    for until_ns in (5, 3):
        revoked = Revoked(subscription_id="s1", client="alice", reason="left", until_ns=until_ns)
        gate.renew(msgspec.structs.replace(known, revoked=[revoked]))
    assert gate.state is not None
    assert [each.until_ns for each in gate.state.revoked] == [5]
    gate.learn(msgspec.structs.replace(gate.state, refused_through_ns=7), 0)
    gate.renew(known)
    assert gate.state.refused_through_ns == 7
