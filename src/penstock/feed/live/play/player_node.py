"""A player as a node: plays in a thread until the node is stopped."""

import threading

from penstock.feed.core.play.config import PlayerConfig
from penstock.feed.live.play.mold_player import MoldPlayer
from penstock.runtime.node import Node, in_thread


class LivePlayer:
    """Opens its sockets when it is created, in the thread of the running loop."""

    def __init__(self, config: PlayerConfig) -> None:
        self.node = Node(config.name)
        self._player = MoldPlayer(config)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._play, name="penstock-player", daemon=True)
        self.node.add("player", start=self._thread.start, close=in_thread(self._close))
        self.place = f"{config.host}:{self._player.request_port}"

    @property
    def sent(self) -> int:
        """Number of messages, each counted once."""
        return self._player.next_sequence - 1

    def _play(self) -> None:
        try:
            self._player.run(self._is_over)
        except Exception as error:
            self.node.fail(error)

    def _close(self) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._player.close()
