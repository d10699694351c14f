"""The intake of a root (_intake.pyi) as its core uses it: when there is one, and when it may give places by itself.

It may while every message that has a place is distributed, messages need not be synced before, and no standby has to
have them first. What it does not take goes the way of sequencer.py; meanwhile publishers wait for it, so that each
message keeps its place in the order and most are taken by the intake however fast they come.
"""

from penstock.topics import InterestTable
from penstock.tree.core.board import Board
from penstock.tree.core.kernel._intake import Intake
from penstock.tree.core.kernel._tail import TailMemory
from penstock.tree.core.kernel.taken import Taken


class Intaking:
    def __init__(self, board: Board) -> None:
        self._board = board
        self._tail: TailMemory | None = None
        self._is_used = self._is_open = self._is_waited_for = False

    def lend(self, tail: TailMemory) -> None:
        """What is put here outlives the process. Without it there is no intake."""
        self._tail = tail

    def begin(self, tree_id: int, term: int, topics: InterestTable, wall_offset_ns: int) -> None:
        """Of a root, in a new term; it is closed. `topics` is changed with the fan-out's mutex only."""
        self.end()
        if self._tail is not None and self._board.config.persist == "written":
            self._is_used = True
            self._board.fanout.use_intake(Intake(tree_id, term, topics, self._tail, wall_offset_ns))

    def end(self) -> None:
        self._is_used = self._is_open = self._is_waited_for = False
        self._board.fanout.use_intake(None)

    def take_out(self) -> Taken | None:
        """What it has taken since the last time."""
        return self._board.fanout.take_out(self._board.now_ns) if self._is_used else None

    def hold(self) -> None:
        """Others are to give places, soon it goes on."""
        if self._is_open:
            self._is_open, self._is_waited_for = False, True
            self._board.fanout.hold_intake()

    def settle(self, *, is_distributed: bool, is_wanted: bool) -> bool:
        """Be open, if everything is distributed and it is wanted. Whether publishers go on who waited: they may have
        sent something that it does not take."""
        if not self._is_used or self._is_open:
            return False
        was_waited_for = self._is_waited_for
        if is_wanted and is_distributed:
            self._is_open, self._is_waited_for = True, False
            self._board.fanout.open_intake(self._board.now_ns)
        elif not is_wanted and was_waited_for:
            self._is_waited_for = False
            self._board.fanout.close_intake()
        return was_waited_for and not self._is_waited_for
