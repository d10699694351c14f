"""The thread beside the loop: it forwards messages without the loop, and passes other frames to the core."""

import asyncio
import os
import socket
import threading

from penstock.tree.core.kernel._fanout import Brings, Fanout
from penstock.tree.core.kernel.notices import ControlFrame, Notice
from penstock.tree.live.data_thread import DataThread
from tree_kit import TREE_ID, block, packet

WORD = b"\x07\x00\x00\x00\x80a word"


def test_messages_are_carried_and_other_frames_reported() -> None:
    async def run() -> None:
        fanout = Fanout(TREE_ID)
        fanout.open_stream(1, term=1)
        loop_thread = threading.current_thread()
        told: list[Notice] = []
        changed = asyncio.Event()

        def noticed() -> None:
            assert threading.current_thread() is loop_thread
            told.extend(fanout.notices())
            changed.set()

        data_thread = DataThread(fanout, noticed)
        data_thread.start()
        pairs = [socket.socketpair() for _ in range(3)]
        try:
            for number, (near, far) in enumerate(pairs, 1):
                near.setblocking(False)
                far.setblocking(False)
                fanout.open_link(number, brings=Brings.PACKETS)
                if number > 1:
                    fanout.open_leg(number, 1, 1, [([">"], None)], is_live=True)
                data_thread.take_over(number, near.fileno(), WORD[:5] if number == 3 else b"")
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(pairs[2][1], WORD[5:])
            await asyncio.wait_for(changed.wait(), 120)
            assert told == [ControlFrame(3, WORD[4:])]
            await loop.sock_sendall(pairs[0][1], block(packet(1)))
            for _, far in pairs[1:]:
                assert await asyncio.wait_for(loop.sock_recv(far, 65_536), 120) == block(packet(1))
            assert data_thread.has(2)
            data_thread.give_back(2)
            fanout.close_link(2)
            assert not data_thread.has(2)
            os.fstat(pairs[1][0].fileno())  # the owner's own descriptor is still open
        finally:
            data_thread.stop()
            for pair in pairs:
                for each in pair:
                    each.close()

    asyncio.run(run())
