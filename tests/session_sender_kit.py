"""A data thread with only a session sender, and its connections."""

import select
import threading
import time
from types import TracebackType
from typing import Any, Self

from penstock.net.live.mailbox import Mailbox
from penstock.plant.live._session_sender import SessionSender
from penstock.plant.live.session_transport import SessionTransports

TURN_SECONDS = 0.05


class SessionSenderThread:
    """Runs a session sender from __enter__ to __exit__; inside, `ask` runs a call in the sender's thread."""

    def __init__(self, sessions_max: int = 64, *, gather_ns: int = 0, words_size_max: int = 65_536) -> None:
        self.session_sender = SessionSender(
            sessions_max, sessions_max, gather_ns=gather_ns, words_size_max=words_size_max
        )
        self.sessions_max = sessions_max
        self._bell = threading.Event()
        self._mail = Mailbox(self._bell.set, "the session sender")
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.ask = self._mail.ask

    def transports(self) -> SessionTransports:
        """Transports for the running event loop."""
        return SessionTransports(self.session_sender, self.sessions_max, self.ask)

    def do(self, call: Any) -> Any:
        return self.ask(call).result(10)

    def _run(self) -> None:
        while not self._is_stopped:
            self._bell.wait(0.005 if not select.select([self.session_sender], [], [], 0)[0] else 0)
            self._bell.clear()
            self._mail.deliver()
            self.session_sender.run(time.monotonic_ns())
        self._mail.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_stopped = True
        self._bell.set()
        self._thread.join()
