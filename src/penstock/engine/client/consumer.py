"""The part that all consumers of a node share: the connection, the login and the message models."""

import time
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec

from penstock.base.clock import NS_PER_SECOND, random_bytes
from penstock.base.errors import NotEntitledError, PenstockError, RefusedError, RevokedError, UnreachableError
from penstock.base.log import logger
from penstock.engine.client.inbox import Inbox
from penstock.engine.control import ClassWish, Login, RefusalCode, RingName, Transport
from penstock.engine.live.link import FINAL_CODES as LINK_FINAL_CODES
from penstock.engine.live.link import NodeLink
from penstock.model import MessageModel
from penstock.model.library import shipped, shipped_names
from penstock.net.guard import Guard
from penstock.net.live.loop_thread import LoopThread
from penstock.net.place import is_loopback

log = logger("engine.consumer")

ATTACH_WAIT_S = 5.0
ANSWER_WAIT_S = 5.0
SLICE_S = 0.05
"""How long a reader waits before it checks for messages of the node."""

NAME_SIZE_MAX = 48
NO_MODEL_LOOK_S = 5.0

FINAL_CODES = frozenset({*LINK_FINAL_CODES, RefusalCode.RATE, RefusalCode.TOPIC})
"""Codes of refusals that a retry would not change."""

ModelFinder: TypeAlias = Callable[[int, int], MessageModel | None]
"""Finds the model of an id that can read records of a version."""

T = TypeVar("T")


class ConsumerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The node, and the request of the application."""

    host: str
    port: int
    topics: tuple[str, ...]
    cls: ClassWish = "auto"
    per_second: float = 0.0
    """For the metered class: updates per second of each item."""

    where: str = ""
    """For messages: a SQL condition on their fields (docs/reference/filters.md); empty for none."""

    name: str = "application"
    token: str = ""
    is_converting: bool = False
    """True: prices are floats instead of scaled integers."""

    wait: Literal["spin", "block"] = "block"
    """How a reader waits: "spin" is faster, and occupies a core."""

    items_max: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 4_000_000
    """The maximum number of items that a node may define for this consumer."""

    timeout_s: float = ATTACH_WAIT_S
    """How long the first attempt to attach may take."""

    def with_token(self, token: str) -> "ConsumerRequest":
        return msgspec.structs.replace(self, token=token)

    @property
    def transport(self) -> Transport:
        """Shared memory if the node is on this host."""
        return "local" if is_loopback(self.host) else "session"


NO_GUARD = Guard()


class NodeConsumer:
    """Attaches when it is created, and raises an UnreachableError if the node does not answer in time, a RefusedError
    if the node refuses. After that the consumer reconnects until it is closed."""

    def __init__(self, request: ConsumerRequest, models: ModelFinder | None = None, guard: Guard = NO_GUARD) -> None:
        self.request = request
        self.epoch = 0
        self.last_number = 0
        self.detachments = 0
        """Times that the connection to the node was lost."""
        self._find = models or shipped_model
        self._known: dict[tuple[int, int], MessageModel] = {}
        self._unknown: dict[tuple[int, int], float] = {}  # and when it may be asked for again
        self._asking = 0
        self._failure: PenstockError | None = None
        self._refusal: RefusedError | None = None
        self._inbox = Inbox(guard.secret, lambda: self.last_number, lambda: self._asking > 0)
        self._link = NodeLink(
            (request.host, request.port),
            Login(_unique(request.name), request.transport, request.token),
            self._inbox,
            secret=guard.secret,
            tls=guard.tls,
            on_refused=self._refused,
        )
        self._thread = LoopThread("penstock-node-link")
        try:
            self._subscription = self._ask(self._link.subscribe(request.topics, request.cls, request.per_second))
            self._thread.start(self._link.run())
            self._wait_until_attached()
        except BaseException:
            self.close()
            raise

    @property
    def is_attached(self) -> bool:
        """True if the node is connected and has accepted the subscription."""
        return self._link.attached.is_set() and self._failure is None

    def model(self, model_id: int, version: int) -> MessageModel | None:
        """The model that reads records of this version; None if it is unknown."""
        key = model_id, version
        known = self._known.get(key)
        if known is None and time.monotonic() >= self._unknown.get(key, 0.0):
            known = self._find(model_id, version)
            if known is None or known.version < version:
                known = self._asked(model_id, version) or known
            if known is None:
                self._unknown[key] = time.monotonic() + NO_MODEL_LOOK_S
            else:
                self._known[key] = known
        return known

    def renew(self, token: str) -> None:
        """Present a newer token. Delivery continues."""
        self._thread.start(self._link.renew(token))

    def change_rate(self, per_second: float) -> float:
        """Change the rate, and return the rate that the node grants."""
        return self._ask(self._link.modify(self._subscription, per_second))

    def raise_if_over(self) -> None:
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self._thread.start(self._link.close()).result()
        self._thread.close()
        self._inbox.close()

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        self._asking += 1
        try:
            return self._thread.start(work).result(ANSWER_WAIT_S)
        finally:
            self._asking -= 1

    def _asked(self, model_id: int, version: int) -> MessageModel | None:
        try:
            document = self._ask(self._link.model(model_id, version))
            model = MessageModel.parse(document, where="model of the node")
        except (PenstockError, TimeoutError) as error:
            log.warning("model_not_found", model_id=model_id, version=version, error=str(error))
            return None
        return model if model.id == model_id else None

    def _restart(self, ring: RingName) -> bool:
        """True if the node has restarted the ring. If not, the node is gone; the next connection has another ring."""
        try:
            self._ask(self._link.overrun(self.last_number, ring))
        except (PenstockError, TimeoutError) as error:
            log.warning("ring_not_restarted", ring=ring, error=str(error))
            return False
        return True

    def _refused(self, error: RefusedError) -> None:
        """Called in the thread of the event loop: the node refused the login, or ended the subscription."""
        self._refusal = error
        if error.peer_code in FINAL_CODES or not self._link.holds(self._subscription):
            self._failure = _failure(error)

    def _wait_until_attached(self) -> None:
        deadline = time.monotonic() + self.request.timeout_s
        while not self._link.attached.wait(min(SLICE_S, max(deadline - time.monotonic(), 0.0))):
            self.raise_if_over()
            if time.monotonic() >= deadline:
                raise self._refusal or self._unreachable()
        self.raise_if_over()

    def _unreachable(self) -> UnreachableError:
        trouble = self._link.trouble
        why = "" if trouble is None else f": {trouble.what}"
        return UnreachableError(
            f"no distribution node answers at {self.request.host}:{self.request.port}{why}",
            hint="is `penstock plant`, `penstock mux` or `penstock edge` running there?",
        )


def _failure(error: RefusedError) -> PenstockError:
    """The error that the application gets."""
    if error.peer_code == RefusalCode.REVOKED:
        return RevokedError(error.what)
    return NotEntitledError(error.what) if error.peer_code == RefusalCode.ENTITLEMENT else error


def slice_ns(timeout: float) -> int:
    """The next slice of a wait of `timeout` seconds."""
    return int(max(0.0, min(timeout, SLICE_S)) * NS_PER_SECOND)


def shipped_model(model_id: int, version: int) -> MessageModel | None:
    return next((model for model in map(shipped, shipped_names()) if model.id == model_id), None)


def _unique(name: str) -> str:
    """Names of a node's consumers must be unique."""
    return f"{name[:NAME_SIZE_MAX]}-{random_bytes(6).hex()}"
