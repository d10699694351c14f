"""Writes the documents of the demo's plant into a directory: what an operator would write by hand."""

from pathlib import Path

import msgspec

from penstock.admin.live.store import FILE_NAME
from penstock.base.clock import random_bytes
from penstock.base.files import write_file
from penstock.demo.reports import DemoOptions
from penstock.demo.routing import ROUTERS, Routing, routing
from penstock.engine.control import ClassName
from penstock.feed.core.play.generator import WELL_KNOWN
from penstock.net.secret import write_private
from penstock.net.udp import Channel, free_channel, free_ports
from penstock.security.core.proof import SALT_SIZE, SecretVerifier

FEED = "nasdaq"
TOPICS = ["md.us.eq.>"]
FILTERED_TOPICS = ["md.us.eq.>", "!md.us.eq.*.book"]
"""What subscribers want that get it by way of the filter module: everything but changes of order books."""

UNWANTED_MODEL = "book_event"
"""The model of what they do not want."""

ADAPTERS = ("adapter-a", "adapter-b")
PLAYER = "exchange"
ADMIN = "admin"
FILTER = "filter"
TICKER_PLANT = "ticker-plant"
MUX = "mux"
EDGE = "edge"
NODES = (TICKER_PLANT, MUX, EDGE)
"""That distribute, each fed by the one before."""

CONSUMERS: dict[str, tuple[ClassName, str, str]] = {
    "algorithm": ("critical", MUX, "trade"),
    "pricing": ("adaptive", MUX, "quote"),
    "screen": ("metered", EDGE, "quote"),
}
"""Who consumes from them: in which class, from which node, messages of which model."""

TREE = "tree"
ROOT = "root"
AGENTS: dict[str, tuple[str, str]] = {
    "middle-1": (ROOT, ""),
    "middle-2": (ROOT, ""),
    "leaf-1": ("middle-1", "middle-2"),
    "leaf-2": ("middle-2", "middle-1"),
}
"""Below the root: the parent of each agent, and where it goes when that is lost."""

TREE_TOPICS = ["md.us.eq.*.quote", "md.us.eq.*.trade"]
"""What comes into the tree of what the feed publishes."""

DESK_TOPICS = ["app.desk.>"]
"""What people publish in browsers."""

ROUTER = "router"
"""As whom both message routers ask the administration server."""

BOOKING = "booking"
CLEARING = "clearing"
ENDPOINT = "trades"
PREFIX = "booked"
"""What the topics of assured messages begin with; the topic of the trade follows."""

BOOKED_MAX = 5
"""Symbols whose trades are booked, each an assured message."""

CONSOLE = "console"
OPERATIONS = "operations"
VISITOR = "visitor"

SCREEN_PER_SECOND = 4.0
JOURNAL = "state/{}.journal"
ACCOUNTS = "state/{}.accounts"
MESSAGES = 2**40
"""Of the made-up day: more than anybody waits for."""


class Layout(msgspec.Struct, frozen=True):
    plant: Path
    url: str
    """Of the administration server."""

    credentials: list[Path]
    """Of each subscriber."""

    journals: list[Path]
    """Of each adapter, if they keep any."""

    accounts: list[Path]
    """Of the filter module, the tree's agents and the message routers, if they give any."""

    filter: str
    """Where applications tell the filter module what they want."""

    nodes: dict[str, str]
    """Where consumers connect to each distribution node, as host:port."""

    audit_log: Path
    """The administration server's database."""

    operations: Path
    """The credentials of an administrator, for the console."""

    router: str
    """Where clients connect to the message routers, host:port of both; empty without any."""

    booked: list[str]
    """Symbols whose trades go through them."""

    per_second: float = SCREEN_PER_SECOND
    """Of the metered consumer."""


def write_layout(directory: Path, options: DemoOptions) -> Layout:
    subscribers = [f"subscriber-{number + 1}" for number in range(options.subscribers)]
    receivers = [*subscribers, *CONSUMERS]
    roles = {"feed": "adapter", OPERATIONS: "administrator", **dict.fromkeys(receivers, "")}
    roles |= dict.fromkeys((FILTER, *NODES), "filter")
    if options.tree:
        roles |= {TREE: "filter", VISITOR: ""}
    if options.router:
        roles |= {ROUTER: "filter", BOOKING: "", CLEARING: ""}
    entries = [_make_client(directory, name, role) for name, role in roles.items()]
    policy = directory / "policy.toml"
    write_file(policy, _policy(entries, [*receivers, *NODES], options).encode())
    admin_port, request_port, filter_port, websocket_port, *ports = free_ports(4 + len(NODES) + len(ADAPTERS))
    node_ports, peer_ports = ports[: len(NODES)], ports[len(NODES) :]
    lines = [free_channel(), free_channel()]
    adapters = "".join(
        _ADAPTER.format(name=name, channel=_inline(free_channel()), port=port, journal=_journal(name, options))
        for name, port in zip(ADAPTERS, peer_ports, strict=True)
    )
    routed = _routing(options) if options.router else Routing("", "")
    plant = directory / "plant.toml"
    plant.write_text(
        _PLANT.format(
            feed=FEED,
            topics=TOPICS,
            admin=ADMIN,
            admin_port=admin_port,
            lines=", ".join(map(_inline, lines)),
            request_port=request_port,
            adapters=adapters,
            filter=FILTER,
            filter_port=filter_port,
            accounts=_accounts(FILTER, options),
            nodes=_NODES.format(topics=TOPICS, ports=node_ports, websocket_port=websocket_port, names=NODES),
            tree=_tree(options) if options.tree else "",
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
        f"penstock://127.0.0.1:{admin_port}",
        [directory / f"{name}.toml" for name in subscribers],
        [directory / JOURNAL.format(name) for name in ADAPTERS],
        [directory / ACCOUNTS.format(name) for name in _accountants(options)],
        f"127.0.0.1:{filter_port}",
        {name: f"127.0.0.1:{port}" for name, port in zip(NODES, node_ports, strict=True)},
        directory / "state" / ADMIN / FILE_NAME,
        directory / f"{OPERATIONS}.toml",
        routed.places,
        list(WELL_KNOWN[: min(options.symbols, BOOKED_MAX)]) if options.router else [],
    )


def _make_client(directory: Path, name: str, role: str) -> str:
    """A secret: the client's credentials file, and the policy's entry for it."""
    secret = random_bytes(32).hex()
    write_private(directory / f"{name}.toml", f'client = "{name}"\nsecret = "{secret}"\n'.encode())
    verifier = SecretVerifier.make(secret.encode(), random_bytes(SALT_SIZE))
    roles = f'roles = ["{role}"]\n' if role else ""
    return f'[clients.{name}]\nsecret = "{verifier.text}"\n{roles}'


def _policy(entries: list[str], receivers: list[str], options: DemoOptions) -> str:
    rules = f'[[rule]]\nwho = ["feed"]\nsend = {TOPICS}\n\n[[rule]]\nwho = {receivers}\nreceive = {TOPICS}\n'
    if options.tree:
        everything = [*TOPICS, *DESK_TOPICS]
        rules += f"\n[[rule]]\nwho = {[TREE, OPERATIONS, VISITOR]}\nreceive = {everything}\n"
        rules += f"\n[[rule]]\nwho = {[OPERATIONS, VISITOR]}\nsend = {DESK_TOPICS}\n"
    if options.router:
        booked, queued = [f"{PREFIX}.>"], [f"queue.{ENDPOINT}"]
        rules += f"\n[[rule]]\nwho = {[BOOKING]}\nreceive = {TOPICS}\nsend = {booked}\n"
        rules += f"\n[[rule]]\nwho = {[CLEARING]}\nreceive = {queued}\n"
    return "\n".join([*entries, rules])


def _tree(options: DemoOptions) -> str:
    """A root that takes the feed, two agents below it, a leaf below each; and the console."""
    *ports, console_port = free_ports(2 + len(AGENTS))
    places = {name: f"127.0.0.1:{port}" for name, port in zip((ROOT, *AGENTS), ports, strict=True)}
    root = _ROOT.format(
        name=ROOT, port=ports[0], topics=TREE_TOPICS, desk=DESK_TOPICS, common=_COMMON + _accounts(ROOT, options)
    )
    below = [
        _AGENT.format(
            name=name,
            port=port,
            parent=places[parent],
            alternates=f'alternates = ["{places[alternate]}"]\n' if alternate else "",
            common=_COMMON + _accounts(name, options),
        )
        for (name, (parent, alternate)), port in zip(AGENTS.items(), ports[1:], strict=True)
    ]
    return "".join([root, *below, _CONSOLE.format(name=CONSOLE, port=console_port)])


def _routing(options: DemoOptions) -> Routing:
    return routing(
        credentials=ROUTER,
        operator=OPERATIONS,
        endpoint=ENDPOINT,
        topics=[f"{PREFIX}.>"],
        accounts=lambda name: _accounts(name, options),
    )


def _accountants(options: DemoOptions) -> list[str]:
    """Nodes that give account of what they did."""
    return [FILTER, *((ROOT, *AGENTS) if options.tree else ()), *(ROUTERS if options.router else ())]


def _journal(name: str, options: DemoOptions) -> str:
    """Where an adapter keeps what it published: delayed subscribers and the archive are served from it."""
    return f'journal.path = "{JOURNAL.format(name)}"\n' if options.journals or options.pipeline else ""


def _accounts(name: str, options: DemoOptions) -> str:
    """Where a node gives account of what it did."""
    if not options.journals and not options.pipeline:
        return ""
    return f'accounts = {{ path = "{ACCOUNTS.format(name)}", period_s = 1 }}\n'


def _inline(channel: Channel) -> str:
    return f'{{ group = "{channel.group}", port = {channel.port} }}'


_PLANT = """\
name = "demo"

[[administration]]
name = "{admin}"
policy = "policy.toml"
port = {admin_port}

[[feed]]
name = "{feed}"
table = "itch"
spin = {spin}
admin = {{ credentials = "feed.toml", topics = {topics} }}

[[feed.streams]]
id = 1
name = "totalview"
lines = [{lines}]
request = {{ host = "127.0.0.1", port = {request_port} }}
{adapters}
[[filter]]
name = "{filter}"
control.port = {filter_port}
admin = {{ credentials = "filter.toml" }}
{accounts}{nodes}{tree}{router}
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
tree = "demo"
admin = {{ credentials = "{TREE}.toml" }}
agents = {{ {", ".join(f'{name} = "{TREE}"' for name in AGENTS)} }}
operators = ["{OPERATIONS}"]
"""

_ROOT = """
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
[[console]]
name = "{name}"
port = {port}
"""

_ADAPTER = """
[[feed.adapter]]
name = "{name}"
publish.channel = {channel}
peers.port = {port}
{journal}"""
