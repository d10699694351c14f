"""Several hosts on one machine: network namespaces, each with an interface, joined by a bridge in one more.

    with Network() as network:
        publisher, subscriber = network.add_host(), network.add_host()
        subscriber.lose(0.01)
        with subscriber.entered(): ...      # sockets, threads and processes created here belong to the host

Requires root. This machine's own network is not changed, and everything is removed with the namespaces.
"""

import ctypes
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.base.errors import PenstockError

CLONE_NEWNET = 0x40000000
NAMESPACES = Path("/run/netns")
PREFIX = "penstock-bench"
INTERFACE = "eth0"
SUBNET = "10.77.0"
HOSTS_MAX = 250

_libc = ctypes.CDLL(None, use_errno=True)


def reason_without(*, is_lossy: bool = True) -> str:
    """Return why such hosts cannot be created here, and the command to fix that; empty if they can. `is_lossy`: lose()
    is needed.
    """
    if os.geteuid() != 0:
        return "network namespaces need root: sudo -E env PATH=$PATH make test"
    tools = {"ip": "iproute2", "nft": "nftables"} if is_lossy else {"ip": "iproute2"}
    if missing := [name for name in tools if shutil.which(name) is None]:
        return f"{' and '.join(missing)} not found: apt install {' '.join(tools[name] for name in missing)}"
    try:
        with Network() as network:
            host = network.add_host()
            if is_lossy:
                host.lose(0.0)
    except PenstockError as error:
        return f"cannot create network namespaces: {error.what}"
    return ""


class Host:
    """One host. `address` is that of its interface."""

    def __init__(self, namespace: str, number: int, switch: str) -> None:
        self.namespace = namespace
        self.address = f"{SUBNET}.{number}"
        self.switch = switch
        """The namespace of the bridge."""

        self.port = f"port{number}"
        """The other end of the host's cable, at the bridge."""

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside this context, sockets, threads and processes created by this thread belong to the host."""
        with entered(self.namespace):
            yield

    def lose(self, share: float) -> None:
        """Drop this share of the UDP datagrams that arrive from other hosts, at random."""
        chance = f"numgen random mod 10000 < {round(share * 10_000)}"
        rule = f"iifname {INTERFACE} ip saddr != {self.address} meta l4proto udp {chance}"
        self._nft(
            "add table ip penstock",
            "delete table ip penstock",
            "add table ip penstock",
            "add counter ip penstock lost",
            "add chain ip penstock arriving { type filter hook prerouting priority -300 ; }",
            f"add rule ip penstock arriving {rule} counter name lost drop",
        )

    @property
    def lost(self) -> int:
        """Return the number of datagrams dropped since lose()."""
        found = re.search(r"packets (\d+)", self._nft("list counter ip penstock lost"))
        return int(found[1]) if found else 0

    def cut(self) -> None:
        """Disconnect the cable inside this context; datagrams sent in between are lost."""
        run("ip", "-n", self.switch, "link", "set", self.port, "down")

    def mend(self) -> None:
        run("ip", "-n", self.switch, "link", "set", self.port, "up")

    def _nft(self, *commands: str) -> str:
        return run("ip", "netns", "exec", self.namespace, "nft", "--file", "-", text="\n".join(commands))


class Network:
    """A bridge that forwards multicast to every port, and its hosts."""

    _made = 0

    def __init__(self) -> None:
        Network._made += 1
        self._name = f"{PREFIX}-{os.getpid()}-{Network._made}"
        self._switch = f"{self._name}-switch"
        self.hosts: list[Host] = []

    def __enter__(self) -> Self:
        _remove_orphans()
        try:
            run("ip", "netns", "add", self._switch)
            self._ip("link", "add", "bridge", "type", "bridge", "mcast_snooping", "0")
            self._ip("link", "set", "bridge", "up")
        except PenstockError:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def add_host(self) -> Host:
        number = len(self.hosts) + 1
        if number > HOSTS_MAX:
            raise PenstockError(f"a network is limited to {HOSTS_MAX} hosts")
        host = Host(f"{self._name}-{number}", number, self._switch)
        self.hosts.append(host)
        run("ip", "netns", "add", host.namespace)
        self._ip("link", "add", host.port, "type", "veth", "peer", "name", INTERFACE, "netns", host.namespace)
        self._ip("link", "set", host.port, "master", "bridge", "up")
        for command in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{host.address}/24", "dev", INTERFACE),
            ("link", "set", INTERFACE, "up"),
            ("route", "add", "224.0.0.0/4", "dev", INTERFACE),
        ):
            run("ip", "-n", host.namespace, *command)
        return host

    def close(self) -> None:
        for namespace in (*(host.namespace for host in self.hosts), self._switch):
            remove(namespace)

    def _ip(self, *command: str) -> None:
        run("ip", "-n", self._switch, *command)


def run(*command: str, text: str = "") -> str:
    """Run a command with this input and return its output; raise PenstockError with its error output if it fails."""
    ended = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise PenstockError(f"{' '.join(command)}: {ended.stderr.strip()}")
    return ended.stdout


def remove(namespace: str) -> None:
    """Remove a namespace with its content, if it exists."""
    if (NAMESPACES / namespace).exists():
        run("ip", "netns", "delete", namespace)


def _remove_orphans() -> None:
    """Remove the namespaces of killed processes."""
    for path in NAMESPACES.glob(f"{PREFIX}-*"):
        process = path.name.removeprefix(f"{PREFIX}-").partition("-")[0]
        if process.isdigit() and not Path(f"/proc/{process}").exists():
            remove(path.name)


@contextmanager
def entered(namespace: str) -> Iterator[None]:
    """Inside this context, this thread and the threads and processes that it starts run in the namespace."""
    before = _opened(Path(f"/proc/self/task/{threading.get_native_id()}/ns/net"))
    try:
        there = _opened(NAMESPACES / namespace)
        try:
            _set(there)
        finally:
            os.close(there)
        yield
    finally:
        _set(before)
        os.close(before)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _set(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET):
        raise PenstockError(f"cannot enter the network namespace: {os.strerror(ctypes.get_errno())}")
