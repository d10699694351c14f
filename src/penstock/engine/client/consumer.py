"""What every consumer of a node has: its connection, its place at the node, the models of what it gets."""

import ssl
import time
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec

from penstock.base.clock import NS_PER_SECOND, random_bytes
from penstock.base.errors import NotEntitledError, PenstockError, RefusedError, RevokedError, UnreachableError
from penstock.base.log import logger
from penstock.engine.client.inbox import Inbox
from penstock.engine.control import ClassWish, Login, RefusalCode, RingName, Transport
from penstock.engine.link import FINAL_CODES as LINK_FINAL_CODES
from penstock.engine.link import NodeLink
from penstock.model import MessageModel
from penstock.model.library import shipped, shipped_names
from penstock.net.live.loop_thread import LoopThread
from penstock.net.live.stream import is_loopback
from penstock.net.secret import Secret

log = logger("engine.consumer")

ATTACH_WAIT_S = 5.0
ANSWER_WAIT_S = 5.0
SLICE_S = 0.05
"""How long a reader waits before it looks whether the node said something."""

NAME_SIZE_MAX = 48
NO_MODEL_LOOK_S = 5.0

FINAL_CODES = frozenset({*LINK_FINAL_CODES, RefusalCode.RATE, RefusalCode.TOPIC})
"""Refusals that another attempt would not change."""

ModelFinder: TypeAlias = Callable[[int, int], MessageModel | None]
"""Finds the model of an id, to read records of a version with."""

T = TypeVar("T")


class ConsumerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which node, and what of it."""

    host: str
    port: int
    topics: tuple[str, ...]
    cls: ClassWish = "auto"
    per_second: float = 0.0
    """Of the metered class: updates of each item."""

    where: str = ""
    """Of messages: a SQL condition on their fields (docs/filters.md); empty for none."""

    name: str = "application"
    token: str = ""
    is_converting: bool = False
    """Whether prices come as floats, not as scaled integers."""

    wait: Literal["spin", "block"] = "block"
    """What a reader does while nothing comes: "spin" is quicker, and costs a core."""

    items_max: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 4_000_000
    """Items that a node may define for this consumer."""

    timeout_s: float = ATTACH_WAIT_S
    """How long the node is waited for at first."""

    def with_token(self, token: str) -> "ConsumerRequest":
        return msgspec.structs.replace(self, token=token)

    @property
    def transport(self) -> Transport:
        """Shared memory on the node's own host."""
        return "local" if is_loopback(self.host) else "session"


class Guard(msgspec.Struct, frozen=True):
    """What connections beyond this host need."""

    secret: Secret | None = None
    tls: ssl.SSLContext | None = None


NO_GUARD = Guard()


class NodeConsumer:
    """Attached when it is made: a node that does not answer in time is an UnreachableError, a refusal a RefusedError.
    Later it is looked for until it is back."""

    def __init__(self, request: ConsumerRequest, models: ModelFinder | None = None, guard: Guard = NO_GUARD) -> None:
        self.request = request
        self.epoch = 0
        self.last_number = 0
        self.detachments = 0
        """Times that the node was lost."""
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
        """Whether the node is there and holds to what is wanted."""
        return self._link.attached.is_set() and self._failure is None

    def model(self, model_id: int, version: int) -> MessageModel | None:
        """To read records of this version with; None if nobody knows it."""
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
        """A newer token; the delivery goes on."""
        self._thread.start(self._link.renew(token))

    def change_rate(self, per_second: float) -> float:
        """Another rate; the one that is granted."""
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
        """Whether the node has begun the ring anew; if not, it is gone, and there will be another."""
        try:
            self._ask(self._link.overrun(self.last_number, ring))
        except (PenstockError, TimeoutError) as error:
            log.warning("ring_not_restarted", ring=ring, error=str(error))
            return False
        return True

    def _refused(self, error: RefusedError) -> None:
        """In the loop's thread: what was asked for is not held any more, or we are not let in."""
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
    """What it means for the application."""
    if error.peer_code == RefusalCode.REVOKED:
        return RevokedError(error.what)
    return NotEntitledError(error.what) if error.peer_code == RefusalCode.ENTITLEMENT else error


def slices_ns(timeout: float) -> int:
    """How long to wait at a time, of `timeout` seconds."""
    return int(max(0.0, min(timeout, SLICE_S)) * NS_PER_SECOND)


def shipped_model(model_id: int, version: int) -> MessageModel | None:
    return next((model for model in map(shipped, shipped_names()) if model.id == model_id), None)


def _unique(name: str) -> str:
    """No two consumers of a node have one name."""
    return f"{name[:NAME_SIZE_MAX]}-{random_bytes(6).hex()}"
