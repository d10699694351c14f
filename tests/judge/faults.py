"""What happens to message routers while they are judged: killed, paused, cut off, and with no room on the disk."""

import os
import resource
import signal
from abc import abstractmethod
from typing import ClassVar

from integration.assured_kit import RouterProcess
from integration.relay import Relay

LIMIT_BYTES = 16_384


class Fault:
    """From begin() to end()."""

    name: ClassVar[str]

    def __init__(self, router: RouterProcess) -> None:
        self.router = router

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def end(self) -> None: ...


class Killed(Fault):
    name = "killed"

    def begin(self) -> None:
        self.router.kill()

    def end(self) -> None:
        self.router.start()


class Paused(Fault):
    name = "paused"

    def begin(self) -> None:
        os.kill(self.router.pid, signal.SIGSTOP)

    def end(self) -> None:
        os.kill(self.router.pid, signal.SIGCONT)


class Full(Fault):
    """The limit on the size of its files cuts a write in the middle, as a full disk may."""

    name = "full"

    def begin(self) -> None:
        self._limit(LIMIT_BYTES)

    def end(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        _, hard = resource.prlimit(self.router.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(
            self.router.pid, resource.RLIMIT_FSIZE, (size if size != resource.RLIM_INFINITY else hard, hard)
        )


class CutOff(Fault):
    """Nothing passes the relay, in either direction."""

    name = "cut off"

    def __init__(self, router: RouterProcess, relay: Relay) -> None:
        super().__init__(router)
        self._relay = relay

    def begin(self) -> None:
        self._relay.is_cut = True

    def end(self) -> None:
        self._relay.is_cut = False
