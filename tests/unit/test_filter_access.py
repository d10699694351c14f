"""The access rules of a filter's control connection."""

import itertools
from typing import Any

import pytest

from penstock.base.errors import ConfigurationError, LimitError, NotEntitledError, PenstockError, TokenError
from penstock.filter.core import control
from penstock.filter.core.access import REFUSALS, ApplicationAccess, Registrant
from penstock.filter.core.control import RefusalCode
from penstock.filter.module_config import FilterModuleConfig
from penstock.net.udp import Channel
from penstock.security import Grant, Token
from penstock.security.core.access import AdminAccess
from penstock.security.core.direct_address import direct_address, is_address_of

NOW_NS = 1_000
CHANNEL = Channel(group="239.1.1.1", port=7_401)


def access(verify: Any = None, **values: Any) -> ApplicationAccess:
    return ApplicationAccess(FilterModuleConfig(name="f", **values), verify, [CHANNEL])


def register(
    made: ApplicationAccess, name: str = "app", *, peer: str = "127.0.0.1", node: str = "", **values: Any
) -> Registrant:
    message = control.Register(name, values.pop("port", 5_000 + len(made.parties)), **values)
    numbers = itertools.count(100)
    return made.register(node or name, peer, message, lambda: next(numbers), NOW_NS)


def refused(call: Any) -> str:
    with pytest.raises(PenstockError) as caught:
        call()
    return REFUSALS.of(caught.value).code


def token(*patterns: str, subject: str = "alice", subscription_id: str = "s1", expires_ns: int = 2_000) -> Token:
    grants = tuple(Grant(pattern, "receive") for pattern in patterns)
    return Token("stream", subject, subscription_id, grants, 0, expires_ns, 1)


def test_names_ids_and_addresses_are_unique() -> None:
    made = access(applications_max=3)
    first = register(made, "one", application_id=7)
    assert refused(lambda: register(made, "one")) == RefusalCode.TAKEN
    assert refused(lambda: register(made, "two", application_id=7)) == RefusalCode.TAKEN
    assert refused(lambda: register(made, "two", port=5_000)) == RefusalCode.TAKEN
    assert register(made, "two", application_id=100).number == 100
    assert register(made, "three").number == 101  # the first free one
    assert refused(lambda: register(made, "four")) == RefusalCode.LIMIT
    made.leave(first.number)
    made.leave(first.number)
    assert register(made, "one", application_id=7, port=9).attach().application == 7


@pytest.mark.spec("FILT-15", "AUTH-5")
def test_an_address_belongs_to_the_client_of_the_token() -> None:
    """The first registration of an address cannot redirect messages of another client."""
    tokens = {name: token(">", subject=name) for name in ("alice", "bob")}
    made = access(lambda text, now_ns: tokens[text])
    hers = direct_address("alice", 7)
    for stolen in (hers, 7, hers ^ 1 << 16, hers ^ 1 << 63):
        assert refused(lambda stolen=stolen: register(made, "bob", application_id=stolen, token="bob")) == "entitlement"
    assert not made.parties
    assert register(made, "alice", application_id=hers, token="alice").number == hers
    assert refused(lambda: register(made, "again", application_id=hers, token="alice")) == RefusalCode.TAKEN
    chosen = register(made, "bob", token="bob").number
    assert is_address_of(chosen, "bob")
    assert not is_address_of(chosen, "alice")


def test_a_client_whose_addresses_are_all_in_use_is_refused() -> None:
    made = access(lambda text, now_ns: token(">"), applications_max=10)
    message = control.Register("app", 5_000, token="t")
    made.register("app", "127.0.0.1", message, lambda: 3, NOW_NS)
    message = control.Register("other", 5_001, token="t")
    assert refused(lambda: made.register("other", "127.0.0.1", message, lambda: 3, NOW_NS)) == RefusalCode.LIMIT


@pytest.mark.spec("FILT-6")
def test_only_controllers_may_act_for_other_clients() -> None:
    made = access(controllers=("boss",))
    assert refused(lambda: register(made, "app", node="other")) == RefusalCode.CONTROLLER
    assert register(made, "app", node="boss").name == "app"


@pytest.mark.spec("FILT-6")
@pytest.mark.parametrize(
    ("peer", "host", "is_served"),
    [
        ("127.0.0.1", "", True),
        ("127.0.0.1", "127.0.0.9", True),
        ("127.0.0.1", "10.9.9.9", True),  # the module's own interface
        ("10.9.9.9", "127.0.0.1", True),
        ("10.9.9.8", "", True),
        ("10.9.9.8", "10.9.9.9", False),
        ("10.9.9.8", "127.0.0.1", False),
        ("127.0.0.1", "10.1.2.3", True),  # configured
        ("127.0.0.1", "10.1.3.3", False),
        ("10.9.9.8", "10.1.2.3", True),
        ("127.0.0.1", "not-an-address", False),
    ],
)
def test_only_configured_hosts_are_served(peer: str, host: str, is_served: bool) -> None:
    made = access(hosts=("10.1.2.0/24",), interface="10.9.9.9")
    if is_served:
        assert register(made, peer=peer, host=host).address[0] == (host or peer)
    else:
        assert refused(lambda: register(made, peer=peer, host=host)) == RefusalCode.HOST


def test_rings_are_offered_only_on_the_same_host() -> None:
    made = access(interface="10.9.9.9")
    assert refused(lambda: register(made, peer="10.9.9.8", delivery="ring")) == RefusalCode.DELIVERY
    assert register(made, peer="10.9.9.9", delivery="ring").delivery == "ring"


def test_channels_of_refused_requests_are_forgotten() -> None:
    made = access()
    application = register(made)
    want, _ = made.want(application, control.Want(1, [control.Interests(["a"], channels=["239.1.1.2:5"])]))
    assert [tuple(each.groups) for each in want.add] == [(0xEF010102,)]
    assert made.port_of(0xEF010102) == 5
    other = control.Want(2, [control.Interests(["a"], channels=["239.1.1.2:6"])])
    assert refused(lambda: made.want(application, other)) == RefusalCode.CHANNEL
    made.settled(want)
    assert made.port_of(0xEF010102) is None
    want, _ = made.want(application, other)
    made.joined(0xEF010102)
    made.settled(want)
    assert made.port_of(0xEF010102) == 6
    made.left(0xEF010102)
    assert made.port_of(0xEF010102) is None
    made.left(CHANNEL.group_id)
    assert made.port_of(CHANNEL.group_id) == 7_401  # configured


def wanting(channel: str, topic: str = "a") -> control.Want:
    return control.Want(1, [control.Interests([topic], channels=[channel])])


def test_a_channel_that_other_clients_use_is_not_forgotten() -> None:
    made = access()
    one, two = register(made, "one"), register(made, "two")
    first, _ = made.want(one, wanting("239.1.1.2:5"))
    made.joined(0xEF010102)
    made.settled(first)
    second, _ = made.want(two, wanting("239.1.1.2:5"))  # during the removal of the first
    made.left(0xEF010102)
    third, _ = made.want(one, wanting("239.1.1.2:5"))
    made.settled(third)
    assert made.port_of(0xEF010102) == 5
    made.settled(second)
    assert made.port_of(0xEF010102) is None


def test_refused_requests_leave_no_channels_behind() -> None:
    made = access(lambda text, now_ns: token("md.>"))
    application = register(made, token="good")
    assert refused(lambda: made.want(application, wanting("239.1.1.2:5", "news"))) == RefusalCode.ENTITLEMENT
    channels = ["239.1.1.2:5", "239.1.1.3:5", "239.1.1.2:6"]
    both = control.Want(2, [control.Interests(["md.a"], channels=channels)])
    assert refused(lambda: made.want(application, both)) == RefusalCode.CHANNEL
    assert [made.port_of(group) for group in (0xEF010102, 0xEF010103)] == [None, None]


@pytest.mark.spec("FILT-12")
def test_a_map_cannot_change_the_port_of_a_joined_group() -> None:
    made = access()
    moved = [Channel(group="239.1.1.1", port=7_409), Channel(group="239.1.1.9", port=7_409)]
    made.joined(CHANNEL.group_id)
    with pytest.raises(ConfigurationError):
        made.use_map(moved)
    assert [made.port_of(channel.group_id) for channel in moved] == [7_401, None]
    made.left(CHANNEL.group_id)
    made.use_map(moved)
    assert [made.port_of(channel.group_id) for channel in moved] == [7_409, 7_409]


@pytest.mark.spec("FILT-11")
def test_rings_are_offered_on_the_same_host() -> None:
    made = access(interface="10.9.9.9")
    offer = control.OfferRing(1, 5, "@path", "segment", "10.9.9.9", 4_000)
    made.check_publisher("127.0.0.1", offer)
    made.check_publisher("10.9.9.9", offer)
    assert refused(lambda: made.check_publisher("10.9.9.8", offer)) == RefusalCode.HOST
    nowhere = control.OfferRing(1, 5, "@path", "segment", "nowhere", 4_000)
    assert refused(lambda: made.check_publisher("127.0.0.1", nowhere)) == RefusalCode.HOST


@pytest.mark.spec("ADM-5")
def test_a_token_revoked_during_its_use_is_refused() -> None:
    tokens = {"old": token("md.>"), "new": token("md.>", subscription_id="s2")}
    made = access(lambda text, now_ns: tokens[text])
    application = register(made, token="old")
    assert made.renew(application, "new", NOW_NS) is not None
    assert made.bearers("s2") == [application]


@pytest.mark.spec("ADM-7")
def test_tokens_limit_interests() -> None:
    tokens = {"good": token("md.us.>", "!md.us.x"), "other": token("md.us.>", subject="bob"), "wide": token("md.>")}

    def verify(text: str, now_ns: int) -> Token:
        try:
            return tokens[text]
        except KeyError:
            raise TokenError("is no token") from None

    made = access(verify)
    assert refused(lambda: register(made)) == RefusalCode.TOKEN
    assert refused(lambda: register(made, token="bad")) == RefusalCode.TOKEN
    application = register(made, token="good")
    want, plan = made.want(application, control.Want(1, [control.Interests(["md.>"])]))
    made.committed(application, plan)
    assert [list(each.topics) for each in want.add] == [["md.us.>", "!md.us.x"]]
    with pytest.raises(NotEntitledError):
        made.want(application, control.Want(2, [control.Interests(["news"])]))
    assert refused(lambda: made.renew(application, "other", NOW_NS)) == RefusalCode.TOKEN
    renewal = made.renew(application, "wide", NOW_NS)
    assert renewal is not None
    entitled, plan = renewal
    assert [list(each.topics) for each in plan.add] == [["md.>"]]
    assert [list(each.topics) for each in plan.remove] == [["!md.us.x", "md.us.>"]]
    made.renewed(application, entitled)
    assert made.bearers("s1") == [application]
    assert (made.expired(1_999), made.expired(2_000)) == ([], [application])


@pytest.mark.spec("ADM-7")
def test_clients_that_share_a_copy_have_equal_entitlements_and_keep_them() -> None:
    tokens = {"a": token("md.>"), "b": token("md.>", subject="bob"), "c": token("md.>", "!md.x"), "d": token("md.>")}
    made = access(lambda text, now_ns: tokens[text])
    alice, bob = (
        register(made, "one", token="a", delivery="shared"),
        register(made, "two", token="b", delivery="shared"),
    )
    carol = register(made, "three", token="c", delivery="shared")
    assert alice.attach().entitlement == bob.attach().entitlement != carol.attach().entitlement
    assert made.renew(alice, "d", NOW_NS) is not None
    assert refused(lambda: made.renew(alice, "c", NOW_NS)) == RefusalCode.ENTITLEMENT


def model_text(number: int, version: int = 1) -> str:
    fields = "".join(f'[[field]]\nname = "a{each}"\ntype = "u32"\nsince = {each}\n' for each in range(1, version + 1))
    return f'name = "m{number}"\nid = {60_000 + number}\nversion = {version}\n{fields}'


def test_models_are_bounded_and_removed_with_the_applications_that_name_them() -> None:
    made = access(models_max=2)
    one, two = register(made, "one"), register(made, "two")
    assert len(made.models(one, control.Models(1, [model_text(0), model_text(1)]))) == 2
    with pytest.raises(LimitError, match="models_max"):
        made.models(two, control.Models(2, [model_text(1), model_text(2)]))
    assert two.models == set(), "none of the models of the request with one too many"
    made.models(two, control.Models(3, [model_text(1)]))
    made.models(two, control.Models(4, [model_text(1)]))  # repeated request
    assert refused(lambda: made.models(one, control.Models(5, ["nothing"]))) == RefusalCode.MODEL
    assert made.release_models(one, set(one.models)) == (60_000,), "the other application names 60001 as well"
    made.leave(one.number)
    assert len(made.models(two, control.Models(6, [model_text(2)]))) == 1, "there is space again"
    assert sorted(made.release_models(two, set(two.models))) == [60_001, 60_002]


@pytest.mark.parametrize(
    "values",
    [
        {"map": "m.toml", "channels": ("239.1.1.1:1",)},
        {"channels": ("10.0.0.1:1",)},
        {"channels": ("nonsense",)},
        {"hosts": ("10.1.2.3/8",)},
        {"hosts": ("a-name",)},
        {"admin": AdminAccess(url="penstock://127.0.0.1:1")},
        {"shared_group": "10.0.0.1"},
    ],
)
def test_impossible_configurations_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        FilterModuleConfig(name="f", **values)
