"""Who judges what a consumer of a node may have (MUX-2): nobody, this node, or the node above."""

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.base.errors import RefusedError
from penstock.engine.control import Vouched
from penstock.plant.desk import RefusalError, refused_above
from penstock.plant.rights import EVERYTHING, Rights
from penstock.security import Token
from penstock.security.gate import token_needed

Verify = Callable[[str, int], Token]
"""Checks a token's text at a time of the wall clock; a PenstockError says why it is not good."""


class Above(Protocol):
    """The node above, as far as access goes."""

    async def vouch(self, name: str, token: str, topics: Sequence[str] = ()) -> Vouched: ...


class Access(Protocol):
    async def admit(self, name: str, token: str, now_ns: int) -> Rights:
        """What the consumer of this name may have; an error when it may not even come in."""

    async def judge(self, name: str, token: str, rights: Rights, topics: Sequence[str]) -> Rights:
        """By what a request for these topics is judged, of one that was admitted with these rights."""


class OpenAccess:
    """Everybody who can connect may have everything."""

    async def admit(self, name: str, token: str, now_ns: int) -> Rights:
        return EVERYTHING

    async def judge(self, name: str, token: str, rights: Rights, topics: Sequence[str]) -> Rights:
        return rights


class LocalAccess:
    """This node checks tokens by itself."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify

    async def admit(self, name: str, token: str, now_ns: int) -> Rights:
        if not token:
            raise token_needed()
        return Rights.of_token(self._verify(token, now_ns))

    async def judge(self, name: str, token: str, rights: Rights, topics: Sequence[str]) -> Rights:
        return rights


class ForwardAccess:
    """The node above is asked once, when a consumer comes, and its answer is kept."""

    def __init__(self, above: Above) -> None:
        self._above = above

    async def admit(self, name: str, token: str, now_ns: int) -> Rights:
        return await self._vouched(name, token, ())

    async def judge(self, name: str, token: str, rights: Rights, topics: Sequence[str]) -> Rights:
        return rights

    async def _vouched(self, name: str, token: str, topics: Sequence[str]) -> Rights:
        try:
            return Rights.vouched(await self._above.vouch(name, token, topics))
        except RefusedError as error:
            raise RefusalError(refused_above(error), error.what) from None


class PlantHeldAccess(ForwardAccess):
    """The node above is asked for each request besides, and nothing of its answers is kept."""

    async def judge(self, name: str, token: str, rights: Rights, topics: Sequence[str]) -> Rights:
        return await self._vouched(name, token, topics)
