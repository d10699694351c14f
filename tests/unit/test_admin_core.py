"""The decisions of the administration server, without network, disk or clock."""

import msgspec
import pytest

from admin_kit import KEYS, RULES, credentials, policy_text, registration
from admin_plant import KEY, LIMITS, NOW_NS, Plant, random_numbers
from penstock.admin import AdminLimits, Caller
from penstock.admin.core.logins import LoginChallenges
from penstock.admin.core.state import Stored
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import (
    AuthenticationError,
    ConfigurationError,
    CredentialsExpiredError,
    ForbiddenError,
    LimitError,
    NotEntitledError,
    NotFoundError,
    RateLimitedError,
    RequestError,
    RevokedError,
    SealError,
    SealKeyError,
    TokenError,
    TokenExpiredError,
    TopicError,
)
from penstock.security import Entitlement, Policy, TokenVerifier
from penstock.security.core.brokering import (
    AuthenticationChanged,
    Brokered,
    Challenge,
    EventBody,
    KeysChanged,
    LoginRequest,
    ModifyRequest,
    Revoked,
    StreamMoved,
    SubscriptionBrokered,
    SubscriptionCancelled,
    SubscriptionChanged,
)
from penstock.security.core.operating import RestoreRequest
from penstock.security.core.proof import UNBOUND
from penstock.security.core.sealing import Opener, Sealer, StreamKey, StreamKeyRing
from penstock.wire import Seal

NONCE = bytes(range(32))

# Logging in


def login(
    challenges: LoginChallenges, policy: Policy, name: str, *, later_s: float = 0.0, address: str = "a"
) -> object:
    challenge = challenges.challenge(policy, name, address, NOW_NS)
    who = credentials(name if name in (*KEYS, "alice", "bob", "dora", "old") else "alice")
    proof = who.answer(challenge, NONCE).proof
    request = LoginRequest(client=name, challenge=challenge.challenge, nonce=NONCE, binding=UNBOUND, proof=proof)
    client, _ = challenges.login(policy, request, address, NOW_NS + int(later_s * NS_PER_SECOND))
    return client


def answered(challenge: Challenge, name: str = "alice", binding: bytes = UNBOUND) -> LoginRequest:
    """A login of alice with the credentials of this name."""
    proof = credentials(name).answer(challenge, NONCE, binding).proof
    return LoginRequest(client="alice", challenge=challenge.challenge, nonce=NONCE, binding=binding, proof=proof)


@pytest.mark.spec("ADM-1")
def test_a_login_is_bound_to_the_certificate_that_the_client_saw() -> None:
    policy = Policy.parse(policy_text())
    ours, theirs = b"o" * 32, b"t" * 32
    challenges = LoginChallenges(LIMITS, KEY, random_numbers(), ours)
    challenge = challenges.challenge(policy, "alice", "a", NOW_NS)
    with pytest.raises(AuthenticationError, match="another certificate"):
        challenges.login(policy, answered(challenge, binding=theirs), "a", NOW_NS)
    challenge = challenges.challenge(policy, "alice", "a", NOW_NS)
    relayed = msgspec.structs.replace(answered(challenge, binding=theirs), binding=ours)
    with pytest.raises(AuthenticationError, match="unknown client, or"):
        challenges.login(policy, relayed, "a", NOW_NS)
    challenge = challenges.challenge(policy, "alice", "a", NOW_NS)
    answer = credentials("alice").answer(challenge, NONCE, ours)
    client, proof = challenges.login(policy, answered(challenge, binding=ours), "a", NOW_NS)
    answer.check_server(proof)
    assert client.name == "alice"


@pytest.mark.spec("ADM-1")
def test_a_secret_and_a_key_are_each_enough_to_log_in() -> None:
    policy = Policy.parse(policy_text())
    challenges = LoginChallenges(LIMITS, KEY, random_numbers())
    assert login(challenges, policy, "alice") == policy.clients["alice"]
    assert login(challenges, policy, "carol") == policy.clients["carol"]


@pytest.mark.spec("ADM-1")
def test_wrong_expired_and_replayed_credentials_are_refused() -> None:
    policy = Policy.parse(policy_text())
    challenges = LoginChallenges(LIMITS, KEY, random_numbers())
    with pytest.raises(CredentialsExpiredError):
        login(challenges, policy, "old")
    with pytest.raises(AuthenticationError, match="unknown client"):
        login(challenges, policy, "mallory")
    with pytest.raises(AuthenticationError, match="has expired"):
        login(challenges, policy, "alice", later_s=31)
    challenge = challenges.challenge(policy, "alice", "a", NOW_NS)
    wrong = answered(challenge, "bob")
    with pytest.raises(AuthenticationError, match="unknown client, or"):
        challenges.login(policy, wrong, "a", NOW_NS)
    right = answered(challenge, "alice")
    with pytest.raises(AuthenticationError, match="answered before"):
        challenges.login(policy, right, "a", NOW_NS)  # the wrong answer has used up the challenge
    challenge = challenges.challenge(policy, "alice", "a", NOW_NS)
    right = answered(challenge, "alice")
    challenges.login(policy, right, "a", NOW_NS)
    with pytest.raises(AuthenticationError, match="answered before"):
        challenges.login(policy, right, "a", NOW_NS)  # a replayed proof
    challenge = challenges.challenge(policy, "bob", "a", NOW_NS)
    stolen = answered(challenge, "alice")
    with pytest.raises(AuthenticationError, match="unknown"):
        challenges.login(policy, stolen, "a", NOW_NS)


@pytest.mark.spec("ADM-1")
def test_a_stranger_cannot_find_out_which_clients_exist() -> None:
    policy = Policy.parse(policy_text())
    servers = [LoginChallenges(LIMITS, KEY, random_numbers()) for _ in range(2)]
    salts = [challenges.challenge(policy, "mallory", "a", NOW_NS).salt for challenges in servers for _ in range(2)]
    assert len(set(salts)) == 1  # the same answer as for an existing client, also after a restart
    assert servers[0].challenge(policy, "marvin", "a", NOW_NS).salt != salts[0]


@pytest.mark.spec("ADM-1")
def test_repeated_failures_are_refused_for_a_limited_time() -> None:
    policy = Policy.parse(policy_text())
    limits = AdminLimits(failures_max=3, address_failures_max=5)
    challenges = LoginChallenges(limits, KEY, random_numbers())
    for _ in range(3):
        with pytest.raises(AuthenticationError):
            login(challenges, policy, "mallory")
    with pytest.raises(RateLimitedError) as caught:
        login(challenges, policy, "mallory")
    assert caught.value.retry_after_s == 60
    login(challenges, policy, "alice")  # another client
    for _ in range(2):
        with pytest.raises(AuthenticationError):
            login(challenges, policy, "marvin")
    with pytest.raises(RateLimitedError):
        login(challenges, policy, "bob")  # the limit of the address is reached
    login(challenges, policy, "bob", address="b")
    login(challenges, policy, "alice")  # failures from elsewhere do not lock out a client that has logged in before
    for _ in range(3):
        challenge = challenges.challenge(policy, "alice", "a", NOW_NS)
        wrong = answered(challenge, "bob")
        with pytest.raises(AuthenticationError):
            challenges.login(policy, wrong, "a", NOW_NS)
    with pytest.raises(RateLimitedError):
        login(challenges, policy, "alice")  # failures under its own name do
    challenges.challenge(policy, "mallory", "a", NOW_NS + 61 * NS_PER_SECOND)


def test_many_challenges_from_one_address_do_not_evict_those_of_others() -> None:
    policy = Policy.parse(policy_text())
    challenges = LoginChallenges(AdminLimits(challenges_max=50, address_challenges_max=5), KEY, random_numbers())
    challenge = challenges.challenge(policy, "alice", "a", NOW_NS)
    own = [challenges.challenge(policy, "alice", "b", NOW_NS) for _ in range(200)]
    for each, address in ((challenge, "a"), (own[-5], "b")):
        challenges.login(policy, answered(each), address, NOW_NS)
    with pytest.raises(AuthenticationError, match="unknown"):
        challenges.login(policy, answered(own[-6]), "b", NOW_NS)


def test_the_login_tables_are_bounded() -> None:
    policy = Policy.parse(policy_text())
    limits = AdminLimits(challenges_max=4, failure_entries_max=4, failures_max=1)
    challenges = LoginChallenges(limits, KEY, random_numbers())
    first = challenges.challenge(policy, "alice", "a", NOW_NS)
    for number in range(4):
        challenges.challenge(policy, "alice", f"{number}", NOW_NS)
    right = answered(first)
    with pytest.raises(AuthenticationError, match="unknown"):
        challenges.login(policy, right, "a", NOW_NS)
    for number in range(10):
        with pytest.raises(AuthenticationError):
            login(challenges, policy, "mallory", address=f"x{number}")
    login(challenges, policy, "alice", address="a")  # its failure was the oldest


@pytest.mark.spec("ADM-1")
def test_valid_and_invalid_session_tokens() -> None:
    plant = Plant()
    session = plant.core.open_session(plant.core.policy.clients["root"], "127.0.0.1", NOW_NS)
    assert plant.core.caller(session.token, "::1", NOW_NS) == Caller("root", frozenset({"administrator"}), "::1")
    with pytest.raises(TokenExpiredError):
        plant.core.caller(session.token, "", session.expires_ns)
    with pytest.raises(TokenError, match="stream token"):
        plant.core.caller(plant.subscribe("alice", "md.us.>").token, "", NOW_NS)


@pytest.mark.spec("ADM-1")
def test_a_session_ends_with_the_credentials_that_opened_it() -> None:
    plant = Plant()
    token = plant.core.open_session(plant.core.policy.clients["bob"], "", NOW_NS).token
    plant.set_policy(Policy.parse(policy_text(RULES + "\n")))
    assert plant.core.caller(token, "", NOW_NS).client == "bob"
    verifiers = [plant.core.policy.clients[name].verifier.text for name in ("bob", "alice")]
    plant.set_policy(Policy.parse(policy_text().replace(*verifiers)))
    with pytest.raises(TokenError, match="other credentials"):
        plant.core.caller(token, "", NOW_NS)
    plant.set_policy(
        Policy.parse(policy_text().replace("[clients.bob]\n", "[clients.bob]\nexpires = 2020-01-01T00:00:00Z\n"))
    )
    with pytest.raises(CredentialsExpiredError):
        plant.core.caller(token, "", NOW_NS)


# Subscriptions


@pytest.mark.spec("ADM-3")
def test_brokering_names_the_active_adapter_and_every_backup() -> None:
    plant = Plant()
    plant.register()
    plant.register(adapter="b", index=1, publisher_id=12, group="239.255.1.2", term=0x101)
    answer = plant.subscribe("alice", "md.us.eq.AAPL.>")
    (stream,) = answer.streams
    assert [(each.adapter, each.role, each.group) for each in stream.addresses] == [
        ("b", "active", "239.255.1.2"),
        ("a", "backup", "239.255.1.1"),
    ]
    assert stream.topics == ["md.us.eq.AAPL.>"]
    assert [each.id for each in stream.models] == [1]
    assert [each.stream_id for each in stream.source_streams] == [1]
    assert not stream.sealed
    assert not stream.keys
    token = TokenVerifier([KEY.public]).verify(answer.token, NOW_NS)  # no adapter is asked
    assert (token.subject, token.subscription_id, list(token.grants)) == ("alice", "s1", answer.grants)
    assert answer.expires_ns == NOW_NS + 600 * NS_PER_SECOND


@pytest.mark.spec("ADM-2")
@pytest.mark.parametrize("sealed", [False, True])
def test_a_delayed_grant_gets_neither_multicast_nor_keys(sealed: bool) -> None:
    plant = Plant()
    plant.register(sealed=sealed)
    answer = plant.subscribe("dora", "md.us.>")
    (stream,) = answer.streams
    (address,) = stream.addresses
    assert stream.delay_s == 900
    assert not stream.keys
    assert (address.transport, address.group, address.port, address.interface) == ("unicast", "", 0, "")
    assert (address.service_host, address.service_port) == ("127.0.0.1", 7_600)
    token = TokenVerifier([KEY.public]).verify(answer.token, NOW_NS)
    assert Entitlement(token.grants).receive_delay_s("md.us.eq.AAPL.quote") == 900


@pytest.mark.spec("ADM-2", "ADM-1")
def test_topics_without_a_grant_are_refused_by_name() -> None:
    plant = Plant()
    with pytest.raises(NotEntitledError, match="lets alice receive fx"):
        plant.subscribe("alice", "md.us.eq.>", "fx.>")
    with pytest.raises(NotEntitledError, match="lets carol receive"):
        plant.subscribe("carol", "md.us.eq.*.trade")
    with pytest.raises(NotEntitledError, match="lets alice send md"):
        plant.subscribe("alice", send=("md.us.eq.AAPL.quote",))
    assert not plant.core.state.subscriptions
    assert plant.subscribe("alice", send=("derived.desk.vwap",)).grants[0].action == "send"


@pytest.mark.parametrize(
    ("topics", "send", "error"),
    [
        ((), (), RequestError),
        (("!md.us.>",), (), RequestError),
        (("md..us",), (), TopicError),
        ((), ("!derived.>",), RequestError),
        ((), ("/x/",), TopicError),
    ],
)
def test_invalid_requests_are_refused(topics: tuple[str, ...], send: tuple[str, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        Plant().subscribe("alice", *topics, send=send)


@pytest.mark.spec("ADM-4")
def test_adapters_learn_of_brokered_changed_and_cancelled_subscriptions() -> None:
    plant = Plant()
    plant.register()
    plant.subscribe("alice", "md.us.eq.AAPL.>", send=("derived.desk.>",))
    plant.core.modify(plant.caller("alice"), "s1", ModifyRequest(topics=["md.us.eq.IBM.>"]), plant.now_ns)
    plant.core.cancel(plant.caller("alice"), "s1", plant.now_ns)
    registered, first, second, third, fourth = plant.events("feed")
    assert isinstance(registered, AuthenticationChanged)  # for other processes with the same credentials
    assert isinstance(first, SubscriptionBrokered)
    assert (first.client, first.topics, first.send) == ("alice", ["md.us.eq.AAPL.>"], ["derived.desk.>"])
    assert isinstance(second, SubscriptionBrokered)
    assert second.topics == ["md.us.eq.IBM.>"]
    assert third == SubscriptionCancelled(subscription_id="s1", client="alice")
    assert isinstance(fourth, Revoked)
    for action in (plant.core.renew, plant.core.cancel):
        with pytest.raises(RevokedError, match="cancelled"):
            action(plant.caller("alice"), "s1", plant.now_ns)


def test_a_client_cannot_change_the_subscription_of_another() -> None:
    plant = Plant()
    plant.subscribe("alice", "md.us.>")
    with pytest.raises(ForbiddenError):
        plant.subscribe("bob", "md.us.>")
    for action in (plant.core.renew, plant.core.cancel):
        with pytest.raises(NotFoundError):
            action(plant.caller("bob"), "s1", plant.now_ns)
    with pytest.raises(NotFoundError):
        plant.core.modify(plant.caller("bob"), "s1", ModifyRequest(topics=["md.us.>"]), plant.now_ns)


def test_the_number_of_subscriptions_is_bounded() -> None:
    plant = Plant(AdminLimits(client_subscriptions_max=2, subscriptions_max=3))
    plant.subscribe("alice", "md.us.>", name="1")
    plant.subscribe("alice", "md.us.>", name="2")
    plant.subscribe("alice", "md.us.eq.>", name="2")  # a repeated request replaces the subscription
    with pytest.raises(LimitError, match="alice has 2"):
        plant.subscribe("alice", "md.us.>", name="3")
    plant.subscribe("bob", "md.us.>", name="3")
    with pytest.raises(LimitError, match="3 subscriptions"):
        plant.subscribe("bob", "md.us.>", name="4")


def test_a_subscription_that_is_not_renewed_expires() -> None:
    plant = Plant()
    plant.register()
    plant.subscribe("alice", "md.us.>")
    plant.wait(500)
    plant.core.renew(plant.caller("alice"), "s1", plant.now_ns)
    plant.wait(655)
    assert "s1" in plant.core.state.subscriptions
    plant.wait(6)
    assert "s1" not in plant.core.state.subscriptions
    assert plant.events("feed")[-1] == SubscriptionCancelled(subscription_id="s1", client="alice")


# Revocation


@pytest.mark.spec("ADM-5")
def test_a_revocation_is_reported_to_the_client_and_the_adapters() -> None:
    plant = Plant()
    plant.register()
    answer = plant.subscribe("alice", "md.us.>")
    plant.subscribe("bob", "md.us.>", name="s2")
    assert plant.revoke("alice") == ["s1"]
    told = Revoked(subscription_id="s1", client="alice", reason="left the firm", until_ns=answer.expires_ns)
    first, *further = plant.events("alice")
    assert first == told
    assert [type(each) for each in further] == [AuthenticationChanged]  # without keys
    assert told in plant.events("feed")
    for action in (plant.core.renew, plant.core.cancel):
        with pytest.raises(RevokedError, match="left the firm"):
            action(plant.caller("alice"), "s1", plant.now_ns)
    for topics in (("md.us.>",), ("md.us.eq.AAPL.quote",)):
        with pytest.raises(RevokedError, match="left the firm"):
            plant.subscribe("alice", *topics, name="s3")
    with pytest.raises(RevokedError, match="new id"):
        plant.subscribe("alice", "md.us.>")
    assert plant.register().revoked == [told]  # type: ignore[attr-defined]  # an adapter that was away
    assert plant.core.renew(plant.caller("bob"), "s2", plant.now_ns)
    plant.core.restore(plant.caller("root"), RestoreRequest(client="alice"), plant.now_ns)
    assert plant.subscribe("alice", "md.us.>", name="s4")
    plant.wait(700)
    assert not plant.core.state.revoked  # every token of the client has expired


@pytest.mark.spec("ADM-5")
def test_a_single_grant_can_be_revoked() -> None:
    plant = Plant()
    plant.subscribe("alice", "md.us.eq.AAPL.>", name="apple")
    plant.subscribe("alice", "md.us.eq.>", name="all")
    assert plant.revoke("alice", "md.us.eq.ZZ*.>") == ["all"]
    answer = plant.subscribe("alice", "md.us.eq.>", name="again")
    entitlement = Entitlement(answer.grants)
    assert entitlement.receive_delay_s("md.us.eq.ZZT.quote") is None
    assert entitlement.receive_delay_s("md.us.eq.AAPL.quote") == 0
    with pytest.raises(NotFoundError):
        plant.revoke("nobody")
    with pytest.raises(TopicError):
        plant.revoke("alice", "/regex/")


@pytest.mark.spec("ADM-2", "ADM-5")
def test_a_new_policy_ends_subscriptions_that_it_does_not_grant_and_announces_new_grants() -> None:
    plant = Plant()
    plant.subscribe("alice", "md.us.>", name="less")
    plant.subscribe("carol", "md.us.eq.AAPL.>", name="more")
    plant.subscribe("dora", "md.us.eq.>", name="same")
    rules = RULES.replace('"md.us.>"', '"md.us.eq.>"').replace("md.us.eq.*.quote", "md.us.eq.>")
    answer = plant.core.set_policy(plant.caller("root"), Policy.parse(policy_text(rules)), plant.now_ns)
    assert answer.revoked == ["less"]
    assert isinstance(plant.events("alice")[0], Revoked)
    assert plant.events("carol") == [SubscriptionChanged(subscription_id="more")]
    assert plant.events("dora") == []
    assert plant.core.renew(plant.caller("carol"), "more", plant.now_ns).grants[0].pattern == "md.us.eq.AAPL.>"


@pytest.mark.spec("ADM-5")
def test_expired_credentials_end_their_subscriptions() -> None:
    plant = Plant()
    text = policy_text().replace("[clients.bob]\n", "[clients.bob]\nexpires = 2023-11-14T22:14:20Z\n")
    plant.core.set_policy(plant.caller("root"), Policy.parse(text), plant.now_ns)
    answer = plant.subscribe("bob", "md.us.>")
    assert answer.expires_ns == NOW_NS + 60 * NS_PER_SECOND  # not longer than the credentials
    plant.wait(59)
    assert not plant.events("bob")
    plant.wait(2)
    assert isinstance(plant.events("bob")[0], Revoked)


# Adapters and keys


@pytest.mark.spec("ADM-4")
def test_the_adapter_role_is_checked() -> None:
    plant = Plant()
    with pytest.raises(NotEntitledError, match=r"send all of md\.>"):
        plant.register(topics=["md.>"])
    with pytest.raises(NotEntitledError):
        plant.register(topics=["!md.us.eq.>"])
    with pytest.raises(ConfigurationError, match="multicast"):
        plant.register(group="10.0.0.1")
    plant.register()
    with pytest.raises(ForbiddenError, match="index 0"):
        plant.register(adapter="b")
    with pytest.raises(NotFoundError):
        plant.beat("b")
    with pytest.raises(NotEntitledError):
        plant.core.register(plant.caller("root"), registration(adapter="c", index=2), plant.now_ns)


@pytest.mark.spec("ADM-3")
def test_subscribers_learn_of_adapters_that_join_leave_and_take_over() -> None:
    plant = Plant()
    assert plant.subscribe("alice", "md.us.eq.>").streams == []
    plant.register()
    plant.register(adapter="b", index=1, publisher_id=12)
    plant.beat("a", term=0x100)
    moved = plant.events("alice")
    assert all(isinstance(each, StreamMoved) for each in moved)
    assert [len(each.streams[0].addresses) for each in moved] == [1, 2, 2]  # type: ignore[union-attr]
    assert roles(moved[-1]) == {"a": "active", "b": "backup"}
    plant.beat("b", term=0x201)
    assert roles(plant.events("alice")[-1]) == {"b": "active", "a": "backup"}
    plant.beat("a", term=0x100)  # an old term is ignored
    assert len(plant.events("alice")) == 4
    plant.wait(6)
    plant.beat("b", term=0x201)
    plant.wait(5)
    assert roles(plant.events("alice")[-1]) == {"b": "active"}
    plant.beat("a", term=0x201)
    assert roles(plant.events("alice")[-1]) == {"b": "active", "a": "backup"}


def roles(event: EventBody) -> dict[str, str]:
    assert isinstance(event, StreamMoved)
    return {each.adapter: each.role for each in event.streams[0].addresses}


@pytest.mark.spec("ADM-7")
def test_keys_go_only_to_clients_with_a_right_to_the_whole_feed() -> None:
    plant = Plant()
    plant.subscribe("alice", "md.us.eq.AAPL.>")
    plant.register(sealed=True)
    (whole,) = plant.core.renew(plant.caller("alice"), "s1", plant.now_ns).streams
    assert [each.key_id for each in whole.keys] == [1]
    assert whole.addresses[0].group == "239.255.1.1"
    (part,) = plant.subscribe("carol", "md.us.eq.AAPL.quote", name="s2").streams
    assert part.sealed
    assert not part.keys
    assert (part.addresses[0].transport, part.addresses[0].group) == ("unicast", "")


@pytest.mark.spec("ADM-7", "ADM-5")
def test_a_revocation_changes_the_keys_of_everyone_else() -> None:
    plant = Plant()
    plant.subscribe("alice", "md.us.eq.>")
    plant.subscribe("bob", "md.us.eq.>", name="s2")
    plant.register(sealed=True)
    plant.register(sealed=True, adapter="b", index=1)
    plant.beat("a")
    plant.beat("b")
    plant.revoke("alice")
    (change,) = [each for each in plant.events("bob") if isinstance(each, KeysChanged)]
    assert ([each.key_id for each in change.keys], change.active_key_id) == ([2], 1)
    assert change in plant.events("feed")
    assert not [each for each in plant.events("alice") if isinstance(each, KeysChanged)]
    plant.beat("a", key_ids=(1, 2))
    plant.wait(2)
    assert plant.core.feeds.active_key("itch").key_id == 1  # type: ignore[union-attr]  # the other has it not yet
    plant.beat("b", key_ids=(1, 2))
    plant.wait(0.1)
    assert plant.core.feeds.active_key("itch").key_id == 2  # type: ignore[union-attr]
    assert plant.events("feed")[-1] == KeysChanged(feed="itch", keys=[], active_key_id=2)
    assert plant.core.renew(plant.caller("bob"), "s2", plant.now_ns).streams[0].keys[-1].key_id == 2


@pytest.mark.spec("ADM-7", "AUTH-6")
def test_a_new_subscriber_gets_no_old_keys() -> None:
    plant = Plant()
    plant.subscribe("alice", "md.us.eq.>")
    plant.register(sealed=True)
    plant.core.feeds.rotate("itch", ["alice"], plant.now_ns)
    plant.beat("a", key_ids=(1, 2))
    plant.wait(2)
    assert [each.state for each in plant.core.feeds.keys("itch")] == ["old", "active"]
    assert plant.subscribe("bob", "md.us.eq.>", name="s2").streams[0].keys == []
    plant.beat("a", key_ids=(1, 2, 3))
    plant.wait(plant.limits.key_grace_s)
    plant.confirm("feed")
    plant.wait(0.1)
    (newcomer,) = plant.core.renew(plant.caller("bob"), "s2", plant.now_ns).streams
    assert [each.key_id for each in newcomer.keys] == [3]
    (holder,) = plant.core.renew(plant.caller("alice"), "s1", plant.now_ns).streams
    assert [each.key_id for each in holder.keys] == [1, 2, 3], "a holder still opens packets that are under way"
    assert [each.key_id for each in plant.register(sealed=True).keys] == [1, 2, 3]


@pytest.mark.spec("ADM-7", "AUTH-6")
def test_a_stream_key_is_replaced_at_the_end_of_its_lifetime() -> None:
    plant = Plant()
    plant.subscribe("alice", "md.us.eq.>")
    plant.register(sealed=True)
    recorded = plant.core.feeds.active_key("itch")
    assert recorded is not None
    plant.wait(plant.limits.key_lifetime_s - 1)
    assert [each.key for each in plant.core.feeds.keys("itch")] == [recorded], "key replaced too early"
    plant.wait(1)
    (change,) = [each for each in plant.events("alice") if isinstance(each, KeysChanged)]
    assert ([each.key_id for each in change.keys], change.active_key_id) == ([2], 1)
    plant.beat("a", key_ids=(1, 2))
    plant.wait(plant.limits.key_grace_s)
    assert plant.core.feeds.active_key("itch").key_id == 2  # type: ignore[union-attr]
    for _ in range(20):  # a replacement has a full lifetime of its own
        plant.wait(plant.limits.key_lifetime_s / 25)
    assert [each.key.key_id for each in plant.core.feeds.keys("itch")] == [1, 2]


def sealed_plant() -> Plant:
    plant = Plant()
    plant.register(sealed=True)
    return plant


def keys_given(plant: Plant, client: str, *answers: Brokered) -> list[StreamKey]:
    """All stream keys that the client ever received."""
    streams = [stream for each in answers for stream in each.streams]
    keys = []
    for event in plant.events(client):
        if isinstance(event, StreamMoved):
            streams += event.streams
        elif isinstance(event, KeysChanged):
            keys += event.keys
    return [*keys, *(key for stream in streams for key in stream.keys)]


@pytest.mark.spec("ADM-7", "AUTH-5", "AUTH-6")
def test_a_new_subscriber_cannot_open_packets_recorded_before_its_subscription() -> None:
    plant = sealed_plant()
    first = plant.core.feeds.active_key("itch")
    assert first is not None
    recorded = Sealer(first, 11, 1).seal(b"a quote of the past", topic=b"md.us.eq.AAPL.quote")
    answer = plant.subscribe("alice", "md.us.eq.>")
    (waiting,) = answer.streams
    assert (waiting.topics, waiting.keys, waiting.authentication) == ([], [], None)
    assert [each.id for each in waiting.models] == [1]  # for the check of a condition
    still = plant.core.renew(plant.caller("alice"), "s1", plant.now_ns)
    plant.beat("a", key_ids=(1, 2))
    plant.confirm("feed")
    plant.wait(plant.limits.key_grace_s)
    assert plant.core.feeds.active_key("itch").key_id == 2  # type: ignore[union-attr]
    # the adapters have not switched
    assert not [each for each in plant.events("alice") if isinstance(each, StreamMoved)]
    between = plant.core.renew(plant.caller("alice"), "s1", plant.now_ns)
    assert between.streams[0].topics == []
    plant.confirm("feed")
    plant.wait(0.1)
    (moved,) = [each for each in plant.events("alice") if isinstance(each, StreamMoved)]
    (stream,) = moved.streams
    assert (stream.topics, stream.addresses[0].group) == (["md.us.eq.>"], "239.255.1.1")
    assert [each.key_id for each in stream.keys] == [2]
    plant.wait(30)
    given = keys_given(
        plant, "alice", answer, still, between, plant.core.renew(plant.caller("alice"), "s1", plant.now_ns)
    )
    assert {each.key_id for each in given} == {2}
    opener = Opener(StreamKeyRing(given))
    with pytest.raises(SealKeyError):
        opener.open(recorded.payload, recorded.seal, publisher_id=11, epoch=1, topic=b"md.us.eq.AAPL.quote")
    renamed = Seal(2, recorded.seal.nonce)
    with pytest.raises(SealError):
        opener.open(recorded.payload, renamed, publisher_id=11, epoch=1, topic=b"md.us.eq.AAPL.quote")


@pytest.mark.spec("ADM-7", "AUTH-6")
def test_stream_keys_are_replaced_after_the_clock_was_set_back() -> None:
    plant = sealed_plant()

    def set_back_and_wait(seconds: float) -> int:
        plant.now_ns -= 3_600 * NS_PER_SECOND
        plant.wait(0)
        plant.wait(seconds)
        return plant.core.feeds.active_key("itch").key_id  # type: ignore[union-attr]

    plant.subscribe("alice", "md.us.eq.>")
    assert set_back_and_wait(plant.limits.key_rotation_s) == 2
    assert not [each for each in plant.events("alice") if isinstance(each, StreamMoved)]
    plant.beat(key_ids=())
    assert set_back_and_wait(plant.limits.key_rotation_s) == 2
    assert [each for each in plant.events("alice") if isinstance(each, StreamMoved)]
    assert set_back_and_wait(plant.limits.key_lifetime_s) == 2
    plant.wait(plant.limits.key_rotation_s)
    assert plant.core.feeds.active_key("itch").key_id == 3  # type: ignore[union-attr]


@pytest.mark.spec("ADM-7")
def test_new_subscribers_share_the_next_key_and_holders_do_not_wait() -> None:
    plant = sealed_plant()
    plant.subscribe("alice", "md.us.eq.>")
    plant.wait(10)
    plant.confirm("feed")
    plant.wait(0)
    assert plant.subscribe("alice", "md.us.eq.>", name="s3").streams[0].keys[-1].key_id == 2  # alice holds it
    text = plant.core.policy.text.replace(
        'who = ["carol"]', 'who = ["carol"]\nreceive = ["md.us.eq.>"]\n[[rule]]\nwho = ["carol"]'
    )
    plant.set_policy(Policy.parse(text))
    for name in ("bob", "carol"):
        assert plant.subscribe(name, "md.us.eq.>", name=name).streams[0].topics == []
    assert [each.key.key_id for each in plant.core.feeds.keys("itch")] == [1, 2, 3]
    again = plant.again(plant.now_ns)
    again.wait(10)
    again.beat(key_ids=())
    again.wait(10)  # no activation is confirmed
    for name in ("bob", "carol"):
        (moved,) = [each for each in again.events(name) if isinstance(each, StreamMoved)]
        assert [each.key_id for each in moved.streams[0].keys] == [3]


@pytest.mark.spec("ADM-7", "AUTH-6")
def test_a_new_subscriber_keeps_waiting_when_its_key_is_replaced_before_use() -> None:
    plant = sealed_plant()
    plant.subscribe("alice", "md.us.eq.>")
    plant.subscribe("bob", "md.us.eq.>", name="s2")
    plant.revoke("alice")
    plant.wait(10)
    plant.beat(key_ids=())
    plant.wait(10)
    (moved,) = [each for each in plant.events("bob") if isinstance(each, StreamMoved)]
    assert [each.key_id for each in moved.streams[0].keys][-1] == 3
    assert 1 not in {each.key_id for each in keys_given(plant, "bob")}
    assert not [each for each in plant.events("alice") if isinstance(each, StreamMoved)]


@pytest.mark.spec("ADM-7")
def test_an_admitted_subscriber_keeps_its_topics_when_the_next_key_becomes_active() -> None:
    plant = sealed_plant()

    def topics() -> list[list[str]]:
        return [each.topics for each in plant.core.renew(plant.caller("alice"), "s1", plant.now_ns).streams]

    plant.subscribe("alice", "md.us.eq.>")
    plant.beat(key_ids=(1, 2))
    plant.wait(plant.limits.key_grace_s)
    plant.subscribe("bob", "md.us.eq.>", name="s2")  # the adapters have not confirmed the activation of key 2
    plant.confirm("feed")
    plant.wait(0.1)
    assert topics() == [["md.us.eq.>"]]
    plant.beat(key_ids=(1, 2, 3))
    plant.wait(plant.limits.key_grace_s)
    assert plant.core.feeds.active_key("itch").key_id == 3  # type: ignore[union-attr]
    assert topics() == [["md.us.eq.>"]]
    assert plant.core.renew(plant.caller("bob"), "s2", plant.now_ns).streams[0].topics == []


def plant_with_holder() -> Plant:
    """Alice and the adapter hold the key and poll for events; the server has run for some time."""
    plant = Plant()
    plant.subscribe("alice", "md.us.eq.>")
    plant.register(sealed=True)
    for _ in range(4):
        plant.wait(4)
        plant.beat()
        plant.confirm("alice")
        plant.confirm("feed")
    return plant


def active_key_id(plant: Plant) -> int:
    plant.core.advance_keys(plant.now_ns)
    key = plant.core.feeds.active_key("itch")
    assert key is not None
    return key.key_id


def has_begun(plant: Plant, client: str, name: str) -> bool:
    plant.core.advance_keys(plant.now_ns)
    return bool(plant.core.renew(plant.caller(client), name, plant.now_ns).streams[0].topics)


@pytest.mark.spec("ADM-7")
def test_a_new_subscriber_starts_as_soon_as_all_holders_have_confirmed_its_key() -> None:
    plant = plant_with_holder()
    plant.subscribe("bob", "md.us.eq.>", name="s2")
    assert active_key_id(plant) == 1
    plant.beat(key_ids=(1, 2))
    assert active_key_id(plant) == 1, "alice has not confirmed the key"
    plant.confirm("alice")
    assert active_key_id(plant) == 2
    assert not has_begun(plant, "bob", "s2"), "the adapter may still seal with key 1"
    plant.confirm("feed")
    assert has_begun(plant, "bob", "s2")


@pytest.mark.spec("ADM-7")
def test_new_subscribers_in_quick_succession_share_one_replacement() -> None:
    plant = plant_with_holder()
    text = plant.core.policy.text.replace(
        'who = ["carol"]', 'who = ["carol"]\nreceive = ["md.us.eq.>"]\n[[rule]]\nwho = ["carol"]'
    )
    plant.set_policy(Policy.parse(text))
    plant.core.feeds.rotate("itch", ["alice"], plant.now_ns)
    plant.beat(key_ids=(1, 2))
    plant.confirm("alice")
    assert active_key_id(plant) == 2
    for name in ("bob", "carol"):
        plant.subscribe(name, "md.us.eq.>", name=name)
        plant.beat(key_ids=(1, 2, 3))
        plant.confirm("alice")
        plant.confirm("feed")
        assert active_key_id(plant) == 2, "key 2 was activated less than key_grace_s ago"
    plant.wait(plant.limits.key_grace_s)
    assert active_key_id(plant) == 3
    plant.confirm("feed")
    assert has_begun(plant, "bob", "bob")
    assert has_begun(plant, "carol", "carol")
    assert [each.key.key_id for each in plant.core.feeds.keys("itch")] == [1, 2, 3]


@pytest.mark.spec("ADM-7")
def test_a_new_subscriber_does_not_wait_for_a_holder_that_does_not_answer() -> None:
    plant = plant_with_holder()
    plant.subscribe("bob", "md.us.eq.>", name="s2")
    plant.beat(key_ids=(1, 2))
    plant.wait(plant.limits.key_grace_s - 0.1)
    assert active_key_id(plant) == 1
    plant.wait(0.1)
    assert active_key_id(plant) == 2
    plant.confirm("feed")
    assert has_begun(plant, "bob", "s2")


@pytest.mark.spec("ADM-7")
@pytest.mark.parametrize("is_given", [False, True])
def test_a_new_subscriber_waits_a_bounded_time_for_an_adapter_that_does_not_answer(is_given: bool) -> None:
    plant = plant_with_holder()
    limits, began_ns = plant.limits, plant.now_ns
    plant.subscribe("bob", "md.us.eq.>", name="s2")
    while not has_begun(plant, "bob", "s2"):
        plant.wait(0.5)
        plant.beat(key_ids=(1, 2) if is_given else (1,))  # alive, but never confirms that it seals with key 2
        assert plant.now_ns - began_ns <= (limits.key_rotation_s + limits.key_grace_s) * NS_PER_SECOND
    assert plant.now_ns - began_ns >= limits.key_rotation_s * NS_PER_SECOND
    assert {each.key_id for each in keys_given(plant, "bob")} == {2}


@pytest.mark.spec("ADM-7", "ADM-8")
def test_after_a_restart_holders_get_time_to_fetch_the_key() -> None:
    plant = plant_with_holder()
    plant.subscribe("bob", "md.us.eq.>", name="s2")
    again = plant.again(plant.now_ns)
    again.beat(key_ids=(1, 2))
    assert active_key_id(again) == 1, "alice may only hold key 1"
    again.wait(again.limits.key_grace_s)
    assert active_key_id(again) == 2
    again.confirm("feed")
    assert has_begun(again, "bob", "s2")


@pytest.mark.spec("ADM-7", "AUTH-6")
def test_a_client_without_a_subscription_gets_no_further_keys() -> None:
    plant = Plant()
    plant.subscribe("alice", "md.us.eq.>")
    plant.subscribe("bob", "md.us.eq.>", name="s2")
    plant.register(sealed=True)
    plant.core.cancel(plant.caller("alice"), "s1", plant.now_ns)
    plant.wait(plant.limits.key_lifetime_s)
    assert plant.core.feeds.keys("itch")[-1].holders == ("bob", "feed")
    assert not [each for each in plant.events("alice") if isinstance(each, KeysChanged)]


def test_a_key_lifetime_shorter_than_a_rotation_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="key_lifetime_s is 11, not longer than"):
        AdminLimits(key_lifetime_s=11.0)


@pytest.mark.spec("ADM-7")
def test_revoking_a_client_after_its_cancellation_still_replaces_the_key() -> None:
    plant = Plant()
    plant.subscribe("alice", "md.us.eq.>")
    plant.register(sealed=True)
    plant.core.cancel(plant.caller("alice"), "s1", plant.now_ns)
    plant.revoke("alice")
    assert [each.state for each in plant.core.feeds.keys("itch")] == ["active", "pending"]


@pytest.mark.spec("ADM-7")
def test_a_silent_adapter_does_not_prevent_the_use_of_a_key() -> None:
    plant = Plant()
    plant.subscribe("alice", "md.us.eq.>")
    plant.register(sealed=True)
    plant.revoke("alice")
    plant.wait(9.9)
    assert plant.core.feeds.active_key("itch").key_id == 1  # type: ignore[union-attr]
    plant.wait(0.1)
    assert plant.core.feeds.active_key("itch").key_id == 2  # type: ignore[union-attr]
    for _ in range(6):  # keys are not kept forever
        plant.core.feeds.rotate("itch", [], plant.now_ns)
        plant.wait(11)
    assert len(plant.core.feeds.keys("itch")) == plant.limits.keys_kept


@pytest.mark.spec("ADM-7", "AUTH-6")
def test_repeated_revocations_do_not_postpone_the_new_key() -> None:
    plant = Plant()
    plant.register(sealed=True)
    seconds = 0
    while plant.core.feeds.active_key("itch").key_id == 1:  # type: ignore[union-attr]
        plant.core.feeds.rotate("itch", [], plant.now_ns)
        plant.wait(1)
        seconds += 1
        assert seconds <= plant.limits.key_rotation_s + 1
    assert seconds > 1


@pytest.mark.spec("ADM-7")
def test_a_key_that_a_revoked_client_may_hold_is_never_used() -> None:
    plant = Plant()
    plant.subscribe("alice", "md.us.eq.>")
    plant.subscribe("bob", "md.us.eq.>", name="s2")
    plant.register(sealed=True)
    plant.revoke("alice")
    plant.revoke("bob")  # a client that received key 2 in between
    plant.wait(11)
    assert plant.core.feeds.active_key("itch").key_id == 3  # type: ignore[union-attr]


# Restart from records


def test_the_state_rebuilt_from_its_records_is_the_same() -> None:
    plant = Plant()
    plant.register(sealed=True)
    plant.subscribe("alice", "md.us.eq.>")
    plant.subscribe("bob", "md.us.eq.>", name="s2")
    plant.revoke("alice")
    records: dict[tuple[str, str], Stored] = {}
    for change in plant.core.state.take_changes():
        records[change.kind, change.key] = change
    again = Plant(records=[each for each in records.values() if each.record is not None])
    for name in ("alice", "bob", "feed"):
        assert again.events(name) == plant.events(name)
    for table in ("subscriptions", "revoked", "denials", "adapters", "keys", "meta", "policy_text"):
        assert getattr(again.core.state, table) == getattr(plant.core.state, table)
    with pytest.raises(RevokedError):
        again.core.renew(again.caller("alice"), "s1", NOW_NS)
    assert again.subscribe("bob", "md.us.eq.>", name="s3").streams  # the adapter gets time to report


def test_events_are_bounded_and_a_reader_that_missed_events_is_notified() -> None:
    plant = Plant(AdminLimits(events_kept=3))
    plant.register()
    for number in range(5):
        plant.subscribe("alice", "md.us.eq.>", name=f"s{number}")
    answer = plant.core.events(plant.caller("feed"), 0)
    assert [each.number for each in answer.events] == [5, 6, 7]
    assert not answer.is_complete
    assert plant.core.events(plant.caller("feed"), 4).is_complete
    assert plant.core.events(plant.caller("feed"), 7).events == []
    plant.wait(25 * 3_600)
    assert not [each for each in plant.core.events(plant.caller("feed"), 0).events if each.number <= 7]


def test_every_decision_is_logged_in_the_audit() -> None:
    plant = Plant()
    plant.register()
    plant.subscribe("alice", "md.us.>")
    plant.revoke("alice")
    error = NotEntitledError("no rule lets alice receive fx")
    plant.core.audit(plant.caller("alice"), "subscribe", plant.now_ns, error=error)
    lines = plant.core.take_audits()
    assert [(each.client, each.action, each.outcome, each.code) for each in lines] == [
        ("feed", "register", "done", ""),
        ("alice", "subscribe", "done", ""),
        ("root", "revoke", "done", ""),
        ("alice", "subscribe", "refused", "not-entitled"),
    ]
    assert "no rule lets alice" in lines[-1].detail
    assert plant.core.take_audits() == []
