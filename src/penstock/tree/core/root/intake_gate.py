"""IntakeGate: decides when the compiled intake of a root (kernel/_intake.pyi) may sequence messages by itself.

It may while every sequenced message is distributed, messages need not be synced first, and no standby has to have them
first. A message that the intake does not take goes through sequencer.py; meanwhile publishers wait for the intake, so
that messages keep their order and most are sequenced by the intake, however fast they come.
"""

from penstock.net.core.framing import encode_frame
from penstock.topics import InterestTable
from penstock.tree.core.control import MESSAGE_SIZE_MAX, TREE, Published
from penstock.tree.core.environment import Environment
from penstock.tree.core.kernel._fanout import Fanout
from penstock.tree.core.kernel._intake import Intake
from penstock.tree.core.kernel._tail import TailMemory
from penstock.tree.core.kernel.taken import Taken

U64_MAX = 2**64 - 1


class IntakeGate:
    def __init__(self, environment: Environment, fanout: Fanout) -> None:
        self._environment = environment
        self._fanout = fanout
        self._tail: TailMemory | None = None
        self._is_used = self._is_open = self._is_awaited = False

    def set_tail(self, tail: TailMemory) -> None:
        """Memory that outlives the process. Without it there is no intake."""
        self._tail = tail

    def begin_term(self, tree_id: int, term: int, topics: InterestTable, wall_offset_ns: int) -> None:
        """The agent is the root in a new term; the gate is closed. `topics` changes only under the fan-out's mutex."""
        self.end()
        config = self._environment.config
        if self._tail is not None and config.persist == "written":
            self._is_used = True
            suffices = config.replicate != "synchronous"  # otherwise the standby must have a message, too
            acknowledgement = encode_frame(TREE.encode(Published(U64_MAX), MESSAGE_SIZE_MAX)) if suffices else b""
            self._fanout.use_intake(Intake(tree_id, term, topics, self._tail, wall_offset_ns, acknowledgement))

    def end(self) -> None:
        self._is_used = self._is_open = self._is_awaited = False
        self._fanout.use_intake(None)

    def take(self) -> Taken | None:
        """The messages that the intake has sequenced since the last call."""
        return self._fanout.take_out(self._environment.now_ns) if self._is_used else None

    def hold(self) -> None:
        """The sequencer is about to sequence messages; publishers wait for the intake until settle()."""
        if self._is_open:
            self._is_open, self._is_awaited = False, True
            self._fanout.hold_intake()

    def settle(self, *, is_distributed: bool, is_wanted: bool) -> bool:
        """Open the gate if everything is distributed and the intake is wanted. True if publishers that waited go on:
        they may have sent something that the intake does not take."""
        if not self._is_used or self._is_open:
            return False
        was_awaited = self._is_awaited
        if is_wanted and is_distributed:
            self._is_open, self._is_awaited = True, False
            self._fanout.open_intake(self._environment.now_ns)
        elif not is_wanted and was_awaited:
            self._is_awaited = False
            self._fanout.close_intake()
        return was_awaited and not self._is_awaited
