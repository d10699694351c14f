"""The documents that clients, adapters and the administration server exchange, as JSON; bytes are base64 in them.

protocol/administration.md says which request takes and gives which; the server's /openapi.json is made from these
same classes. Times are nanoseconds since 1970 in UTC.
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
"""The lease of authentication keys if a server does not name one."""

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
    """What a client sends: an unknown field is a mistake."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a server sends: a newer one may say more."""


# Logging in


class ChallengeRequest(Document, frozen=True, kw_only=True):
    client: Name


class Challenge(Answer, frozen=True, kw_only=True):
    """To be answered once, soon. A client with a key has no use for salt and cost; everybody gets them alike, so that
    nobody learns which clients there are."""

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
    """The client chooses the id (random), so that a request may be repeated when its answer was lost."""

    subscription_id: SubscriptionId
    topics: Topics = []
    """Interests in what is to be received."""
    send: Topics = []
    """Topics on which derived messages are to be contributed."""


class ModifyRequest(Document, frozen=True, kw_only=True):
    topics: Topics = []
    send: Topics = []


class StreamAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where one adapter's stream is. Without `group` there is no multicast, or not for this client; the service
    address (penstock.middleware.unicast) is always there."""

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
    """A publisher, and the epochs in which its packets are accepted; both ends are included. Some epochs after the
    current one are vouched for ahead, so that a publisher that starts again is heard at once."""

    publisher_id: int
    epoch_first: U32
    epoch_last: U32


class Authentication(msgspec.Struct, frozen=True, kw_only=True):
    """What the packets of a feed's publishers are authenticated with. Trailers are made with the active key, and
    accepted under any of the keys (penstock.security.core.authentication)."""

    scope: str
    """The feed, or "@publishers" for publishers that belong to none."""
    keys: list[StreamKey]
    active_key_id: int
    publishers: list[Vouched]
    issuer: str = ""
    """Id of the key with which the server signs tokens."""
    number: U63 = 0
    """Of several values with the same issuer, the one with the highest number is the newest."""


class SourceStreamName(msgspec.Struct, frozen=True, kw_only=True):
    stream_id: U32
    name: Name


class ModelReference(msgspec.Struct, frozen=True, kw_only=True):
    id: U16
    version: U16
    name: str = ""


class BrokeredStream(msgspec.Struct, frozen=True, kw_only=True):
    """What one feed gives to a subscription at one delay.

    `sealed` concerns the multicast groups: what comes through an adapter's service is filtered for its one subscriber
    and comes open. `keys` open sealed messages; the newest is last.
    """

    feed: str
    source_streams: list[SourceStreamName]
    topics: list[str]
    """Patterns of what the subscription receives from this feed."""
    delay_s: int
    sealed: bool
    keys: list[StreamKey]
    models: list[ModelReference]
    addresses: list[StreamAddress]
    """The active adapter's first."""
    send: list[str] = []
    """Patterns of what may be contributed to this feed."""
    authentication: Authentication | None = None
    """Of the packets on the multicast groups; None without multicast."""


class Brokered(Answer, frozen=True, kw_only=True):
    """The answer to a subscription. After it the data flows without the server, until `expires_ns`."""

    subscription_id: str
    token: str
    expires_ns: int
    grants: list[Grant]
    """What the token allows: the policy's grants narrowed to what was asked for."""
    streams: list[BrokeredStream]
    """None while no adapter of a feed with such topics is there; a `moved` event says when that changes."""
    generation: int
    events_after: int
    """Events with higher numbers happened after this answer."""
    key_lease_s: float = KEY_LEASE_SECONDS
    """From the request on, packets are accepted under the streams' authentication keys for this time; each answer to a
    request for events extends it."""


# Events


class Revoked(msgspec.Struct, frozen=True, kw_only=True, tag="revoked"):
    """To client, adapters and filters: a subscription is over, and why. Its tokens are refused until they expire."""

    subscription_id: str
    client: str
    reason: str
    until_ns: int


class KeysChanged(msgspec.Struct, frozen=True, kw_only=True, tag="keys"):
    """To adapters and entitled clients: keys to hold. Adapters seal with `active_key_id`, clients open with any."""

    feed: str
    keys: list[StreamKey]
    active_key_id: int


class SubscriptionChanged(msgspec.Struct, frozen=True, kw_only=True, tag="changed"):
    """To the client: somebody else with its credentials, or the policy, changed the subscription; ask for it anew."""

    subscription_id: str


class StreamMoved(msgspec.Struct, frozen=True, kw_only=True, tag="moved"):
    """To the client: adapters of the feed came, went or changed roles; the subscription's streams as they are now."""

    subscription_id: str
    streams: list[BrokeredStream]


class SubscriptionBrokered(msgspec.Struct, frozen=True, kw_only=True, tag="brokered"):
    """To adapters: a subscription concerns their feed (again, after it was modified)."""

    subscription_id: str
    client: str
    topics: list[str]
    send: list[str]
    delays_s: list[int]
    expires_ns: int


class SubscriptionCancelled(msgspec.Struct, frozen=True, kw_only=True, tag="cancelled"):
    """To adapters: the client ended it, or did not renew it."""

    subscription_id: str
    client: str


class GenerationChanged(msgspec.Struct, frozen=True, kw_only=True, tag="generation"):
    """To adapters and filters: another server took over; what older ones issued since then does not count."""

    generation: int
    since_ns: int


class AuthenticationChanged(msgspec.Struct, frozen=True, kw_only=True, tag="authentication"):
    """To everybody who holds the scope's keys: its keys and publishers as they are now."""

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
    """For the next request."""
    is_complete: bool
    """False when events before these are no longer kept: then ask for the whole state again."""
    key_lease_s: float = KEY_LEASE_SECONDS
    """From the request on, packets are accepted under the authentication keys for this time, if it is complete."""


# Publishers


class PublisherRequest(Document, frozen=True, kw_only=True):
    """A publisher of the client, by the name that the client gave it, is about to start."""

    name: Name


class PublisherClaimed(Answer, frozen=True, kw_only=True):
    """The publisher's id, the same every time and nobody else's, and an epoch that it never had."""

    name: str
    publisher_id: int
    epoch: U32


# Adapters


class AdapterRegistration(Document, frozen=True, kw_only=True):
    """What an adapter says when it starts. It needs the role `adapter`, and grants to send on all its topics."""

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
    """Patterns of what subscribers may contribute through this feed."""
    models: Annotated[list[ModelReference], msgspec.Meta(max_length=MODELS_MAX)] = []
    sealed: bool = False
    group: Text = ""
    port: Port = 0
    interface: Text = ""
    term: U32 = 0
    epoch: Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)] = 1
    """Of the adapter's publisher since its last start."""


class AdapterHeartbeat(Document, frozen=True, kw_only=True):
    feed: Name
    adapter: Name
    term: U32
    """The highest the adapter knows of; it names the active adapter (wire/term.py)."""
    key_ids: Annotated[list[U32], msgspec.Meta(max_length=1_024)] = []
    """The stream keys it holds."""


class HeartbeatAnswer(Answer, frozen=True, kw_only=True):
    generation: int
    active_key_id: int
    """The stream key to seal with; 0 if the feed is not sealed."""
    key_lease_s: float
    """From the request on, the adapter may seal with that key for this time."""
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
    """From the request on, the adapter may seal with that key for this time; each heartbeat extends it."""
    heartbeat_s: float
    events_after: int
    revoked: list[Revoked]
    """Revocations whose tokens have not yet expired."""
    subscriptions: list[SubscriptionBrokered]
    authentication: Authentication | None = None


# Filters


class AuthenticationAnswer(Answer, frozen=True, kw_only=True):
    """The scopes whose keys the client may have: all of them with the role `filter`, else "@publishers" alone."""

    scopes: list[Authentication]
    events_after: int
    key_lease_s: float = KEY_LEASE_SECONDS
    """From the request on, packets are accepted under these keys for this time; each answer to a request for events
    extends it."""


class Verification(Answer, frozen=True, kw_only=True):
    """What a filter module checks stream tokens with; `revoked` and `generation` events keep it up to date."""

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
    """Every refusal."""

    code: str
    what: str
    where: str = ""
    hint: str = ""
    retry_after_s: int = 0
