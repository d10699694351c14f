"""Orders to the supervisor of a plant, from another process of the same user on this machine: the console.

A Unix socket in the abstract namespace, of which nothing is left behind; its name is made of the document's path. Both
sides look at who the other is, as the kernel knows it: only the same user gives orders, and only its plant takes them.
One message is one order, one message its answer.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.decoding import json_decoder
from penstock.base.errors import HandoverError, PenstockError, RefusedError, RemoteProtocolError, UnreachableError
from penstock.base.log import logger
from penstock.net.live.unix import Connection, accept, connect, listen

ORDER_SIZE_MAX = 4_096
WAIT_NS = NS_PER_SECOND // 5
"""How long the supervisor waits for an order after somebody connected."""

ANSWER_WAIT_NS = 5 * NS_PER_SECOND

log = logger("node.orders")


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """kill: end the process of a node at once. promote: make a backup adapter the active one. look: nothing."""

    what: Literal["kill", "promote", "look"]
    node: str = ""
    reason: str = ""


class Answer(msgspec.Struct, frozen=True):
    is_done: bool
    detail: str


def place_of(document: Path) -> str:
    """Where the supervisor of this plant listens."""
    digest = hashlib.sha256(str(document.absolute()).encode()).hexdigest()
    return f"@penstock-plant-{os.geteuid()}-{digest[:32]}"


class OrderListener:
    """The supervisor's side: serve() whenever it is readable. `carry_out` raises PenstockError for what it refuses."""

    def __init__(self, document: Path, carry_out: Callable[[Order], str]) -> None:
        """HandoverError if the plant has a supervisor already."""
        self._carry_out = carry_out
        self._socket = listen(place_of(document))

    def fileno(self) -> int:
        return self._socket.fileno()

    def serve(self) -> None:
        try:
            connection = accept(self._socket)
        except OSError:
            return  # it has gone already
        try:
            _, user = connection.credentials()
            if user not in (os.geteuid(), 0):
                log.warning("stranger_refused", user=user)
                return
            connection.send(msgspec.json.encode(self._answer(connection)))
        except OSError as error:
            log.info("order_lost", error=str(error))
        finally:
            connection.close()

    def close(self) -> None:
        self._socket.close()

    def _answer(self, connection: Connection) -> Answer:
        try:
            data, _ = connection.receive(ORDER_SIZE_MAX, 0, WAIT_NS)
            order = json_decoder(Order).decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, HandoverError) as error:
            return Answer(False, f"is no order: {error}")
        try:
            detail = self._carry_out(order)
        except PenstockError as error:
            return Answer(False, error.what)
        if order.what != "look":
            log.warning("order", what=order.what, node=order.node, reason=order.reason, detail=detail)
        return Answer(True, detail)


def give_order(document: Path, order: Order) -> str:
    """Send an order to the plant's supervisor and return the result. Raise RefusedError if the supervisor refuses, and
    UnreachableError if this user runs no supervisor for the plant on this machine."""
    try:
        connection = connect(place_of(document), ANSWER_WAIT_NS)
    except OSError:
        raise UnreachableError(
            "nobody supervises this plant here", hint="`penstock up` or `penstock demo`, on this machine"
        ) from None
    try:
        if connection.credentials()[1] not in (os.geteuid(), 0):
            raise UnreachableError("somebody else pretends to supervise this plant")
        connection.send(msgspec.json.encode(order))
        data, _ = connection.receive(ORDER_SIZE_MAX, 0, ANSWER_WAIT_NS)
        answer = json_decoder(Answer).decode(data)
    except OSError as error:
        raise UnreachableError(f"the supervisor does not answer: {error}") from None
    except msgspec.MsgspecError:
        raise RemoteProtocolError("the supervisor's answer is not understood") from None
    finally:
        connection.close()
    if not answer.is_done:
        raise RefusedError(answer.detail, peer_code="refused")
    return answer.detail
