"""Outbox: frames for links, infostream messages for children, and instructions for the driver, in the order of the
calls."""

from collections.abc import Iterable

from penstock.base.counters import Cause
from penstock.base.errors import LimitError, LocalProtocolError
from penstock.net.core.framing import encode_frame
from penstock.tree.core.children import ChildTable
from penstock.tree.core.control import MESSAGE_SIZE_MAX, TREE, Message
from penstock.tree.core.environment import Environment
from penstock.tree.core.events import Became, Close, Informed, Instruction
from penstock.tree.core.infostream import Conflated, Info, Infostream
from penstock.tree.core.kernel._fanout import Fanout
from penstock.tree.core.kernel._frame import encode_block
from penstock.tree.core.membership import Membership


class Outbox:
    def __init__(self, environment: Environment, fanout: Fanout, membership: Membership, children: ChildTable) -> None:
        self._environment = environment
        self._fanout = fanout
        self._membership = membership
        self._children = children
        self._infostream = Infostream(environment.config.name)
        self._instructions: list[Instruction] = []
        self._reported: Became | None = None

    def instruct(self, instruction: Instruction) -> None:
        self._instructions.append(instruction)

    def take(self) -> list[Instruction]:
        taken, self._instructions = self._instructions, []
        return taken

    def send(self, link: int, *messages: Message) -> None:
        """Control messages. A link to which they cannot be sent is closed."""
        try:
            frames = b"".join(encode_frame(TREE.encode(message, MESSAGE_SIZE_MAX)) for message in messages)
        except LocalProtocolError as error:
            self.close(link, "limit", str(error))
        else:
            self.send_frames(link, frames)

    def send_frames(self, link: int, frames: bytes, *, is_behind: bool = True) -> None:
        """Frames, behind everything that waits for the link; `is_behind` False: they may overtake packets. A link
        whose queue is full is closed."""
        try:
            self._fanout.say(link, frames, is_behind=is_behind)
        except LimitError as error:
            self.close(link, "slow", str(error))
        except LocalProtocolError:  # the link closed before this was sent
            self._environment.counters.add("messages_skipped", cause=Cause.CLOSED)

    def inform(self, info: Info, links: Iterable[int] | None = None) -> None:
        """A message of the infostream, to the children on these links; None: to all children."""
        to = self._children.links() if links is None else list(links)
        self._environment.accounts.informed(info, to)
        if not to:
            return
        frame = encode_block(self._infostream.encode(info, self._membership.term))
        for link in to:
            self.send_frames(link, frame, is_behind=not isinstance(info, Conflated))
        first = self._children.get(to[0])
        name = first.party.name if links is not None and first is not None else ""
        self.instruct(Informed("said", 0 if links is None else to[0], name, info))

    def inform_parent(self, link: int, info: Info) -> None:
        self.send_frames(link, encode_block(self._infostream.encode(info, self._membership.term)))

    def close(self, link: int, cause: str, reason: str = "") -> None:
        """Accept nothing more from the link; the driver closes it when everything that waits is sent."""
        self._fanout.stop(link)
        self.instruct(Close(link, cause, reason))

    def report_membership(self) -> None:
        """Instruct the driver if the agent's role, term or path has changed."""
        now = self._membership.as_instruction()
        if now != self._reported:
            self._reported = now
            self.instruct(now)
