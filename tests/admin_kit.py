"""A policy with one client of every kind, and servers that use it."""

import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from penstock.admin import AdminConfig, AdminLimits
from penstock.base.clock import NS_PER_SECOND, random_bytes
from penstock.net.secret import write_private
from penstock.security import Credentials, Grant, PrivateKey, Token, TokenSigner
from penstock.security.core.brokering import (
    AdapterHeartbeat,
    AdapterRegistration,
    Brokered,
    KeysChanged,
    ModelReference,
    SourceStreamName,
)
from penstock.security.core.proof import SecretVerifier
from penstock.security.core.sealing import StreamKey
from penstock.security.live.client import AdminClient
from waiting import wait_until

SECRETS = {name: f"the secret of {name}".encode() for name in ("alice", "bob", "dora", "old")}
_HAVE_KEYS = ("carol", "root", "feed", "pair", "filter", "quill")
KEYS = {name: PrivateKey(number.to_bytes(32, "big")) for number, name in enumerate(_HAVE_KEYS)}

RULES = """
[groups]
desk = ["alice", "bob"]

[[rule]]
who = ["@desk"]
receive = ["md.us.>"]
send = ["derived.desk.>"]

[[rule]]
who = ["dora"]
receive = ["md.us.eq.>"]
delay_minutes = 15

[[rule]]
who = ["carol"]
receive = ["md.us.eq.*.quote"]

[[rule]]
who = ["feed"]
send = ["md.us.eq.>", "derived.>"]
"""


def policy_text(rules: str = RULES) -> str:
    clients = [f'[clients.{name}]\nsecret = "{_verifier(name)}"\n' for name in SECRETS]
    clients += [f'[clients.{name}]\nkey = "{KEYS[name].public.text}"\n{_roles(name)}' for name in KEYS]
    text = "".join(clients) + rules
    return text.replace("[clients.old]\n", "[clients.old]\nexpires = 2020-01-01T00:00:00Z\n")


@functools.cache
def _verifier(name: str) -> str:
    return SecretVerifier.make(SECRETS[name], name.encode().ljust(16, b".")).text


def _roles(name: str) -> str:
    roles = {"root": "administrator", "feed": "adapter", "pair": "standby", "filter": "filter", "quill": "publisher"}
    return f'roles = ["{roles[name]}"]\n' if name in roles else ""


@functools.cache
def credentials(name: str) -> Credentials:
    """The same object for every test, because it derives the keys of its secret only once."""
    return Credentials(name, secret=SECRETS.get(name), key=KEYS.get(name))


def credentials_file(directory: Path, name: str) -> Path:
    path = directory / f"{name}.toml"
    if not path.exists():
        if name in KEYS:
            KEYS[name].write(directory / f"{name}.pem")
            write_private(path, f'client = "{name}"\nkey_file = "{name}.pem"\n'.encode())
        else:
            write_private(path, f'client = "{name}"\nsecret = "{SECRETS[name].decode()}"\n'.encode())
    return path


def config(directory: Path, **values: Any) -> AdminConfig:
    """The configuration of a server with its files in a directory."""
    policy = directory / "policy.toml"
    if not policy.exists():
        policy.write_text(policy_text())
    values = {"limits": AdminLimits(key_grace_s=0.0), "port": 0, **values}
    return AdminConfig(directory=str(directory / "state"), policy=str(policy), **values)


def confirm_keys(feed: AdminClient, *adapters: str) -> list[StreamKey]:
    """Act like an adapter: take the stream keys from the events, and confirm the keys and all events. Returns the
    keys."""
    events = feed.events(0, wait_s=0).events
    keys = [key for each in events if isinstance(each.body, KeysChanged) for key in each.body.keys]
    for adapter in adapters or ("a",):
        key_ids = [key.key_id for key in keys]
        feed.heartbeat(AdapterHeartbeat(feed="itch", adapter=adapter, term=0, key_ids=key_ids))
    feed.events(events[-1].number if events else 0, wait_s=0)
    return keys


def begun(client: AdminClient, topics: list[str]) -> Brokered:
    """A subscription to a sealed feed with running adapters, as soon as the client has its keys."""
    held = client.subscribe(topics)

    def has_keys() -> bool:
        nonlocal held
        held = client.renew(held.subscription_id)
        return bool(held.streams and held.streams[0].keys)

    wait_until(has_keys, "the keys of the subscription")
    return held


def registration(**values: Any) -> AdapterRegistration:
    """The registration of an adapter on a multicast group."""
    values = {
        "feed": "itch",
        "adapter": "a",
        "index": 0,
        "publisher_id": 11 + values.get("index", 0),
        "transport": "multicast",
        "group": "239.255.1.1",
        "port": 7_500,
        "interface": "127.0.0.1",
        "service_host": "127.0.0.1",
        "service_port": 7_600,
        "topics": ["md.us.eq.>"],
        "contributions": ["derived.>"],
        "source_streams": [SourceStreamName(stream_id=1, name="itch-am")],
        "models": [ModelReference(id=1, version=1, name="quote")],
        **values,
    }
    return msgspec.convert(values, AdapterRegistration)


def signed_token(signing_key: Path, client: str, grants: Sequence[Grant]) -> str:
    """A token as the administration server would issue it for these grants: with a delay of seconds."""
    now_ns = time.time_ns()
    token = Token("stream", client, random_bytes(16).hex(), tuple(grants), now_ns, now_ns + 60 * NS_PER_SECOND, 1)
    return TokenSigner(PrivateKey.read(signing_key)).sign(token)
