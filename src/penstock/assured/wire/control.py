"""The control messages between clients and message routers (docs/reference/protocol/assured.md).

client                            router
  │ Login ───────────────────────► │      name, token, and the highest known epoch
  │ ◄────────────────────── Welcome│      the router's name, its epoch, and the addresses of its pair
  │ OpenPublisher, OpenFlow ─────► │      requests, each with a number
  │ ◄── PublisherOpened, FlowOpened│      handles for PUBLISH, DELIVER, SETTLE and CREDIT
  │ Begin, Commit, Rollback ─────► │
  │ ◄──────────────── Done, Ended  │
  │ CreateEndpoint and others ───► │
  │ ◄────────────── Done, Endpoints│
  │ ◄────────────────────── Refused│      instead of an answer; number 0: the link ends with it
  │ ◄────── FlowActive, FlowEnded  │      a waiting flow became active; a flow has ended
  │ ◄──────────────── EndpointNamed│      the name of an endpoint, before frames refer to its number
  │ ◄────────────────── SteppedDown│      another router is active; the link ends
"""

from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec

from penstock.assured.config import EndpointConfig, Role
from penstock.net.core.control import U32, U64, ControlProtocol, Name, Number, Text, Token, Version
from penstock.net.core.control import Refused as AnyRefused

MESSAGE_SIZE_MAX = 4 * 1024 * 1024
PLACES_MAX = 16
NAMED_MAX = 4_096
"""Maximum number of endpoints whose names a client remembers, the last ones. Its router knows which."""

PlaceText = Annotated[str, msgspec.Meta(max_length=128, pattern=r"^[^\s,]*$")]
"""host:port."""

Places = Annotated[tuple[PlaceText, ...], msgspec.Meta(max_length=PLACES_MAX)]
T = TypeVar("T")
ClientRole: TypeAlias = Literal["client", "operator"]
"""The role of a session: `client` publishes and consumes, `operator` also gives orders."""


# Messages of a client


class Login(msgspec.Struct, tag="login", frozen=True):
    """The first message. The handshake of the connection has verified the name."""

    name: Name
    role: ClientRole = "client"
    token: Token = ""
    """A token of the administration server, if the router requires one."""

    epoch: U64 = 0
    """The highest known epoch: a router with a lower one has been replaced."""


class RenewToken(msgspec.Struct, tag="renew", frozen=True):
    token: Token


class OpenPublisher(msgspec.Struct, tag="open_publisher", frozen=True):
    """Answered with PublisherOpened. A publisher that is open on another link moves to this one, because its client
    has lost the other link."""

    number: Number
    publisher: U64
    """The publisher's id: chosen by the client, kept over reconnects."""


class ClosePublisher(msgspec.Struct, tag="close_publisher", frozen=True):
    number: Number
    handle: U32


class OpenFlow(msgspec.Struct, tag="open_flow", frozen=True):
    """Answered with FlowOpened."""

    number: Number
    endpoint: Name
    credit: U32 = 0
    """Number of messages that may be delivered before the first CREDIT frame."""


class CloseFlow(msgspec.Struct, tag="close_flow", frozen=True, omit_defaults=True):
    """Messages that are not settled return to the queue."""

    number: Number
    handle: U32
    read: U64 | None = None
    """The number of deliveries that the application has seen; later ones do not count as delivered. None: all."""


class Begin(msgspec.Struct, tag="begin", frozen=True):
    """Begin a transaction. A publisher has one at a time and numbers its transactions upwards."""

    number: Number
    handle: U32
    transaction: U32


class Commit(msgspec.Struct, tag="commit", frozen=True):
    """Answered with Ended. Sent again after a reconnect, the request asks for the transaction's outcome."""

    number: Number
    handle: U32
    transaction: U32


class Rollback(msgspec.Struct, tag="rollback", frozen=True):
    number: Number
    handle: U32
    transaction: U32


class CreateEndpoint(msgspec.Struct, tag="create_endpoint", frozen=True):
    """Creating an endpoint that exists with the same configuration is no error."""

    number: Number
    endpoint: EndpointConfig
    from_id: U64 = 0
    from_time_ns: U64 = 0
    """Where the endpoint starts in the retained log: at a message id or a time. Both 0: at the next message."""


class AlterEndpoint(msgspec.Struct, tag="alter_endpoint", frozen=True):
    """Change the configuration of an endpoint. Queued messages stay, also above a lower limit."""

    number: Number
    endpoint: EndpointConfig


class DeleteEndpoint(msgspec.Struct, tag="delete_endpoint", frozen=True):
    """Delete an endpoint with its queued messages. Refused while flows are open, unless forced."""

    number: Number
    name: Name
    is_forced: bool = False
    """Delete the endpoint also while flows are open."""


class EmptyEndpoint(msgspec.Struct, tag="empty_endpoint", frozen=True):
    """Delete the queued messages that are not in flight."""

    number: Number
    name: Name


class ListEndpoints(msgspec.Struct, tag="list_endpoints", frozen=True):
    """Answered with Endpoints."""

    number: Number
    name: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """An endpoint's name; empty: all."""


class Switch(msgspec.Struct, tag="switch", frozen=True):
    """An operator's order to the standby: become active. Answered with Done when it is."""

    number: Number
    is_forced: bool = False
    """True: also if the active router cannot be asked to step down."""

    may_lose: bool = False
    """True: also if this router has no messages, and the other one, which may have many, does not answer."""


class Degrade(msgspec.Struct, tag="degrade", frozen=True):
    """An operator's order to the active router: synchronous messages no longer wait for the standby, or do again as
    soon as it has everything. Answered with Done."""

    number: Number
    is_ordered: bool = True


# Messages of the router


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    router: Name
    role: Role
    epoch: U64
    places: Places = ()
    """Of both routers of the pair, as far as known."""

    message_bytes_max: U32 = 0


class PublisherOpened(msgspec.Struct, tag="publisher_opened", frozen=True):
    number: Number
    handle: U32
    highest: U64
    """The highest number that the router has of this publisher; 0: none. Numbers continue above it. Numbers up to
    WINDOW_MAX below it may be sent again and are not stored twice."""

    transaction: U32 = 0
    """The last transaction that was committed; 0: none."""


class FlowOpened(msgspec.Struct, tag="flow_opened", frozen=True):
    number: Number
    handle: U32
    is_active: bool
    """False: the endpoint is exclusive and another flow has it; this flow takes over when that one ends."""


class Ended(msgspec.Struct, tag="ended", frozen=True):
    """The outcome of a transaction."""

    number: Number
    outcome: Literal["committed", "rolled_back"]
    treatment: U32 = 0
    """The outcome of its messages, as in ACKNOWLEDGE; 0: it published nothing."""

    why: Text = ""


class Done(msgspec.Struct, tag="done", frozen=True):
    number: Number
    left: Annotated[dict[Name, U64], msgspec.Meta(max_length=256)] = {}
    """After a planned switch, by endpoint: messages without copies that are left at the other router."""


class EndpointInfo(msgspec.Struct, frozen=True):
    """The state of an endpoint."""

    endpoint: EndpointConfig
    messages: U64
    bytes: U64
    unsettled: U64
    """Of these messages: delivered, and not settled."""

    flows: U32
    accepted: U64 = 0
    """Messages queued since the start of the router; the same holds for the others."""

    delivered: U64 = 0
    settled: U64 = 0
    given_up: U64 = 0
    """Moved to the dead-letter endpoint, or discarded."""


class Endpoints(msgspec.Struct, tag="endpoints", frozen=True):
    number: Number
    endpoints: Annotated[tuple[EndpointInfo, ...], msgspec.Meta(max_length=65_535)]


class EndpointNamed(msgspec.Struct, tag="endpoint_named", frozen=True):
    """The endpoint of a number in acknowledgements and deliveries on this link, with its limits."""

    endpoint: U32
    name: Name
    messages_max: U64
    bytes_max: U64


class Refused(AnyRefused, tag="refused", frozen=True):
    """`number` is that of the request; 0: the client is refused, and the link ends."""

    hint: Text = ""
    place: PlaceText = ""
    """The address to use instead, if the router knows it."""


class FlowActive(msgspec.Struct, tag="flow_active", frozen=True):
    """A standby flow of an exclusive endpoint is active now."""

    handle: U32


class FlowEnded(msgspec.Struct, tag="flow_ended", frozen=True):
    """The router ended a flow: its endpoint was deleted, or this router is no longer active."""

    handle: U32
    code: Text
    reason: Text


class SteppedDown(msgspec.Struct, tag="stepped_down", frozen=True):
    """Another router is active, in this epoch; the link ends."""

    epoch: U64
    place: PlaceText = ""


def tell_last(told: dict[int, T], endpoint: int, what: T) -> None:
    """Both sides of a link call this for every EndpointNamed, and so have the same state."""
    told.pop(endpoint, None)
    told[endpoint] = what
    if len(told) > NAMED_MAX:
        del told[next(iter(told))]


RouterRequest: TypeAlias = (
    OpenPublisher
    | ClosePublisher
    | OpenFlow
    | CloseFlow
    | Begin
    | Commit
    | Rollback
    | CreateEndpoint
    | AlterEndpoint
    | DeleteEndpoint
    | EmptyEndpoint
)
"""Requests for the router's core."""

Request: TypeAlias = RouterRequest | ListEndpoints | Switch | Degrade
Answer: TypeAlias = PublisherOpened | FlowOpened | Ended | Done | Endpoints | Refused
ClientMessage: TypeAlias = Login | RenewToken | Request
RouterMessage: TypeAlias = Welcome | Answer | FlowActive | FlowEnded | EndpointNamed | SteppedDown
Message: TypeAlias = ClientMessage | RouterMessage

ASSURED: ControlProtocol[Message] = ControlProtocol("assured", Version(1, 0), Message)
