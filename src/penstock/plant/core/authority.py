"""Where the rights of a node's consumers are checked (MUX-2): nowhere, at this node, or at the upstream node."""

from collections.abc import Sequence
from typing import Protocol

from penstock.base.errors import RefusedError
from penstock.engine.control import Vouched
from penstock.plant.core.access import refused_upstream
from penstock.security import Grant
from penstock.security.core.access_control import Rights, Verify
from penstock.security.core.refusal import RefusalError
from penstock.security.core.token import token_needed


class Upstream(Protocol):
    """The upstream node's checks of rights."""

    async def vouch(self, name: str, token: str, topics: Sequence[str] = ()) -> Vouched: ...


class Authority(Protocol):
    async def admit(self, name: str, token: str, now_ns: int) -> Rights:
        """Return the rights of the consumer of this name. Raise an error if it may not connect."""

    async def judge(self, name: str, token: str, rights: Rights, topics: Sequence[str]) -> Rights:
        """Return the rights for a request for these topics, of a consumer that was admitted with `rights`."""


class OpenAuthority:
    """Every consumer that can connect has all rights."""

    async def admit(self, name: str, token: str, now_ns: int) -> Rights:
        return Rights()

    async def judge(self, name: str, token: str, rights: Rights, topics: Sequence[str]) -> Rights:
        return rights


class LocalAuthority:
    """This node checks tokens."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify

    async def admit(self, name: str, token: str, now_ns: int) -> Rights:
        if not token:
            raise token_needed()
        return Rights.of_token(self._verify(token, now_ns))

    async def judge(self, name: str, token: str, rights: Rights, topics: Sequence[str]) -> Rights:
        return rights


class UpstreamAuthority:
    """The upstream node checks the token once, when the consumer connects; its answer is kept."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def admit(self, name: str, token: str, now_ns: int) -> Rights:
        return await self._vouched(name, token, ())

    async def judge(self, name: str, token: str, rights: Rights, topics: Sequence[str]) -> Rights:
        return rights

    async def _vouched(self, name: str, token: str, topics: Sequence[str]) -> Rights:
        try:
            return rights_of(await self._upstream.vouch(name, token, topics))
        except RefusedError as error:
            raise RefusalError(refused_upstream(error), error.what) from None


class UpstreamPerRequestAuthority(UpstreamAuthority):
    """The upstream node checks each request too; its answers are not kept."""

    async def judge(self, name: str, token: str, rights: Rights, topics: Sequence[str]) -> Rights:
        return await self._vouched(name, token, topics)


def rights_of(told: Vouched) -> Rights:
    """Convert the upstream node's answer to rights."""
    grants = tuple(Grant(pattern, "receive") for pattern in told.grants)
    return Rights(told.subject, grants, told.subscription_id, told.expires_ns)
