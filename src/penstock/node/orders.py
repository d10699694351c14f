"""Orders to the supervisor of a plant, from another process of the same user on this machine, such as the console.

The orders use a Unix socket in the abstract namespace, which leaves no file behind; its name is derived from the
document's path. Both sides check the peer's identity with the kernel: supervisor and client must have the same user.
Each message is one order or one answer.
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
"""Time that the supervisor waits for an order after a client has connected."""

ANSWER_WAIT_NS = 5 * NS_PER_SECOND

log = logger("node.orders")


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`kill` ends a node's process at once. `promote` makes a backup adapter the active one. `look` does nothing."""

    what: Literal["kill", "promote", "look"]
    node: str = ""
    reason: str = ""


class Answer(msgspec.Struct, frozen=True):
    is_done: bool
    detail: str


def place_of(document: Path) -> str:
    """The socket address of this plant's supervisor."""
    digest = hashlib.sha256(str(document.absolute()).encode()).hexdigest()
    return f"@penstock-plant-{os.geteuid()}-{digest[:32]}"


class OrderListener:
    """The supervisor's side: call serve() whenever the listener is readable. `carry_out` raises PenstockError for a
    refused order."""

    def __init__(self, document: Path, carry_out: Callable[[Order], str]) -> None:
        """Raise HandoverError if the plant already has a supervisor."""
        self._carry_out = carry_out
        self._socket = listen(place_of(document))

    def fileno(self) -> int:
        return self._socket.fileno()

    def serve(self) -> None:
        try:
            connection = accept(self._socket)
        except OSError:
            return  # the client has disconnected
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
            return Answer(False, f"is not a valid order: {error}")
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
            "no supervisor of this user runs this plant here",
            hint="run it with `penstock up` or `penstock demo` on this machine",
        ) from None
    try:
        if connection.credentials()[1] not in (os.geteuid(), 0):
            raise UnreachableError("a process of another user listens at the supervisor's address")
        connection.send(msgspec.json.encode(order))
        data, _ = connection.receive(ORDER_SIZE_MAX, 0, ANSWER_WAIT_NS)
        answer = json_decoder(Answer).decode(data)
    except OSError as error:
        raise UnreachableError(f"the supervisor does not answer: {error}") from None
    except msgspec.MsgspecError:
        raise RemoteProtocolError("cannot decode the supervisor's answer") from None
    finally:
        connection.close()
    if not answer.is_done:
        raise RefusedError(answer.detail, peer_code="refused")
    return answer.detail
