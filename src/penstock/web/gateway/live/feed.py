"""The feeds of a plant as a browser's source, for plants without a tree: ordinary subscriptions, each read by its
own thread. They begin live, because nothing is retained; publishing is refused."""

import asyncio
import threading
import time
from collections.abc import Sequence

from penstock.base.errors import ForbiddenError, PenstockError, RequestError
from penstock.capture.core.message_reader import Readable
from penstock.client import Client, Subscription
from penstock.middleware import Discontinuity, SessionEvent
from penstock.model import Message, MessageModel, shipped, shipped_names
from penstock.security.live.client import AdminClient
from penstock.web.gateway.core.replies import Receipt
from penstock.web.gateway.core.requests import Subscribe
from penstock.web.gateway.live.source import Arrival, Outlet

LOOK_S = 0.1
GATHER_S = 0.02
GATHER_MAX = 512


class FeedSource:
    agent = ""
    tree = ""

    def __init__(self, admin: AdminClient, outlet: Outlet) -> None:
        self.path: list[str] = []
        self._client = Client(admin)
        self._outlet = outlet
        self._loop = asyncio.get_running_loop()
        self._go = threading.Event()
        self._go.set()
        self._readers: dict[int, _Reader] = {}

    async def subscribe(self, request: Subscribe) -> None:
        if request.begin() != "live":
            raise RequestError(
                "this plant retains no history", hint="subscribe live, or add a tree of agents to the plant"
            )
        subscription = await asyncio.to_thread(lambda: self._client.subscribe(*request.topics, where=request.where))
        self._outlet.opened(request.id, is_live=True)
        self._readers[request.id] = _Reader(request.id, subscription, self._go, self._outlet, self._loop)

    async def unsubscribe(self, number: int) -> None:
        reader = self._readers.pop(number, None)
        if reader is not None:
            await asyncio.to_thread(reader.close)

    async def publish(self, topic: str, record: Message) -> None:
        raise ForbiddenError("this console cannot publish", hint="this plant has no tree of agents")

    async def models(self) -> Sequence[MessageModel]:
        return [shipped(name) for name in shipped_names()]

    def pause(self) -> None:
        self._go.clear()

    def resume(self) -> None:
        self._go.set()

    async def close(self) -> None:
        self._go.set()
        readers = list(self._readers.values())
        self._readers.clear()

        def close() -> None:
            for reader in readers:
                reader.close()
            self._client.close()

        await asyncio.to_thread(close)


class _Reader:
    """Reads one subscription, and notifies its outlet in the loop."""

    def __init__(
        self,
        number: int,
        subscription: Subscription,
        go: threading.Event,
        outlet: Outlet,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._number = number
        self._subscription = subscription
        self._go = go
        self._outlet = outlet
        self._loop = loop
        self._is_over = False
        self._losses = 0
        self._gathering: list[Readable] = []
        subscription.on_session = self._tell_session
        self._thread = threading.Thread(target=self._run, name="penstock-browser-feed", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over = True
        self._go.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._subscription as subscription:
                while not self._is_over:
                    if not self._go.wait(LOOK_S):
                        continue
                    messages = self._gathered(subscription)
                    self._tell_losses(subscription)
                    if messages:
                        self._tell(messages)
        except PenstockError as error:
            if not self._is_over:
                self._call(self._outlet.ended, self._number, error)

    def _gathered(self, subscription: Subscription) -> list[Readable]:
        """Return the messages of a short interval."""
        self._gathering = []
        message = subscription.next(LOOK_S)
        until = time.monotonic() + GATHER_S
        while message is not None:
            self._gathering.append(message if not isinstance(message, Message) else message.copy())
            left = until - time.monotonic()
            if len(self._gathering) >= GATHER_MAX or left <= 0:
                break
            message = subscription.next(left)
        return self._gathering

    def _tell(self, messages: list[Readable]) -> None:
        taken = threading.Event()

        def tell() -> None:
            now_ns = time.time_ns()
            self._outlet.arrived(self._number, "", [Arrival(now_ns, message) for message in messages])
            taken.set()

        self._call(tell)
        while not taken.wait(LOOK_S) and not self._is_over:
            continue

    def _tell_session(self, event: SessionEvent) -> None:
        """Report a session event in order with the messages."""
        if event.kind == "running":
            return
        of = f"{event.feed} stream {event.stream_id}".strip()
        name = " ".join(filter(None, ["session", event.session, event.trading_date]))
        detail = f"{of}: {name} {'ended' if event.kind == 'end' else 'began'}"
        before, self._gathering = self._gathering, []
        if before:
            self._tell(before)
        self._call(self._outlet.received, Receipt(id=self._number, receipt="session", detail=detail))

    def _tell_losses(self, subscription: Subscription) -> None:
        count = subscription.loss_count - self._losses
        if not count:
            return
        self._losses += count
        for each in subscription.losses[-count:]:
            if isinstance(each, Discontinuity) and not each.is_loss:
                continue
            if isinstance(each, Discontinuity):
                receipt = Receipt(id=self._number, receipt="lost", detail=each.reason)
            else:
                receipt = Receipt(
                    id=self._number, receipt="lost", first=each.first, last=each.last, detail=str(each.cause)
                )
            self._call(self._outlet.received, receipt)

    def _call(self, function: object, *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)  # type: ignore[arg-type]
        except RuntimeError:  # the loop is closed: the console is shutting down
            self._is_over = True
