"""The current rights of a client: the grants of the policy without the revocations of administrators."""

from penstock.admin.core.state import State
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import NotEntitledError, RequestError, RevokedError
from penstock.security import Policy
from penstock.security.core.patterns import covers, overlaps, parse_pattern
from penstock.security.core.policy import granted, is_covered
from penstock.security.core.token import Action, Grant
from penstock.topics import Interest

TOPICS_NAMED_MAX = 5
EVERYTHING = ">"
PUBLISHING_ROLES = frozenset({"publisher", "adapter"})


class ClientGrants:
    def __init__(self, policy: Policy, state: State) -> None:
        self.policy = policy
        self._state = state

    def grants(self, client: str, now_ns: int) -> list[Grant]:
        entry = self.policy.clients.get(client)
        if entry is None or (entry.expires_ns is not None and now_ns >= entry.expires_ns):
            return []
        grants = self.policy.grants(client)
        for pattern, _ in self._denied(client):
            grants += [Grant(f"!{pattern}", "receive"), Grant(f"!{pattern}", "send")]
        return grants

    def expiry_ns(self, client: str, seconds: int, now_ns: int) -> int:
        """Expiry of a token or session with this lifetime; not later than that of the client's credentials."""
        entry = self.policy.clients.get(client)
        expires_ns = now_ns + seconds * NS_PER_SECOND
        return expires_ns if entry is None or entry.expires_ns is None else min(expires_ns, entry.expires_ns)

    def decide(self, client: str, topics: list[str], send: list[str], now_ns: int) -> list[Grant]:
        """The grants for the requested topics, or a refusal that names the topics without a grant."""
        wanted = [text for text in topics if not Interest.parse(text).negative]
        if not send and not wanted:
            raise RequestError("asks for nothing", hint="name topics to receive or to send")
        if any(parse_pattern(text).negative for text in send):
            raise RequestError("a topic to send on is a negative interest", hint="remove the !")
        self._check(client, wanted, "receive", now_ns)
        self._check(client, send, "send", now_ns)
        return self.narrowed(client, wanted, send, now_ns)

    def narrowed(self, client: str, topics: list[str], send: list[str], now_ns: int) -> list[Grant]:
        """Return the grants that cover the requested topics; may be empty."""
        grants = self.grants(client, now_ns)
        return [*granted(grants, topics, "receive"), *granted(grants, send, "send")]

    def not_sent(self, client: str, topics: list[str], now_ns: int) -> list[str]:
        """Return the topics that the client may not send, completely or in part."""
        grants = self.grants(client, now_ns)
        return [text for text in topics if parse_pattern(text).negative or not is_covered(grants, [text], "send")]

    def may_publish(self, client: str, now_ns: int) -> bool:
        """True for a client whose publishers get ids, unless an administrator revoked all its rights."""
        entry = self.policy.clients.get(client)
        if entry is None or not entry.roles & PUBLISHING_ROLES:
            return False
        denials = (each for each in self.grants(client, now_ns) if is_denial(each) and each.action == "send")
        return not any(covers(parse_pattern(each.pattern), parse_pattern(EVERYTHING)) for each in denials)

    def has_live_data(self, client: str, now_ns: int) -> bool:
        """True if the client may receive anything without a delay."""
        live = [each for each in self.grants(client, now_ns) if each.delay_s == 0]
        return bool(granted(live, [EVERYTHING], "receive"))

    def _check(self, client: str, wanted: list[str], action: Action, now_ns: int) -> None:
        grants = self.grants(client, now_ns)
        refused = [text for text in wanted if not granted(grants, [text], action)]
        if not refused:
            return
        for pattern, reason in self._denied(client):
            if overlaps(parse_pattern(pattern), Interest.parse(refused[0])):
                raise RevokedError(f"{refused[0]!r} was taken away: {reason}")
        more = len(refused) - TOPICS_NAMED_MAX
        named = ", ".join(refused[:TOPICS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
        raise NotEntitledError(f"no rule lets {client} {action} {named}", hint="the policy document has the rules")

    def _denied(self, client: str) -> list[tuple[str, str]]:
        """Patterns and reasons of an administrator's revocations."""
        held = self._state.denials.get(client)
        return [(topic, each.reason) for each in held.denials for topic in each.topics] if held is not None else []


def has_lost(before: tuple[Grant, ...], now: list[Grant]) -> bool:
    """True if a token with earlier grants allows more than the client's current rights."""
    return any(not _is_kept(each, now) for each in before if not is_denial(each)) or any(
        not _is_kept(each, list(before)) for each in now if is_denial(each)
    )


def _is_kept(grant: Grant, others: list[Grant]) -> bool:
    """True if another grant covers this grant, or another denial this denial."""
    pattern = parse_pattern(grant.pattern)
    return any(
        is_denial(each) == pattern.negative
        and each.action == grant.action
        and each.delay_s <= grant.delay_s
        and covers(parse_pattern(each.pattern), pattern)
        for each in others
    )


def is_denial(grant: Grant) -> bool:
    return grant.pattern.startswith("!")
