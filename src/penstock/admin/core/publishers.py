"""Publishers' ids: each name of a client has a unique id, and a new epoch for each start."""

from collections.abc import Callable

from penstock.admin.config import AdminLimits
from penstock.admin.core.records import PublisherName
from penstock.admin.core.state import State
from penstock.base.errors import LimitError
from penstock.base.limits import EPOCH_MAX
from penstock.security.core.brokering import PublisherClaimed

ID_SIZE = 8
EPOCH_STEP = 1_024
"""Added to the epochs by a server that takes over. Larger than the number of starts that a server records before its
standby receives them."""


class Publishers:
    def __init__(self, state: State, limits: AdminLimits, random: Callable[[int], bytes]) -> None:
        self._state = state
        self._limits = limits
        self._random = random

    def claim(self, client: str, name: str) -> PublisherClaimed:
        """The id of a client's publisher, and the epoch of its next start."""
        key = f"{client}/{name}"
        held = self._state.publishers.get(key)
        if held is None:
            self._check_room(client)
            held = PublisherName(client, name, self.new_id(), 0)
        return self._advance(key, held, 1, is_claim=True)

    def begin(self) -> None:
        """Skip the epochs that the previous server may have issued without this server's knowledge."""
        for key, held in list(self._state.publishers.items()):
            self._advance(key, held, EPOCH_STEP)

    def owner(self, publisher_id: int) -> str | None:
        """The publisher with this id, as CLIENT/NAME, or CLIENT/SUBSCRIPTION for a stream of a subscription."""
        found = [key for key, each in self._state.publishers.items() if each.publisher_id == publisher_id]
        found += [
            f"{each.client}/{name}"
            for name, each in self._state.subscriptions.items()
            if each.stream is not None and each.stream.publisher_id == publisher_id
        ]
        return next(iter(found), None)

    def _advance(self, key: str, held: PublisherName, step: int, *, is_claim: bool = False) -> PublisherClaimed:
        epoch = held.epoch + step
        if epoch > EPOCH_MAX:
            raise LimitError(f"{key} has used all of its epochs", hint="choose another name")
        claimed = epoch if is_claim else held.claimed
        self._state.put("publisher", key, PublisherName(held.client, held.name, held.publisher_id, epoch, claimed))
        return PublisherClaimed(name=held.name, publisher_id=held.publisher_id, epoch=epoch)

    def new_id(self) -> int:
        """An id that no publisher or adapter has."""
        taken = {each.publisher_id for each in self._state.publishers.values()}
        taken |= {each.stream.publisher_id for each in self._state.subscriptions.values() if each.stream is not None}
        taken |= {each.registration.publisher_id for each in self._state.adapters.values()}
        while True:
            made = int.from_bytes(self._random(ID_SIZE), "little") >> 1  # positive in every integer type of 64 bits
            if made and made not in taken:
                return made

    def _check_room(self, client: str) -> None:
        held = self._state.publishers.values()
        if len(held) >= self._limits.publishers_max:
            raise LimitError(f"there are {len(held)} publishers already", hint="raise publishers_max")
        own = sum(each.client == client for each in held)
        if own >= self._limits.client_publishers_max:
            raise LimitError(f"{client} has {own} publishers already", hint="use a name again")
