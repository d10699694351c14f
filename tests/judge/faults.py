"""Faults of message routers and their clients under test: kills, pauses, partitions, and full disks."""

import os
import resource
import signal
from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from integration.relay import Relay
from netns_kit import cut_way, mend_way
from penstock.bench.hosts import Host

LIMIT_BYTES = 16_384


class Target(Protocol):
    """A process that can be killed and restarted: a router, a witness or clients."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def start(self) -> None: ...


class Fault:
    """A fault from begin() to end(); `name` describes the fault and its target."""

    name: str

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def end(self) -> None: ...


class Killed(Fault):
    def __init__(self, target: Target, name: str) -> None:
        self.name = f"{name} killed"
        self._target = target

    def begin(self) -> None:
        self._target.kill()

    def end(self) -> None:
        self._target.start()


class Paused(Fault):
    def __init__(self, target: Target, name: str) -> None:
        self.name = f"{name} paused"
        self._target = target

    def begin(self) -> None:
        os.kill(self._target.pid, signal.SIGSTOP)

    def end(self) -> None:
        os.kill(self._target.pid, signal.SIGCONT)


class Full(Fault):
    """The limit on the size of its files truncates a write, like a full disk."""

    def __init__(self, target: Target, name: str) -> None:
        self.name = f"{name} full"
        self._target = target

    def begin(self) -> None:
        self._limit(LIMIT_BYTES)

    def end(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        _, hard = resource.prlimit(self._target.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(
            self._target.pid, resource.RLIMIT_FSIZE, (size if size != resource.RLIM_INFINITY else hard, hard)
        )


class CutOff(Fault):
    """The relay forwards nothing, in either direction."""

    name = "cut off"

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def begin(self) -> None:
        self._relay.cut()

    def end(self) -> None:
        self._relay.heal()


class Lost(Fault):
    """Packets from these hosts to those are lost, without an error; `is_mutual`: in both directions."""

    def __init__(self, name: str, sources: Sequence[Host], targets: Sequence[Host], *, is_mutual: bool = True) -> None:
        self.name = name
        there = [(source, target) for source in sources for target in targets]
        self._ways = [*there, *((target, source) for source, target in there if is_mutual)]

    def begin(self) -> None:
        for source, target in self._ways:
            cut_way(source, target)

    def end(self) -> None:
        for source, target in self._ways:
            mend_way(source, target)
