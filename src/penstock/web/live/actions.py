"""Actions of operators: orders to the supervisor of the plant, to agents and to the administration server, with a
log of the operator, the reason and the outcome."""

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from penstock.base.errors import ConfigurationError, ForbiddenError, NotFoundError, PenstockError
from penstock.base.files import create_or_open, make_directory
from penstock.base.log import logger
from penstock.net.guard import Guard
from penstock.node.orders import Order, give_order
from penstock.node.plant import Plant
from penstock.security.core.brokering import Name, Topics
from penstock.tree.client.operator import order_agent
from penstock.tree.config import AgentConfig
from penstock.tree.core.control import Order as TreeOrder
from penstock.web.live.news import News
from penstock.web.live.sessions import Session
from penstock.web.live.trees import place_of

LOG_NAME = "actions.jsonl"
NS_PER_MS = 1_000_000

Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]

log = logger("console.actions")


class Action(msgspec.Struct, frozen=True, kw_only=True, tag_field="action", forbid_unknown_fields=True):
    reason: Reason

    @property
    def subject(self) -> str:
        return ""


class NodeAction(Action, frozen=True, kw_only=True):
    node: Name

    @property
    def subject(self) -> str:
        return self.node


class Kill(NodeAction, frozen=True, kw_only=True, tag="kill"):
    pass


class Promote(NodeAction, frozen=True, kw_only=True, tag="promote"):
    pass


class Return(NodeAction, frozen=True, kw_only=True, tag="return"):
    """Orders the agent `node` to let a child return to its own parent."""

    child: Name

    @property
    def subject(self) -> str:
        return self.child


class Move(Return, frozen=True, kw_only=True, tag="move"):
    to: Name


class Revoke(Action, frozen=True, kw_only=True, tag="revoke"):
    client: Name
    topics: Topics = msgspec.field(default_factory=lambda: [">"])

    @property
    def subject(self) -> str:
        return self.client


class Restore(Action, frozen=True, kw_only=True, tag="restore"):
    client: Name

    @property
    def subject(self) -> str:
        return self.client


AnyAction: TypeAlias = Kill | Promote | Move | Return | Revoke | Restore


class ActionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    action: str
    subject: str
    detail: str


class ActionLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="audit"):
    """One line of the action log."""

    time_ms: float
    client: str
    address: str
    action: str
    subject: str
    reason: str
    outcome: Literal["asked", "done", "refused"]
    """`asked` is written before the action is carried out, and only to the file."""

    code: str = ""
    detail: str = ""


class ActionLog:
    """The console's action log, in lines of JSON: a request is on the disk before it is executed, its outcome before
    the operator gets the reply. A file that has `size_max` bytes becomes actions.jsonl.1, the one before
    actions.jsonl.2, and so on; `files_max` files are kept in all."""

    def __init__(self, directory: Path, *, size_max: int, files_max: int) -> None:
        self.news: News[ActionLine] = News()
        self._path = path = directory / LOG_NAME
        self._size_max = size_max
        self._files_max = files_max
        self._lock = threading.Lock()
        try:
            make_directory(directory)
            self._fd = create_or_open(path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise ConfigurationError(f"cannot be written: {error.strerror}", where=str(path)) from None

    async def note_asked(self, line: ActionLine) -> None:
        """Write a request to the log, or raise: an action that cannot be logged is not carried out."""
        try:
            await asyncio.to_thread(self._write, line)
        except OSError as error:
            log.error("action_log_failed", error=error.strerror)
            raise ConfigurationError(
                f"cannot write the action log: {error.strerror}",
                where=str(self._path),
                hint="check the disk of the console; the action was not carried out",
            ) from None

    async def note_outcome(self, line: ActionLine) -> None:
        fields = msgspec.structs.asdict(line)
        del fields["time_ms"]
        (log.info if line.outcome == "done" else log.warning)(fields.pop("action"), **fields)
        self.news.tell(line)
        try:
            await asyncio.to_thread(self._write, line)
        except OSError as error:
            # the action is carried out, and watching operators were notified
            log.error("action_log_failed", error=error.strerror)

    def _write(self, line: ActionLine) -> None:
        rest = memoryview(msgspec.json.encode(line) + b"\n")
        with self._lock:
            size = os.fstat(self._fd).st_size
            if size and size + len(rest) > self._size_max:
                self._begin_file()
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            os.fsync(self._fd)

    def _begin_file(self) -> None:
        names = [self._path, *(self._path.with_name(f"{LOG_NAME}.{number}") for number in range(1, self._files_max))]
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            if newer.exists():
                os.replace(newer, older)
        fd = create_or_open(self._path, os.O_WRONLY | os.O_APPEND | os.O_TRUNC)
        os.close(self._fd)
        self._fd = fd

    def close(self) -> None:
        os.close(self._fd)


class Actions:
    def __init__(self, plant: Plant, log: ActionLog, guard: Guard) -> None:
        self._plant = plant
        self._guard = guard
        self._log = log

    async def carry_out(self, session: Session, address: str, action: AnyAction) -> ActionAnswer:
        """Carry out an action. The action log has the request and outcome of every operator's action; attempts of
        other clients are only in the process log, so that they cannot fill the disk."""
        name = str(type(action).__struct_config__.tag)
        await self._check_role(session, address, name)
        asked = ActionLine(
            time_ms=time.time_ns() / NS_PER_MS,
            client=session.client,
            address=address,
            action=name,
            subject=action.subject,
            reason=action.reason,
            outcome="asked",
        )
        await self._log.note_asked(asked)
        try:
            detail = await self._done(session, action)
        except PenstockError as error:
            await self._log.note_outcome(_ended(asked, outcome="refused", code=error.code, detail=error.what))
            raise
        await self._log.note_outcome(_ended(asked, outcome="done", detail=detail))
        return ActionAnswer(action=name, subject=action.subject, detail=detail)

    async def _check_role(self, session: Session, address: str, name: str) -> None:
        """Check the role at the administration server: it may have been withdrawn since the login."""
        await asyncio.to_thread(session.read_roles, time.monotonic_ns())
        if not session.is_operator:
            log.warning("action_refused", client=session.client, address=address, action=name, code=ForbiddenError.code)
            raise ForbiddenError(f"{name} needs the role administrator")

    async def _done(self, session: Session, action: AnyAction) -> str:
        match action:
            case Kill(node=node):
                self._check_node(node)
                return await self._ordered(Order("kill", node, action.reason))
            case Promote(node=node) if isinstance(self._plant.nodes.get(node), AgentConfig):
                await self._order_agent(session, node, TreeOrder(1, "promote", reason=action.reason))
                return "the node becomes the root"
            case Move(node=node, child=child, to=to):
                place = place_of(self._agent(to))
                order = TreeOrder(1, "move", party=child, place=place, reason=action.reason)
                await self._order_agent(session, node, order)
                return f"{child} was asked to change to {to}"
            case Return(node=node, child=child):
                await self._order_agent(session, node, TreeOrder(1, "return", party=child, reason=action.reason))
                return f"{child} was asked to return"
            case Promote(node=node):
                self._check_node(node)
                return await self._ordered(Order("promote", node, action.reason))
            case Revoke(client=client, topics=topics):
                answer = await asyncio.to_thread(session.admin.revoke, client, action.reason, topics)
                return f"{len(answer.subscriptions)} subscriptions ended"
            case Restore(client=client):
                await asyncio.to_thread(session.admin.restore, client)
                return "all revocations were undone"

    async def _order_agent(self, session: Session, name: str, order: TreeOrder) -> None:
        """Send an order with the operator's own token, because the agent checks who may give orders."""
        agent = self._agent(name)
        brokered = await asyncio.to_thread(session.admin.subscribe, (">",))
        try:
            await order_agent(place_of(agent), order, tree=agent.tree, token=brokered.token, guard=self._guard)
        finally:
            await asyncio.to_thread(session.admin.cancel, brokered.subscription_id)

    def _agent(self, name: str) -> AgentConfig:
        config = self._plant.nodes.get(name)
        if not isinstance(config, AgentConfig):
            raise NotFoundError(f"unknown agent {name!r}")
        return config

    def _check_node(self, name: str) -> None:
        if name not in self._plant.nodes:
            raise NotFoundError(f"unknown node {name!r}")

    async def _ordered(self, order: Order) -> str:
        return await asyncio.to_thread(give_order, self._plant.path, order)


def _ended(asked: ActionLine, **outcome: Any) -> ActionLine:
    return msgspec.structs.replace(asked, time_ms=time.time_ns() / NS_PER_MS, **outcome)


def is_supervised(plant: Plant) -> bool:
    """True if a supervisor on this machine accepts orders."""
    try:
        give_order(plant.path, Order("look"))
    except PenstockError:
        return False
    return True
