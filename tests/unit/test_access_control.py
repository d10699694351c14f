"""Access control and refusals that all servers share."""

from typing import NamedTuple

import pytest

from penstock.base.errors import LimitError, NotEntitledError, PenstockError, RemoteProtocolError, TokenError
from penstock.security import Grant, Token
from penstock.security.core.access_control import AccessControl, LoginAccess, Rights, check_same_subject
from penstock.security.core.refusal import REASON_SIZE_MAX, RefusalError, Refusals, check_number

GRANTS = (Grant("md.>", "receive"), Grant("!md.secret.>", "receive"), Grant("slow.>", "receive", 900))


def token(subject: str, expires_ns: int = 100) -> Token:
    return Token("stream", subject, f"of {subject}", GRANTS, 0, expires_ns, 0)


class Party(NamedTuple):
    number: int
    name: str
    rights: Rights


class Login(NamedTuple):
    name: str
    token: str = ""


class Peer(NamedTuple):
    node: str


class ByToken(LoginAccess[Login, Rights]):
    def rights_of_login(self, login: Login, token: str, now_ns: int) -> Rights:
        verified = self.verify(token, now_ns)
        return Rights(login.name) if verified is None else Rights.of_token(verified)


def by_token() -> ByToken:
    return ByToken(lambda text, now_ns: token(text))


def test_a_party_has_the_rights_of_its_token_until_it_expires() -> None:
    rights = Rights.of_token(token("alice", 100))
    assert (rights.subject, rights.subscription_id, rights.is_revocable) == ("alice", "of alice", True)
    assert [rights.has_expired(now_ns) for now_ns in (99, 100)] == [False, True]
    assert rights.patterns() == ["md.>", "!md.secret.>"], "delayed grants are not live"
    assert rights.narrow(["md.a", "md.a"], 2) == ["md.a", "!md.secret.>"]
    with pytest.raises(NotEntitledError):
        rights.narrow(["slow.a"], 2)
    with pytest.raises(LimitError):
        rights.narrow(["md.a", "md.b", "md.c"], 2)


def test_without_a_token_everything_is_granted_without_a_time_limit() -> None:
    rights = Rights()
    assert (rights.patterns(), rights.narrow(["a", "b.>"], 2), rights.text) == ([">"], ["a", "b.>"], "")
    assert not rights.is_revocable
    assert not rights.has_expired(2**63)


def test_parties_are_found_by_name_subscription_and_expiry_until_they_leave() -> None:
    access: AccessControl[Party] = AccessControl()
    for number, (name, expires_ns) in enumerate((("a", 10), ("b", 20), ("c", 0))):
        access.add(Party(number, name, Rights("alice", None, "s" if name != "b" else "t", expires_ns)))
    assert [each.name for each in access.bearers("s")] == ["a", "c"]
    assert [[each.name for each in access.expired(now_ns)] for now_ns in (9, 10, 20)] == [[], ["a"], ["a", "b"]]
    assert access.is_taken("a")
    access.leave(0)
    access.leave(0)
    assert not access.is_taken("a")
    assert [each.name for each in access.bearers("s")] == ["c"]


def test_a_token_is_required_where_tokens_are_checked() -> None:
    assert AccessControl[Party]().verify("", 0) is None
    with pytest.raises(TokenError, match="is required"):
        by_token().verify("", 0)


def test_a_party_logs_in_under_the_name_of_its_handshake_and_renews_its_rights() -> None:
    access = by_token()
    with pytest.raises(RemoteProtocolError, match="b logs in as a"):
        access.log_in(1, Login("a", "alice"), Peer("b"), 0)
    assert not access.parties
    assert access.log_in(1, Login("a", "alice"), Peer("a"), 0).subject == "alice"
    with pytest.raises(TokenError):
        access.renew(1, "", 0)
    assert access.parties[1].rights.subject == "alice", "an invalid token changes nothing"
    assert access.renew(1, "bob", 0).subject == access.parties[1].rights.subject == "bob"
    with pytest.raises(TokenError, match="nobody has logged in"):
        access.renew(2, "bob", 0)


def test_a_renewal_must_be_for_the_same_client() -> None:
    check_same_subject(Rights("alice"), Rights("alice", GRANTS))
    with pytest.raises(TokenError):
        check_same_subject(Rights("alice"), Rights("bob"))


class Refused(NamedTuple):
    code: str
    reason: str
    number: int = 0


LISTED = Refusals(Refused, ((TokenError, "token"), (LimitError, "limit")), "protocol")
OWN_CODES = Refusals(Refused)


@pytest.mark.parametrize(
    ("refusals", "error", "code", "is_final"),
    [
        (LISTED, LimitError("too many"), "limit", False),
        (LISTED, RemoteProtocolError("nonsense"), "protocol", True),
        (LISTED, RefusalError("taken", "that name"), "taken", False),
        (LISTED, RefusalError("taken", "that name", is_final=True), "taken", True),
        (OWN_CODES, LimitError("too many"), LimitError.code, False),
        (OWN_CODES, RefusalError("taken", "that name"), "taken", False),
    ],
)
def test_an_error_has_a_code_and_may_end_the_connection(
    refusals: Refusals[Refused], error: PenstockError, code: str, is_final: bool
) -> None:
    assert refusals.of(error, 7) == Refused(code, str(error), 7)
    assert refusals.is_final(error) == is_final
    final = refusals.final(error)
    assert (final.refusal, final.what, refusals.is_final(final)) == (code, error.what, True)


def test_the_text_of_a_refusal_is_bounded() -> None:
    assert len(LISTED.of(LimitError("x" * 1_000)).reason) == REASON_SIZE_MAX


def test_a_request_has_a_number() -> None:
    check_number(1)
    with pytest.raises(PenstockError):
        check_number(0)
