"""Access to an agent: parties, roles and rights."""

import pytest

from penstock.base.errors import NotEntitledError, RemoteProtocolError, TokenError
from penstock.net.core.control import Version
from penstock.net.core.control_session import Peer
from penstock.security import Grant, PrivateKey, Token, TokenSigner, TokenVerifier
from penstock.tree.config import TreeConfig
from penstock.tree.core.control import Login, Role
from penstock.tree.core.events import Party
from penstock.tree.live.access import PartyAccess, party_of

GRANTS = (Grant("md.>", "receive"),)
OWN = "known to this process alone"
KEY = PrivateKey(bytes(range(32)))
EXPIRES_NS = 10**12


def token(client: str) -> str:
    return TokenSigner(KEY).sign(Token("stream", client, f"of {client}", GRANTS, 0, EXPIRES_NS, 0))


def access(
    *, agents: tuple[str, ...] | dict[str, str] = (), operators: tuple[str, ...] = (), has_tokens: bool = True
) -> PartyAccess:
    verify = TokenVerifier([KEY.public]).verify if has_tokens else None
    bearers = TreeConfig(name="here", role="root", agents=agents).bearers
    return PartyAccess(bearers, operators, verify, own_token=OWN)


def admit(at: PartyAccess, name: str, role: Role = "subscriber", shown: str = "", link: int = 1) -> Party:
    login = Login(name, role, token=shown)
    return party_of(login, at.log_in(link, login, Peer(name, Version(1, 0), True), 0))


def test_a_party_has_the_name_of_the_handshake_and_the_grants_of_its_token() -> None:
    at = access()
    party = admit(at, "screen", shown=token("alice"))
    assert (party.name, party.role, party.grants) == ("screen", "subscriber", GRANTS)
    with pytest.raises(RemoteProtocolError, match="other logs in as screen"):
        at.log_in(2, Login("screen", token=token("alice")), Peer("other", Version(1, 0), True), 0)
    with pytest.raises(TokenError, match="is required"):
        admit(at, "screen")
    with pytest.raises(TokenError):
        admit(at, "screen", shown=token("alice")[:-8] + "AAAAAAAA")
    assert admit(access(has_tokens=False), "screen").grants is None, "where tokens are not required"
    assert admit(at, "feed", "publisher", OWN).grants is None, "parties in this process"


@pytest.mark.parametrize("role", ["agent", "standby", "peer", "operator"])
def test_a_client_that_does_more_than_receive_is_named(role: Role) -> None:
    who = "alice is not among the operators" if role == "operator" else "leaf is not among the agents"
    with pytest.raises(NotEntitledError, match=who):
        admit(access(), "leaf", role, token("alice"))
    named = access(agents={"leaf": "alice"}, operators=("alice",))
    assert admit(named, "leaf", role, token("alice")).grants is None
    with pytest.raises(NotEntitledError, match="bob"):
        admit(named, "leaf", role, token("bob"))
    by_name = access(agents=("leaf",), operators=("leaf",), has_tokens=False)
    assert admit(by_name, "leaf", role).name == "leaf"
    with pytest.raises(NotEntitledError):
        admit(by_name, "other", role)
    assert admit(access(has_tokens=False), "anybody", role).name == "anybody"


@pytest.mark.parametrize("role", ["agent", "standby", "peer"])
def test_an_agent_must_use_the_name_of_its_token(role: Role) -> None:
    """TREE-3: a speaker on the infostream has a verified name, also among agents."""
    own = access(agents=("mid", "leaf"))
    assert admit(own, "leaf", role, token("leaf")).subject == "leaf"
    with pytest.raises(NotEntitledError, match="agent mid presents a token of leaf, but is assigned to mid"):
        admit(own, "mid", role, token("leaf"))
    shared = access(agents={"mid": "nodes", "leaf": "nodes", "edge": "edge"})
    assert admit(shared, "mid", role, token("nodes")).subject == "nodes"
    for name in ("edge", "nodes"):
        with pytest.raises(NotEntitledError):
            admit(shared, name, role, token("nodes"))
    admit(own, "leaf", role, token("leaf"), link=7)
    with pytest.raises(NotEntitledError):
        own.renew(7, token("mid"), 0)


def bearers(at: PartyAccess) -> list[tuple[int, str]]:
    return [(each.number, each.name) for each in at.bearers("of alice")]


def test_bearers_and_expired_parties_are_known_until_they_leave() -> None:
    at = access()
    admit(at, "one", shown=token("alice"), link=1)
    admit(at, "two", "publisher", token("alice"), link=2)
    admit(at, "three", shown=token("bob"), link=3)
    assert bearers(at) == [(1, "one"), (2, "two")]
    assert [link for link in (1, 2, 3, 4) if at.is_publisher(link)] == [2]
    assert at.expired(EXPIRES_NS - 1) == []
    assert [each.number for each in at.expired(EXPIRES_NS)] == [1, 2, 3]
    at.leave(1)
    assert bearers(at) == [(2, "two")]
    rights = at.renew(3, token("alice"), 0)
    assert (rights.grants, rights.subscription_id) == (GRANTS, "of alice")
    assert bearers(at) == [(2, "two"), (3, "three")]


def test_only_a_publisher_has_a_publisher_id() -> None:
    def party(role: Role) -> Party:
        login = Login("screen", role, token=token("alice"), publisher_id=7)
        return party_of(login, access().log_in(1, login, Peer("screen", Version(1, 0), True), 0))

    assert (party("publisher").publisher_id, party("subscriber").publisher_id) == (7, 0)


def test_renamed_parties_apply_to_later_connections() -> None:
    at = access(agents={"leaf": "alice"})
    admit(at, "leaf", "agent", token("alice"))
    at.set_names({"leaf": "bob"}, ())
    with pytest.raises(NotEntitledError, match="alice"):
        admit(at, "leaf", "agent", token("alice"), link=2)
    assert admit(at, "leaf", "agent", token("bob"), link=3).name == "leaf"
