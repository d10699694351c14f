"""Write the documents of the demo plant into a directory, like those an operator writes by hand."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.admin.live.store import FILE_NAME
from penstock.base.clock import random_bytes
from penstock.base.files import write_file
from penstock.demo.ports import Ports
from penstock.demo.reports import DemoOptions
from penstock.demo.routing import ROUTERS, Routing, routing
from penstock.engine.control import ClassName
from penstock.feed.core.play.generator import WELL_KNOWN
from penstock.net.secret import write_private
from penstock.net.udp import Channel
from penstock.security.core.proof import SALT_SIZE, SecretVerifier

FEED = "nasdaq"
TOPICS = ["md.us.eq.>"]
FILTERED_TOPICS = ["md.us.eq.>", "!md.us.eq.*.book"]
"""Topics of subscribers behind the filter module: everything but changes of order books."""

UNWANTED_MODEL = "book_event"
"""The model of the unwanted messages."""

ADAPTERS = ("adapter-a", "adapter-b")
PLAYER = "exchange"
ADMIN = "admin"
FILTER = "filter"
TICKER_PLANT = "ticker-plant"
MUX = "mux"
EDGE = "edge"
NODES = (TICKER_PLANT, MUX, EDGE)
"""Distribution nodes, each fed by the previous one."""

CONSUMERS: dict[str, tuple[ClassName, str, str]] = {
    "algorithm": ("critical", MUX, "trade"),
    "pricing": ("adaptive", MUX, "quote"),
    "screen": ("metered", EDGE, "quote"),
}
"""The consumers' class, node and model."""

TREE = "tree"
ROOT = "root"
AGENTS: dict[str, tuple[str, str]] = {
    "middle-1": (ROOT, ""),
    "middle-2": (ROOT, ""),
    "leaf-1": ("middle-1", "middle-2"),
    "leaf-2": ("middle-2", "middle-1"),
}
"""Agents below the root: the parent of each agent, and its alternative parent."""

TREE_TOPICS = ["md.us.eq.*.quote", "md.us.eq.*.trade"]
"""The feed's topics that the tree distributes."""

DESK_TOPICS = ["app.desk.>"]
"""Topics on which people publish from browsers."""

ROUTER = "router"
"""The common client name of both message routers at the administration server."""

BOOKING = "booking"
CLEARING = "clearing"
ENDPOINT = "trades"
PREFIX = "booked"
"""Prefix of the topics of assured messages, followed by the topic of the trade."""

BOOKED_MAX = 5
"""Maximum number of symbols whose trades are booked as assured messages."""

CONSOLE = "console"
OPERATIONS = "operations"
VISITOR = "visitor"

SCREEN_PER_SECOND = 4.0
JOURNAL = "state/{}.journal"
ACCOUNTS = "state/{}.accounts"
MESSAGES = 2**40
"""Number of messages of the generated day; larger than any demo needs."""


class Layout(msgspec.Struct, frozen=True):
    plant: Path
    url: str
    """URL of the administration server."""

    credentials: list[Path]
    """Credentials of each subscriber."""

    journals: list[Path]
    """Journals of the adapters, if enabled."""

    accounts: list[Path]
    """Accounts of the filter module, the tree's agents and the message routers, if enabled."""

    filter: str
    """Control address of the filter module; empty without one."""

    nodes: dict[str, str]
    """Address of each distribution node for consumers, as host:port."""

    audit_log: Path
    """The administration server's database."""

    operations: Path
    """The credentials of an administrator, for the console."""

    router: str
    """Addresses of the message routers for clients, host:port of both; empty without routers."""

    booked: list[str]
    """Symbols whose trades pass the routers."""

    per_second: float = SCREEN_PER_SECOND
    """Rate of the metered consumer."""


def write_layout(directory: Path, options: DemoOptions, *, ports: Ports | None = None, user: str = "") -> Layout:
    """Write a plant's documents. `ports` are free ones by default. `user` replaces the subscribers: a client who may
    also send and receive the assured messages and publish in the tree."""
    ports = ports or Ports.free()
    subscribers = [user] if user else [f"subscriber-{number + 1}" for number in range(options.subscribers)]
    nodes, consumers = (NODES, CONSUMERS) if options.nodes else ((), {})
    receivers = [*subscribers, *consumers]
    roles = {"feed": "adapter", OPERATIONS: "administrator", **dict.fromkeys(receivers, "")}
    if options.nodes:
        roles |= dict.fromkeys((FILTER, *nodes), "filter")
    if options.tree:
        roles |= {TREE: "filter", VISITOR: ""}
    if options.router:
        roles |= {ROUTER: "filter", BOOKING: "", CLEARING: ""}
    entries = [make_client((directory,), name, role) for name, role in roles.items()]
    policy = directory / "policy.toml"
    write_file(policy, policy_text(entries, [*receivers, *nodes], options, user).encode())
    adapters = "".join(
        _ADAPTER.format(name=name, channel=_inline(channel), port=port, journal=_journal(name, options))
        for name, port, channel in zip(ADAPTERS, ports.peers, ports.published, strict=True)
    )
    routed = _routing(options, ports) if options.router else Routing("", "")
    plant = directory / "plant.toml"
    plant.write_text(
        _PLANT.format(
            feed=FEED,
            topics=TOPICS,
            admin=ADMIN,
            admin_port=ports.admin,
            publishing_port=ports.publishing,
            lines=", ".join(map(_inline, ports.lines)),
            request_port=ports.request,
            adapters=adapters,
            nodes=_nodes(options, ports) if options.nodes else "",
            tree=_tree(options, ports) if options.tree else "",
            router=routed.document,
            spin=str(options.spin).lower(),
            player=PLAYER,
            rate=options.rate,
            loss=options.loss,
            seed=options.seed,
            symbols=options.symbols,
            messages=MESSAGES,
        )
    )
    return Layout(
        plant,
        f"penstock://127.0.0.1:{ports.admin}",
        [directory / f"{name}.toml" for name in subscribers],
        [directory / JOURNAL.format(name) for name in ADAPTERS],
        [directory / ACCOUNTS.format(name) for name in _accountants(options)],
        f"127.0.0.1:{ports.filter}" if options.nodes else "",
        {name: f"127.0.0.1:{port}" for name, port in zip(nodes, ports.nodes, strict=False)},
        directory / "state" / ADMIN / FILE_NAME,
        directory / f"{OPERATIONS}.toml",
        routed.places,
        list(WELL_KNOWN)[: min(options.symbols, BOOKED_MAX)] if options.router else [],
    )


def make_client(directories: Sequence[Path], name: str, role: str, *, ca_file: str = "") -> str:
    """Create a secret: write the client's credentials file into each directory, and return the policy entry."""
    secret = random_bytes(32).hex()
    trusted = f'ca_file = "{ca_file}"\n' if ca_file else ""
    for directory in directories:
        write_private(directory / f"{name}.toml", f'client = "{name}"\nsecret = "{secret}"\n{trusted}'.encode())
    verifier = SecretVerifier.make(secret.encode(), random_bytes(SALT_SIZE))
    roles = f'roles = ["{role}"]\n' if role else ""
    return f'[clients.{name}]\nsecret = "{verifier.text}"\n{roles}'


def policy_text(entries: list[str], receivers: list[str], options: DemoOptions, user: str) -> str:
    users = [user] if user else []
    rules = f'[[rule]]\nwho = ["feed"]\nsend = {TOPICS}\n\n[[rule]]\nwho = {receivers}\nreceive = {TOPICS}\n'
    if options.tree:
        everything = [*TOPICS, *DESK_TOPICS]
        rules += f"\n[[rule]]\nwho = {[TREE, OPERATIONS, VISITOR, *users]}\nreceive = {everything}\n"
        rules += f"\n[[rule]]\nwho = {[OPERATIONS, VISITOR, *users]}\nsend = {DESK_TOPICS}\n"
    if options.router:
        booked, queued = [f"{PREFIX}.>"], [f"queue.{ENDPOINT}"]
        rules += f"\n[[rule]]\nwho = {[BOOKING, *users]}\nreceive = {TOPICS}\nsend = {booked}\n"
        rules += f"\n[[rule]]\nwho = {[CLEARING, *users]}\nreceive = {queued}\n"
    return "\n".join([*entries, rules])


def _nodes(options: DemoOptions, ports: Ports) -> str:
    """Return the filter module and the distribution nodes."""
    return _NODES.format(
        filter=FILTER,
        filter_port=ports.filter,
        accounts=_accounts(FILTER, options),
        topics=TOPICS,
        ports=ports.nodes,
        websocket_port=ports.websocket,
        names=NODES,
    )


def _tree(options: DemoOptions, ports: Ports) -> str:
    """Return the tree: a root with the feed, two agents below it, a leaf below each; and the console."""
    places = {name: f"127.0.0.1:{port}" for name, port in zip((ROOT, *AGENTS), ports.agents, strict=True)}
    root = _ROOT.format(
        name=ROOT, port=ports.agents[0], topics=TREE_TOPICS, desk=DESK_TOPICS, common=_COMMON + _accounts(ROOT, options)
    )
    below = [
        _AGENT.format(
            name=name,
            port=port,
            parent=places[parent],
            alternates=f'alternates = ["{places[alternate]}"]\n' if alternate else "",
            common=_COMMON + _accounts(name, options),
        )
        for (name, (parent, alternate)), port in zip(AGENTS.items(), ports.agents[1:], strict=True)
    ]
    return "".join([root, *below, _CONSOLE.format(name=CONSOLE, port=ports.console, login=OPERATIONS)])


def _routing(options: DemoOptions, ports: Ports) -> Routing:
    return routing(
        ports,
        credentials=ROUTER,
        operator=OPERATIONS,
        endpoint=ENDPOINT,
        topics=[f"{PREFIX}.>"],
        accounts=lambda name: _accounts(name, options),
    )


def _accountants(options: DemoOptions) -> list[str]:
    """Return the nodes that write accounts."""
    return [
        *((FILTER,) if options.nodes else ()),
        *((ROOT, *AGENTS) if options.tree else ()),
        *(ROUTERS if options.router else ()),
    ]


def _journal(name: str, options: DemoOptions) -> str:
    """Return the setting for an adapter's journal, which serves delayed subscribers and the archive."""
    return f'journal.path = "{JOURNAL.format(name)}"\n' if options.journals or options.pipeline else ""


def _accounts(name: str, options: DemoOptions) -> str:
    """Return the setting for a node's account journal."""
    if not options.journals and not options.pipeline:
        return ""
    return f'accounts = {{ path = "{ACCOUNTS.format(name)}", period_s = 1 }}\n'


def _inline(channel: Channel) -> str:
    return f'{{ group = "{channel.group}", port = {channel.port} }}'


_PLANT = """\
# Every key that a plant can have: docs/reference/configuration.md. Paths are relative to this file.
name = "demo"

# The stream administration server: knows clients, grants and streams. Clients connect here first.
[[administration]]
name = "{admin}"
policy = "policy.toml"
port = {admin_port}
publishing.port = {publishing_port}

# A feed: one converter table and its adapters. `spin = true` polls: lower latency, a whole core for each adapter.
[[feed]]
name = "{feed}"
table = "itch"
spin = {spin}
admin = {{ credentials = "feed.toml", topics = {topics} }}

# What the exchange sends: lines A and B with the same messages, and the server that repeats lost ones.
[[feed.streams]]
id = 1
name = "totalview"
lines = [{lines}]
request = {{ host = "127.0.0.1", port = {request_port} }}
{adapters}{nodes}{tree}{router}
# A made-up exchange, to try the plant without a real one.
[[player]]
name = "{player}"
lines = [{lines}]
loss = [{loss}]
rate = {rate}
port = {request_port}
seed = {seed}
generate = {{ seed = {seed}, symbols = {symbols}, messages = {messages} }}
"""

_NODES = """
# A filter module: receives once for all applications of this host, and passes on what each of them wants.
[[filter]]
name = "{filter}"
control.port = {filter_port}
admin = {{ credentials = "filter.toml" }}
{accounts}
# Distribution nodes: a ticker plant with the newest record of every item, a multiplexer, an edge cache for screens.
[[plant]]
name = "{names[0]}"
control.port = {ports[0]}
subscribe = {topics}
admin = {{ credentials = "{names[0]}.toml" }}

[[mux]]
name = "{names[1]}"
control.port = {ports[1]}
upstream = {{ port = {ports[0]} }}
admin = {{ credentials = "{names[1]}.toml" }}

[[edge]]
name = "{names[2]}"
control.port = {ports[2]}
websocket.port = {websocket_port}
upstream = {{ port = {ports[1]} }}
admin = {{ credentials = "{names[2]}.toml" }}
"""

_COMMON = f"""\
admin = {{ credentials = "{TREE}.toml" }}
agents = {{ {", ".join(f'{name} = "{TREE}"' for name in AGENTS)} }}
operators = ["{OPERATIONS}"]
"""

_ROOT = """
# A distribution tree: the root keeps the history of its streams, agents below it pass them on to other sites.
[[agent]]
name = "{name}"
role = "root"
control.port = {port}
subscribe = {topics}
streams = [{{ name = "md", topics = {topics}, retain = "1h" }}, {{ name = "desk", topics = {desk}, retain = "1h" }}]
{common}"""

_AGENT = """
[[agent]]
name = "{name}"
control.port = {port}
parent = "{parent}"
{alternates}{common}"""

_CONSOLE = """
# The console: a page for the browser. `penstock up` prints a link that logs in once as this client.
[[console]]
name = "{name}"
port = {port}
login_credentials = "{login}.toml"
"""

_ADAPTER = """
# An adapter: publishes on its own group; adapters of a feed keep each other in sync through `peers`.
[[feed.adapter]]
name = "{name}"
publish.channel = {channel}
peers.port = {port}
{journal}"""
