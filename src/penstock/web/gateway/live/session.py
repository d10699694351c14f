"""One WebSocket of the gateway: requests of its browser, replies and messages."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from starlette.websockets import WebSocketDisconnect

from penstock.base.clock import SystemClock
from penstock.base.counters import Cause, Counters
from penstock.base.errors import LimitError, PenstockError, RateLimitedError, RequestError, RevokedError
from penstock.base.log import logger
from penstock.model import Message, MessageModel, shipped, shipped_names
from penstock.node.console_config import ConsoleLimits
from penstock.web.gateway.core import fields, replies, requests
from penstock.web.gateway.core.outbox import Outbox
from penstock.web.gateway.live.source import Arrival, GatewaySource, Outlet
from penstock.web.live.connections import GARBAGE, NO_AGENT, SLOW, TOO_MANY, BrowserConnection, Closing, first_of

JSON, BINARY = "penstock.json.1", "penstock.binary.1"
SUBPROTOCOLS = (JSON, BINARY)
IGNORED_MAX = 100
"""Number of consecutive requests above the rate limit after which the browser is cut off."""

log = logger("console.gateway")


class GatewaySession:
    """Call run(). `open_source(outlet)` creates the source of its messages."""

    def __init__(
        self,
        connection: BrowserConnection,
        limits: ConsoleLimits,
        counters: Counters,
        open_source: Callable[[Outlet], Awaitable[GatewaySource]],
        *,
        is_binary: bool,
    ) -> None:
        self._connection = connection
        self._limits = limits
        self._counters = counters
        self._is_binary = is_binary
        self._clock = SystemClock()
        self._budget = requests.Budget(limits.requests_per_s, self._clock.now_ns())
        self._ignored = 0
        self._outbox = Outbox(limits.queue_size_max)
        self._wake = asyncio.Event()
        self._is_paused = False
        self._closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails when this WebSocket must end, whatever its browser still has to read."""
        self._subscriptions: dict[int, requests.Subscribe] = {}
        self._models: dict[str, MessageModel] = {}
        self._open_source = open_source
        self._source: GatewaySource

    async def run(self) -> None:
        limits = self._limits
        try:
            self._source = await self._open_source(self)
        except PenstockError as error:
            raise Closing(NO_AGENT, error.what) from None
        told = ("frame_size_max", "subscriptions_max", "topics_max", "requests_per_s", "queue_size_max")
        self._outbox.reply(
            replies.Welcome(
                client=self._connection.session.client,
                agent=self._source.agent,
                tree=self._source.tree,
                path=list(self._source.path),
                limits={name: getattr(limits, name) for name in told},
            )
        )
        try:
            await first_of(self._listen(), self._tell(), self._closing)
        except Closing as closing:
            if closing.close_code != SLOW:
                await self._say_over(closing)
            raise
        finally:
            await self._source.close()

    # Requests of the browser

    async def _listen(self) -> None:
        while True:
            frame = await self._connection.receive()
            if not self._budget.take(self._clock.now_ns()):
                self._refuse_hasty()
                continue
            self._ignored = 0
            try:
                await self._take(frame)
            except requests.Malformed as error:
                self._refuse(error, error.op, error.number)
            except RequestError as error:
                self._counters.add("messages_skipped", cause=Cause.MESSAGE)
                raise Closing(GARBAGE, error.what) from None

    async def _take(self, frame: str | bytes) -> None:
        if isinstance(frame, bytes):
            if not self._is_binary:
                raise RequestError("binary frames are not accepted on this WebSocket")
            await self._answer("publish", fields.parse_binary(frame))
            return
        request = requests.parse(frame)
        await self._answer(type(request).__struct_config__.tag, request)  # type: ignore[arg-type]

    async def _answer(self, op: str, request: requests.AnyRequest | fields.BinaryPublish) -> None:
        """Answer a request. A refused request changes nothing."""
        try:
            match request:
                case requests.Subscribe():
                    await self._subscribe(request)
                case requests.Unsubscribe():
                    await self._unsubscribe(request.id)
                case requests.Publish():
                    model = self._models.get(request.model) or await self._model(request.model)
                    await self._publish(request.id, request.topic, fields.record(model, request.model, request.fields))
                case fields.BinaryPublish():
                    await self._publish(request.id, request.topic, await self._binary_record(request))
                case requests.Models():
                    known = [fields.described(each) for each in await self._source.models()]
                    self._say(replies.ModelsKnown(models=known))
                case requests.Ping():
                    self._say(replies.Pong(id=request.id))
        except PenstockError as error:
            self._refuse(error, op, request.id)

    async def _subscribe(self, request: requests.Subscribe) -> None:
        limits = self._limits
        if request.id in self._subscriptions:
            raise RequestError(f"subscription {request.id} already exists", hint="choose another id")
        if len(self._subscriptions) >= limits.subscriptions_max:
            raise LimitError(f"the limit of {limits.subscriptions_max} subscriptions is reached")
        if len(request.topics) > limits.topics_max:
            raise LimitError(f"a subscription has at most {limits.topics_max} topics")
        self._subscriptions[request.id] = request
        try:
            await self._source.subscribe(request)
        except BaseException:
            self._subscriptions.pop(request.id, None)
            raise

    async def _unsubscribe(self, number: int) -> None:
        if self._subscriptions.pop(number, None) is None:
            raise RequestError(f"subscription {number} does not exist")
        await self._source.unsubscribe(number)
        self._outbox.forget(number)
        self._say(replies.Unsubscribed(id=number))

    async def _publish(self, number: int, topic: str, record: Message) -> None:
        await self._source.publish(topic, record)
        self._counters.add("messages_contributed")
        self._say(replies.Published(id=number))

    async def _model(self, name: str) -> MessageModel | None:
        if not self._models:
            self._models = {each: shipped(each) for each in shipped_names()}
            self._models |= {model.name: model for model in await self._source.models()}
        return self._models.get(name)

    async def _binary_record(self, request: fields.BinaryPublish) -> Message:
        await self._model("")
        model = next((each for each in self._models.values() if each.id == request.model_id), None)
        if model is None or not request.model_version:
            raise RequestError(f"unknown version {request.model_version} of model {request.model_id}")
        return model.view(request.payload, request.model_version)

    def _refuse(self, error: PenstockError, op: str, number: int) -> None:
        self._counters.add("requests_refused", cause=Cause.REFUSED)
        log.info("request_refused", client=self._connection.session.client, op=op, code=error.code, what=str(error))
        self._say(replies.Refused.of(error, op, number))

    def _refuse_hasty(self) -> None:
        self._ignored += 1
        if self._ignored > IGNORED_MAX:
            raise Closing(TOO_MANY, "too many requests per second")
        if self._ignored == 1:
            error = RateLimitedError(
                f"more than {self._limits.requests_per_s:g} requests per second",
                retry_after_s=1,
                hint="try again later",
            )
            self._refuse(error, "", 0)

    # Messages to the browser

    async def _tell(self) -> None:
        while True:
            taken = self._outbox.take()
            if taken is None:
                self._wake.clear()
                await self._wake.wait()
            elif isinstance(taken, replies.Reply):
                await self._connection.send(taken)
            elif self._is_binary:
                await self._connection.send_bytes(fields.binary(taken))
            else:
                await self._connection.send(replies.Messages(messages=[fields.document(each) for each in taken]))
            if self._is_paused and self._outbox.has_room:
                self._is_paused = False
                self._source.resume()

    async def _say_over(self, closing: Closing) -> None:
        code = "request" if closing.close_code == GARBAGE else "limit"
        # the browser may have disconnected already
        with contextlib.suppress(Closing, WebSocketDisconnect, RuntimeError):
            await self._connection.send(replies.Over(code=code, what=str(closing), close_code=closing.close_code))

    def _say(self, reply: replies.Reply) -> None:
        try:
            self._outbox.reply(reply)
        except LimitError as error:
            self._end(Closing(SLOW, error.what))
        self._wake.set()

    def _end(self, closing: Closing) -> None:
        if not self._closing.done():
            self._closing.set_exception(closing)

    # Calls from the source

    def opened(self, number: int, is_live: bool) -> None:
        """Reply before the first message: the reply tells the browser how to interpret the messages."""
        subscription = self._subscriptions.get(number)
        if subscription is not None:
            self._counters.add("subscriptions_opened")
            self._say(replies.Subscribed(id=number, topics=list(subscription.topics), is_live=is_live))

    def arrived(self, number: int, stream: str, arrivals: Sequence[Arrival]) -> None:
        subscription = self._subscriptions.get(number)
        if subscription is None:
            return
        try:
            for time_ns, message in arrivals:
                self._outbox.put(fields.Arrived(number, stream, time_ns, message), subscription.cls)
        except LimitError as error:
            self._end(Closing(SLOW, error.what))
        self._counters.add("messages_streamed", len(arrivals))
        self._wake.set()
        if self._outbox.is_full and not self._is_paused:
            self._is_paused = True
            self._source.pause()

    def is_live(self, number: int) -> None:
        if number in self._subscriptions:
            self._say(replies.Live(id=number))

    def received(self, receipt: replies.Receipt) -> None:
        if receipt.id in self._subscriptions:
            self._say(receipt)

    def ended(self, number: int, error: PenstockError) -> None:
        subscription = self._subscriptions.pop(number, None)
        if subscription is None:
            return
        self._outbox.forget(number)
        self._counters.add("subscriptions_ended", cause=Cause.REFUSED)
        if isinstance(error, RevokedError):
            self._say(replies.Revoked(ids=[number], topics=list(subscription.topics), reason=error.what))
        else:
            self._say(replies.Refused.of(error, "subscribe", number))

    def changed(self, state: replies.State) -> None:
        self._say(state)

    def heard(self, info: replies.Info) -> None:
        self._say(info)
