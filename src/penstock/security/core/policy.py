"""The policy document: clients, groups, and rules for receiving and sending, with delays.

[groups]
desk = ["alice", "bob"]

[clients.alice]
secret = "scrypt-ed25519:16384:…"              # made by `penstock admin client secret alice`
[clients.bob]
key = "ed25519:…"                             # made by `penstock admin client key bob`
roles = ["administrator"]
expires = 2027-01-31T00:00:00Z

[[rule]]
who = ["@desk", "carol"]                      # clients, @groups, or * for every client
receive = ["md.us.eq.>", "!md.us.eq.ZZ*.>"]   # ! denies topics, whatever other rules grant
send = ["derived.desk.>"]
delay_minutes = 15                            # of received messages; 0: live
"""

import datetime
import re
from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.config import Config, parse_toml
from penstock.base.errors import ConfigurationError, PenstockError, TopicError
from penstock.base.limits import DOCUMENT_SIZE_MAX
from penstock.security.core.keys import PublicKey
from penstock.security.core.patterns import covers, intersection, parse_pattern
from penstock.security.core.proof import SecretVerifier
from penstock.security.core.token import Grant
from penstock.topics import Interest

Role: TypeAlias = Literal["administrator", "auditor", "adapter", "filter", "publisher", "standby"]
EVERYBODY = "*"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
DELAY_MINUTES_MAX = 60 * 24 * 366


class ClientEntry(Config, frozen=True):
    secret: str | None = None
    key: str | None = None
    roles: tuple[Role, ...] = ()
    expires: datetime.datetime | None = None


class RuleEntry(Config, frozen=True):
    who: Annotated[list[str], msgspec.Meta(min_length=1)]
    receive: tuple[str, ...] = ()
    send: tuple[str, ...] = ()
    delay_minutes: Annotated[int, msgspec.Meta(ge=0, le=DELAY_MINUTES_MAX)] = 0


class PolicyDocument(Config, frozen=True):
    clients: dict[str, ClientEntry]
    groups: dict[str, list[str]] = msgspec.field(default_factory=dict)
    rule: tuple[RuleEntry, ...] = ()


class PolicyClient(msgspec.Struct, frozen=True):
    """A client that may log in."""

    name: str
    verifier: SecretVerifier | PublicKey
    roles: frozenset[Role]
    expires_ns: int | None


class Policy:
    """A checked policy document; immutable, made by parse()."""

    def __init__(self, text: str, clients: dict[str, PolicyClient], grants: dict[str, list[Grant]]) -> None:
        self.text = text
        self.clients = clients
        self._grants = grants

    @staticmethod
    def parse(text: str, *, where: str = "policy") -> "Policy":
        if len(text) > DOCUMENT_SIZE_MAX:
            raise ConfigurationError(f"has {len(text)} characters, the limit is {DOCUMENT_SIZE_MAX}", where=where)
        document = parse_toml(text, PolicyDocument, where=where)
        clients = {name: _client(name, entry, where) for name, entry in document.clients.items()}
        groups = _checked_groups(document, where)
        grants: dict[str, list[Grant]] = {name: [] for name in clients}
        for number, rule in enumerate(document.rule):
            place = f"{where}: rule[{number}]"
            of_rule = list(_grants_of(rule, place))
            for name in sorted(_members(rule, groups, clients, place)):
                grants[name] += of_rule
        return Policy(text, clients, grants)

    def filters(self) -> list[str]:
        """The clients that check tokens of other clients."""
        return sorted(client.name for client in self.clients.values() if "filter" in client.roles)

    def grants(self, client: str) -> list[Grant]:
        """All grants of a client: from the rules for it and for its groups."""
        return list(self._grants.get(client, ()))


def granted(grants: list[Grant], wanted: list[str], action: str) -> list[Grant]:
    """Return the part of `grants` that overlaps the wanted topics: for each overlap a grant no wider than either,
    and the denials that touch them. Negative wanted topics are ignored."""
    ours = [(parse_pattern(each.pattern), each) for each in grants if each.action == action]
    denials = [(pattern, each) for pattern, each in ours if pattern.negative]
    found: dict[Grant, None] = {}
    for text in wanted:
        interest = Interest.parse(text)
        if interest.negative:
            continue
        for pattern, grant in ours:
            common = None if pattern.negative else intersection(pattern, interest)
            if common is None:
                continue
            narrowed = parse_pattern(common)
            if not any(covers(denial, narrowed) for denial, _ in denials):
                found[msgspec.structs.replace(grant, pattern=common)] = None
    touching = [
        each for pattern, each in denials if any(intersection(pattern, parse_pattern(g.pattern)) for g in found)
    ]
    return [*found, *dict.fromkeys(touching)]


def is_covered(grants: list[Grant], topics: list[str], action: str) -> bool:
    """True if each pattern lies completely within one grant without delay, and no denial touches it."""
    ours = [(parse_pattern(each.pattern), each) for each in grants if each.action == action]
    for text in topics:
        topic = parse_pattern(text)
        if any(pattern.negative and intersection(pattern, topic) for pattern, _ in ours):
            return False
        if not any(not p.negative and each.delay_s == 0 and covers(p, topic) for p, each in ours):
            return False
    return True


def _client(name: str, entry: ClientEntry, where: str) -> PolicyClient:
    place = f"{where}: clients.{name}"
    _check_name(name, place)
    if (entry.secret is None) == (entry.key is None):
        raise ConfigurationError("needs exactly one of secret and key", where=place)
    verifier: SecretVerifier | PublicKey
    try:
        verifier = SecretVerifier.parse(entry.secret) if entry.secret is not None else PublicKey.parse(str(entry.key))
    except PenstockError as error:
        key = "key" if entry.secret is None else "secret"
        raise ConfigurationError(error.what, where=f"{place}.{key}", hint=error.hint) from None
    expires_ns = None
    if entry.expires is not None:
        if entry.expires.tzinfo is None:
            raise ConfigurationError("has no time zone", where=f"{place}.expires", hint="append Z for UTC")
        expires_ns = int(entry.expires.timestamp()) * NS_PER_SECOND
    return PolicyClient(name, verifier, frozenset(entry.roles), expires_ns)


def _check_name(name: str, place: str) -> None:
    if NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{name[:80]!r} is not a valid name",
            where=place,
            hint="1 to 64 letters, digits, _ . -; the first is a letter or digit",
        )


def _checked_groups(document: PolicyDocument, where: str) -> dict[str, list[str]]:
    for group, members in document.groups.items():
        _check_name(group, f"{where}: groups.{group}")
        for number, member in enumerate(members):
            if member not in document.clients:
                raise ConfigurationError(
                    f"there is no client {member[:80]!r}",
                    where=f"{where}: groups.{group}[{number}]",
                    hint=f"add [clients.{member[:80]}]; groups cannot contain groups",
                )
    return document.groups


def _members(rule: RuleEntry, groups: dict[str, list[str]], clients: dict[str, PolicyClient], place: str) -> set[str]:
    members: set[str] = set()
    for number, name in enumerate(rule.who):
        if name == EVERYBODY:
            members |= set(clients)
        elif name.startswith("@"):
            if name[1:] not in groups:
                raise ConfigurationError(f"there is no group {name[1:81]!r}", where=f"{place}.who[{number}]")
            members |= set(groups[name[1:]])
        elif name in clients:
            members.add(name)
        else:
            hint = f"a group is written @{name[:80]}" if name in groups else "define the client under [clients]"
            raise ConfigurationError(f"there is no client {name[:80]!r}", where=f"{place}.who[{number}]", hint=hint)
    return members


def _grants_of(rule: RuleEntry, place: str) -> Iterator[Grant]:
    if not rule.receive and not rule.send:
        raise ConfigurationError("grants nothing", where=place, hint="write receive = [...] or send = [...]")
    if rule.delay_minutes and not rule.receive:
        raise ConfigurationError(
            "has a delay for sent messages",
            where=f"{place}.delay_minutes",
            hint="remove delay_minutes: only received messages are delayed",
        )
    for action, patterns in (("receive", rule.receive), ("send", rule.send)):
        for number, text in enumerate(patterns):
            try:
                pattern = parse_pattern(text)
            except TopicError as error:
                raise ConfigurationError(
                    error.what, where=f"{place}.{action}[{number}]", hint=error.hint or error.where
                ) from None
            delay_s = 0 if action == "send" or pattern.negative else rule.delay_minutes * 60
            sign = "!" if pattern.negative else ""
            yield Grant(sign + pattern.subject, action, delay_s)  # type: ignore[arg-type]
