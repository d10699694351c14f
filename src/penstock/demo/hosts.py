"""Write the documents of a plant on two hosts, with TLS: one directory for each host."""

import ipaddress
import socket
from pathlib import Path

import msgspec

from penstock.base.clock import random_bytes
from penstock.base.errors import ConfigurationError
from penstock.base.files import make_directory
from penstock.demo.layout import ADAPTERS, ADMIN, FEED, MESSAGES, OPERATIONS, PLAYER, TOPICS, make_client, policy_text
from penstock.demo.ports import Ports
from penstock.demo.reports import MINIMAL_PLANT
from penstock.net.place import is_loopback
from penstock.net.secret import write_private
from penstock.net.udp import Channel
from penstock.security.core.policy import NAME
from penstock.security.live.authority import CertificateAuthority

CA, CA_KEY, CERTIFICATE, PRIVATE_KEY = "ca.pem", "ca.key", "host.pem", "host.key"
STREAM_SECRET, PEER_SECRET, PAGE_TOKEN = "streams.secret", "feed.secret", "page.token"
SECRET_SIZE = 32


class HostAddress(msgspec.Struct, frozen=True):
    """A host, and the address of its interface to the other host."""

    name: str
    address: str

    @staticmethod
    def parse(text: str) -> "HostAddress":
        """Parse an IPv4 address, NAME=ADDRESS, or a name that leads to an address."""
        name, separator, address = text.strip().partition("=")
        if NAME.fullmatch(name) is None:
            raise ConfigurationError(f"{name[:80]!r} is not the name or address of a host", where="--hosts")
        address = address if separator else _resolved(name)
        try:
            is_usable = not is_loopback(str(ipaddress.IPv4Address(address)))
        except ValueError:
            is_usable = False
        if not is_usable:
            raise ConfigurationError(
                f"{name} has the address {address!r}, which is not an IPv4 address that the other host reaches",
                where="--hosts",
                hint="write NAME=ADDRESS, such as feeds=10.0.0.7",
            )
        return HostAddress(name, address)


def _resolved(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise ConfigurationError(
            f"{name} has no address: {error.strerror}",
            where="--hosts",
            hint="write NAME=ADDRESS, such as feeds=10.0.0.7",
        ) from None


class HostsLayout(msgspec.Struct, frozen=True):
    first: Path
    """The directory of the host with the administration server, the exchange and an adapter."""

    second: Path
    """The directory of the host with the other adapter and the applications."""

    url: str
    """URL of the administration server."""


def write_hosts(directory: Path, hosts: tuple[HostAddress, HostAddress], *, ports: Ports, user: str) -> HostsLayout:
    """Write the documents, certificates, secrets and credentials. Only their owner can read the files."""
    authority = CertificateAuthority(f"{directory.name} certificate authority")
    write_private(directory / CA_KEY, authority.own.private_key)
    folders = tuple(directory / each.name for each in hosts)
    secrets = {name: random_bytes(SECRET_SIZE).hex().encode() for name in (STREAM_SECRET, PEER_SECRET)}
    for folder, host in zip(folders, hosts, strict=True):
        make_directory(folder)
        issued = authority.issue(host.name, host.address)
        files = {CA: authority.own.certificate, CERTIFICATE: issued.certificate, PRIVATE_KEY: issued.private_key}
        for name, data in (files | secrets).items():
            write_private(folder / name, data)
    first, second = folders
    write_private(first / PAGE_TOKEN, random_bytes(SECRET_SIZE).hex().encode())
    entries = [
        make_client((first, second), "feed", "adapter", ca_file=CA),
        make_client((first,), OPERATIONS, "administrator", ca_file=CA),
        make_client((second,), user, "", ca_file=CA),
    ]
    write_private(first / "policy.toml", policy_text(entries, [user], MINIMAL_PLANT, user).encode())
    url = f"penstocks://{hosts[0].address}:{ports.admin}"
    for index, folder in enumerate(folders):
        write_private(folder / "plant.toml", _document(index, hosts, ports, url).encode())
    return HostsLayout(first, second, url)


def _document(index: int, hosts: tuple[HostAddress, HostAddress], ports: Ports, url: str) -> str:
    own, other = hosts[index], hosts[1 - index]
    lines = ", ".join(_inline(each, own) for each in ports.lines)
    tls = f'{{ certificate = "{CERTIFICATE}", private_key = "{PRIVATE_KEY}", ca_file = "{CA}" }}'
    feed = _FEED.format(
        feed=FEED,
        topics=TOPICS,
        url="" if index == 0 else f'url = "{url}", ',
        own=own.address,
        other=other.address,
        service_port=ports.services[index],
        tls=tls,
        lines=lines,
        exchange=hosts[0].address,
        request_port=ports.request,
        adapter=ADAPTERS[index],
        index=index,
        channel=_inline(ports.published[index], own),
        peer_port=ports.peers[index],
        other_index=1 - index,
        other_port=ports.peers[1 - index],
    )
    if index:
        return f"{_HEAD.format(host=own.name)}{feed}"
    options = MINIMAL_PLANT
    server = _SERVER.format(admin=ADMIN, own=own.address, port=ports.admin, publishing_port=ports.publishing)
    player = _PLAYER.format(
        player=PLAYER, own=own.address, lines=lines, rate=options.rate, port=ports.request, seed=options.seed,
        symbols=options.symbols, messages=MESSAGES,
    )  # fmt: skip
    return f"{_HEAD.format(host=own.name)}{server}{feed}{player}"


def _inline(channel: Channel, host: HostAddress) -> str:
    return f'{{ group = "{channel.group}", port = {channel.port}, interface = "{host.address}" }}'


_HEAD = """\
# The part of the plant on {host}. Every key: docs/reference/configuration.md. Paths are relative to this file.
name = "plant"
"""

_SERVER = f"""
# The stream administration server: knows clients, grants and streams. Clients connect here first.
[[administration]]
name = "{{admin}}"
policy = "policy.toml"
host = "{{own}}"
port = {{port}}
certificate = "{CERTIFICATE}"
private_key = "{PRIVATE_KEY}"
metrics_access = {{{{ token_file = "{PAGE_TOKEN}" }}}}
publishing.port = {{publishing_port}}
"""

_FEED = f"""
# A feed: one converter table and its adapters, one on each host.
[[feed]]
name = "{{feed}}"
table = "itch"
admin = {{{{ {{url}}credentials = "feed.toml", topics = {{topics}} }}}}

# Streams over TCP, for subscribers that multicast does not reach.
[feed.service]
host = "{{own}}"
port = {{service_port}}
secret_file = "{STREAM_SECRET}"
tls = {{tls}}

# Links to the adapter on the other host.
[feed.peers]
host = "{{own}}"
secret_file = "{PEER_SECRET}"
tls = {{tls}}

# What the exchange sends: lines A and B with the same messages, and the server that repeats lost ones.
[[feed.streams]]
id = 1
name = "totalview"
lines = [{{lines}}]
request = {{{{ host = "{{exchange}}", port = {{request_port}} }}}}

[[feed.adapter]]
name = "{{adapter}}"
index = {{index}}
publish.channel = {{channel}}
peers.port = {{peer_port}}
peers.others = [{{{{ index = {{other_index}}, host = "{{other}}", port = {{other_port}} }}}}]
"""

_PLAYER = """
# A made-up exchange, to try the plant without a real one.
[[player]]
name = "{player}"
host = "{own}"
lines = [{lines}]
rate = {rate}
port = {port}
seed = {seed}
generate = {{ seed = {seed}, symbols = {symbols}, messages = {messages} }}
"""
