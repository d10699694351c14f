"""A TCP relay that can be cut: existing connections stall or end, and new ones get no answer."""

import contextlib
import selectors
import socket
import threading
from types import TracebackType
from typing import Self

PIECE = 65_536
LOOK_SECONDS = 0.02


class Relay:
    """A relay in a thread of its own."""

    def __init__(self, target: int) -> None:
        self._is_cut = False
        self._turn = threading.Event()
        self._target = ("127.0.0.1", target)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._is_over = threading.Event()
        self._others: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()
        self._server.close()
        for each in self._others:
            each.close()

    def cut(self) -> None:
        """Stop all traffic in both directions, without closing any connection."""
        self._is_cut = True
        self._turn.clear()
        self._turn.wait()

    def heal(self) -> None:
        self._is_cut = False

    def end(self) -> None:
        """Close the relayed connections on both sides."""
        with self._lock:
            for each in self._others:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        while not self._is_over.is_set():
            is_cut = self._is_cut
            self._turn.set()
            with selectors.DefaultSelector() as selector:
                selector.register(self._server, selectors.EVENT_READ)
                if not is_cut:
                    for each in self._others:
                        selector.register(each, selectors.EVENT_READ)
                for key, _ in selector.select(LOOK_SECONDS):
                    assert isinstance(key.fileobj, socket.socket)
                    self._take(key.fileobj)

    def _take(self, ready: socket.socket) -> None:
        if ready is self._server:
            self._accept()
        elif ready in self._others:
            try:
                data = ready.recv(PIECE)
                self._others[ready].sendall(data)
            except OSError:
                data = b""
            if not data:
                self._forget(ready)

    def _accept(self) -> None:
        caller, _ = self._server.accept()
        if self._is_cut:
            caller.close()
            return
        try:
            target = socket.create_connection(self._target)
        except OSError:
            caller.close()
            return
        for each in (caller, target):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._others[caller], self._others[target] = target, caller

    def _forget(self, end: socket.socket) -> None:
        with self._lock:
            other = self._others.pop(end)
            self._others.pop(other, None)
        end.close()
        other.close()
