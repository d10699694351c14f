"""The documents that clients, adapters and the administration server exchange, as JSON; bytes are encoded as base64.

protocol/administration.md describes the requests and their answers; the server's /openapi.json is generated from these
classes. Times are nanoseconds since 1970 in UTC.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec

from penstock.security.core.proof import (
    BINDING_SIZE,
    CHALLENGE_SIZE,
    NONCE_SIZE,
    PROOF_SIZE_MAX,
    SALT_SIZE,
    ScryptCost,
)
from penstock.security.core.sealing import StreamKey
from penstock.security.core.token import Grant

TOPICS_MAX = 4_096
MODELS_MAX = 1_024
KEY_LEASE_SECONDS = 600.0
"""The lease of authentication keys if the server's answer has none."""

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")]
Topic = Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]
Topics = Annotated[list[Topic], msgspec.Meta(max_length=TOPICS_MAX)]
SubscriptionId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
Text = Annotated[str, msgspec.Meta(max_length=1_024)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
U16 = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
U63 = Annotated[int, msgspec.Meta(ge=0)]
AdapterRole: TypeAlias = Literal["active", "backup"]
Transport: TypeAlias = Literal["multicast", "unicast"]


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A document from a client. Unknown fields are refused."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A document from a server. Unknown fields are ignored, because a newer server may send more."""


# Logging in


class ChallengeRequest(Document, frozen=True, kw_only=True):
    client: Name


class Challenge(Answer, frozen=True, kw_only=True):
    """The server's challenge, which can be answered once and only for a short time. Clients with a key do not need
    salt and cost, but every client gets them, so that the challenge does not reveal which clients exist."""

    challenge: Annotated[bytes, msgspec.Meta(min_length=CHALLENGE_SIZE, max_length=CHALLENGE_SIZE)]
    salt: Annotated[bytes, msgspec.Meta(min_length=SALT_SIZE, max_length=SALT_SIZE)]
    cost: ScryptCost
    expires_ns: int


class LoginRequest(Document, frozen=True, kw_only=True):
    client: Name
    challenge: Annotated[bytes, msgspec.Meta(min_length=CHALLENGE_SIZE, max_length=CHALLENGE_SIZE)]
    nonce: Annotated[bytes, msgspec.Meta(min_length=NONCE_SIZE, max_length=NONCE_SIZE)]
    """Random bytes of the client, so that a recorded server proof cannot be replayed."""
    binding: Annotated[bytes, msgspec.Meta(min_length=BINDING_SIZE, max_length=BINDING_SIZE)]
    """SHA-256 of the server's certificate (DER) as the client saw it; zeros without TLS."""
    proof: Annotated[bytes, msgspec.Meta(max_length=PROOF_SIZE_MAX)]


class Session(Answer, frozen=True, kw_only=True):
    """`token` goes into the header "Authorization: Bearer" of every other request."""

    client: str
    token: str
    expires_ns: int
    roles: list[str]
    server_proof: Annotated[bytes, msgspec.Meta(max_length=PROOF_SIZE_MAX)] = b""
    """The server's proof of its identity (security/core/proof.py)."""


# Subscriptions


class SubscribeRequest(Document, frozen=True, kw_only=True):
    """The client chooses a random id, so that it may repeat a request whose answer was lost."""

    subscription_id: SubscriptionId
    topics: Topics = []
    """Interests in topics to receive."""
    send: Topics = []
    """Topics on which the client contributes derived messages."""
    publish: bool = False
    """Asks for a multicast stream of its own, on which the client publishes the topics of `send`."""


class ModifyRequest(Document, frozen=True, kw_only=True):
    topics: Topics = []
    send: Topics = []


class StreamAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of one adapter's stream, or of a client's publisher. Without `group`, multicast is not available to
    this client. The service (penstock.middleware.unicast) of an adapter is always present; a client's publisher has
    none: its port is 0."""

    adapter: str
    role: AdapterRole
    publisher_id: int
    transport: Transport
    group: str = ""
    port: Port = 0
    interface: str = ""
    service_host: str
    service_port: Port


class Vouched(msgspec.Struct, frozen=True, kw_only=True):
    """A publisher, and the range of epochs in which its packets are accepted; both ends are included. The range
    extends beyond the current epoch, so that packets of a restarted publisher are accepted at once."""

    publisher_id: int
    epoch_first: U32
    epoch_last: U32


class Authentication(msgspec.Struct, frozen=True, kw_only=True):
    """The authentication keys of a feed's publishers. Trailers are made with the active key, and accepted under any
    of the keys (penstock.security.core.authentication)."""

    scope: str
    """The feed, or "@publishers" for publishers that belong to no feed."""
    keys: list[StreamKey]
    active_key_id: int
    publishers: list[Vouched]
    issuer: str = ""
    """Id of the key with which the server signs tokens."""
    number: U63 = 0
    """The highest number is the newest value of an issuer."""


class SourceStreamName(msgspec.Struct, frozen=True, kw_only=True):
    stream_id: U32
    name: Name


class ModelReference(msgspec.Struct, frozen=True, kw_only=True):
    id: U16
    version: U16
    name: str = ""


class BrokeredStream(msgspec.Struct, frozen=True, kw_only=True):
    """The streams of one feed for one subscription at one delay.

    `sealed` concerns the multicast groups: an adapter's service filters messages for its subscriber and sends them
    unsealed. `keys` open sealed messages; the newest key is last.
    """

    feed: str
    source_streams: list[SourceStreamName]
    topics: list[str]
    """Patterns of the topics that the subscription receives from this feed."""
    delay_s: int
    sealed: bool
    keys: list[StreamKey]
    models: list[ModelReference]
    addresses: list[StreamAddress]
    """The addresses of the adapters, beginning with the active one."""
    send: list[str] = []
    """Patterns of the topics that the client may contribute to this feed."""
    authentication: Authentication | None = None
    """The authentication of packets on the multicast groups; None without multicast."""


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """The stream of a client's publisher: nobody else sends with this id, or is given keys of this scope to send."""

    publisher_id: int
    epoch: U32
    group: str
    port: Port
    authentication: Authentication


class Brokered(Answer, frozen=True, kw_only=True):
    """The answer to a subscription. After it the data flows without the server, until `expires_ns`."""

    subscription_id: str
    token: str
    expires_ns: int
    grants: list[Grant]
    """The token's grants: the policy's grants, narrowed to the requested topics."""
    streams: list[BrokeredStream]
    """Empty while no adapter of a matching feed is registered; a `moved` event reports an adapter that registers
    later."""
    generation: int
    events_after: int
    """Number of the last event that this answer includes."""
    key_lease_s: float = KEY_LEASE_SECONDS
    """Lease of the streams' authentication keys, counted from the request; each answer to a request for events
    renews it."""
    publication: Publication | None = None
    """The client's own stream, if it asked for one."""


# Events


class Revoked(msgspec.Struct, frozen=True, kw_only=True, tag="revoked"):
    """To client, adapters and filters: a subscription was revoked. Its tokens are refused until they expire."""

    subscription_id: str
    client: str
    reason: str
    until_ns: int


class KeysChanged(msgspec.Struct, frozen=True, kw_only=True, tag="keys"):
    """To adapters and entitled clients: the current stream keys. Adapters seal with `active_key_id`, clients open
    with any key."""

    feed: str
    keys: list[StreamKey]
    active_key_id: int


class SubscriptionChanged(msgspec.Struct, frozen=True, kw_only=True, tag="changed"):
    """To the client: the subscription was changed by the policy or by another user of the same credentials; request
    it again."""

    subscription_id: str


class StreamMoved(msgspec.Struct, frozen=True, kw_only=True, tag="moved"):
    """To the client: adapters of the feed registered, left or changed roles. Has the subscription's current streams."""

    subscription_id: str
    streams: list[BrokeredStream]


class SubscriptionBrokered(msgspec.Struct, frozen=True, kw_only=True, tag="brokered"):
    """To adapters: a subscription includes topics of their feed. Sent again after a change of the subscription."""

    subscription_id: str
    client: str
    topics: list[str]
    send: list[str]
    delays_s: list[int]
    expires_ns: int


class SubscriptionCancelled(msgspec.Struct, frozen=True, kw_only=True, tag="cancelled"):
    """To adapters: the client cancelled the subscription or did not renew it."""

    subscription_id: str
    client: str


class GenerationChanged(msgspec.Struct, frozen=True, kw_only=True, tag="generation"):
    """To adapters and filters: another server took over. Tokens that older generations issued since then are
    invalid."""

    generation: int
    since_ns: int


class AuthenticationChanged(msgspec.Struct, frozen=True, kw_only=True, tag="authentication"):
    """To every holder of the scope's keys: its current keys and publishers."""

    authentication: Authentication


EventBody: TypeAlias = (
    Revoked | KeysChanged | SubscriptionChanged | StreamMoved | SubscriptionBrokered | SubscriptionCancelled
    | GenerationChanged | AuthenticationChanged
)  # fmt: skip


class Event(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    time_ns: int
    body: EventBody


class Events(Answer, frozen=True, kw_only=True):
    events: list[Event]
    next_after: int
    """The event number for the next request."""
    is_complete: bool
    """False if older events are no longer kept. Then request the whole state again."""
    key_lease_s: float = KEY_LEASE_SECONDS
    """Lease of the authentication keys, counted from the request, if the answer is complete."""


# Publishers


class PublisherRequest(Document, frozen=True, kw_only=True):
    """Announces the start of a named publisher of the client."""

    name: Name


class PublisherClaimed(Answer, frozen=True, kw_only=True):
    """The publisher's permanent id, which no other publisher has, and an epoch that it has not used before."""

    name: str
    publisher_id: int
    epoch: U32


# Adapters


class AdapterRegistration(Document, frozen=True, kw_only=True):
    """An adapter's first request. Its client needs the role `adapter`, and grants to send on all its topics."""

    feed: Name
    adapter: Name
    index: Annotated[int, msgspec.Meta(ge=0, le=255)]
    publisher_id: Annotated[int, msgspec.Meta(ge=1)]
    transport: Transport
    service_host: Text
    service_port: Port
    topics: Topics
    source_streams: Annotated[list[SourceStreamName], msgspec.Meta(max_length=4_096)] = []
    contributions: Topics = []
    """Patterns of the topics that subscribers may contribute through this feed."""
    models: Annotated[list[ModelReference], msgspec.Meta(max_length=MODELS_MAX)] = []
    sealed: bool = False
    group: Text = ""
    port: Port = 0
    interface: Text = ""
    term: U32 = 0
    epoch: Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)] = 1
    """Epoch of the adapter's publisher since its last start."""


class AdapterHeartbeat(Document, frozen=True, kw_only=True):
    feed: Name
    adapter: Name
    term: U32
    """The highest term that the adapter knows; it identifies the active adapter (wire/term.py)."""
    key_ids: Annotated[list[U32], msgspec.Meta(max_length=1_024)] = []
    """Ids of the stream keys that the adapter has."""


class HeartbeatAnswer(Answer, frozen=True, kw_only=True):
    generation: int
    active_key_id: int
    """The stream key to seal with; 0 if the feed is not sealed."""
    key_lease_s: float
    """Lease of the sealing key, counted from the request."""
    heartbeat_s: float


class Registered(Answer, frozen=True, kw_only=True):
    generation: int
    generation_since_ns: int
    token_keys: list[str]
    """Public keys of stream tokens, for TokenVerifier."""
    keys: list[StreamKey]
    active_key_id: int
    """The stream key to seal with; 0 if the feed is not sealed."""
    key_lease_s: float
    """Lease of the sealing key, counted from the request; each heartbeat renews it."""
    heartbeat_s: float
    events_after: int
    revoked: list[Revoked]
    """Revocations whose tokens have not yet expired."""
    subscriptions: list[SubscriptionBrokered]
    authentication: Authentication | None = None


# Filters


class AuthenticationAnswer(Answer, frozen=True, kw_only=True):
    """The scopes whose keys the client may have: all scopes with the role `filter`, otherwise only "@publishers"."""

    scopes: list[Authentication]
    events_after: int
    key_lease_s: float = KEY_LEASE_SECONDS
    """Lease of these keys, counted from the request; each answer to a request for events renews it."""


class Verification(Answer, frozen=True, kw_only=True):
    """The keys and revocations with which a filter module checks stream tokens; `revoked` and `generation` events
    update them."""

    generation: int
    generation_since_ns: int
    token_keys: list[str]
    """Public keys of stream tokens, for TokenVerifier."""
    revoked: list[Revoked]
    """Revocations whose tokens have not yet expired."""
    events_after: int


# Models and errors


class ModelDocument(Answer, frozen=True, kw_only=True):
    """A message model: `text` is its TOML document."""

    id: int
    version: int
    name: str
    text: str


class ModelList(Answer, frozen=True, kw_only=True):
    models: list[ModelReference]


class ErrorDocument(Answer, frozen=True, kw_only=True):
    """The body of every refusal."""

    code: str
    what: str
    where: str = ""
    hint: str = ""
    retry_after_s: int = 0
