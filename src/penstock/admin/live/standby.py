"""PeerWatcher: the thread that pairs this server with the other administration server.

A standby follows the changes of the primary; it takes over on an operator's order, or automatically if a timeout is
configured. A primary polls the other server, and follows it if the other server has taken over (it then has a higher
generation). So a primary that returns after a failover makes no more decisions.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from penstock.admin.config import PeerConfig
from penstock.admin.live.server import AdminService
from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.security.live.client import AdminClient

WAIT_S = 5.0
RETRY_S = 0.25
TIMEOUT_S = 3.0

log = logger("admin.pair")


class PeerWatcher:
    """`call` runs a function in the thread of the service."""

    def __init__(self, config: PeerConfig, service: AdminService, call: Callable[[Callable[[], Any]], Any]) -> None:
        self._config = config
        self._service = service
        self._call = call
        self._client = AdminClient.connect(config.address, config.credentials, timeout_s=TIMEOUT_S)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-admin-pair", daemon=True)
        self._heard_s = time.monotonic()
        self._trouble = ""

    def look_first(self) -> None:
        """Check before serving requests whether the other server took over in the meantime."""
        if self._service.role == "primary":
            self._step(self._look)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._client.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            if self._service.role == "primary":
                self._step(self._look)
                self._stopped.wait(self._config.check_s)
            elif not self._step(self._pull):
                self._take_over_if_due()
                self._stopped.wait(RETRY_S)

    def _step(self, step: Callable[[], bool]) -> bool:
        try:
            is_done = step()
        except PenstockError as error:
            if not self._stopped.is_set() and str(error) != self._trouble:
                self._trouble = str(error)
                log.warning("peer_failed", reason=self._trouble)
            return False
        if is_done:
            self._trouble = ""
        return is_done

    def _look(self) -> bool:
        """As a primary: find out which of the two servers stays primary."""
        other = self._client.status()
        ours = self._call(lambda: self._service.generation)
        if other.role == "primary" and other.generation > ours:
            self._call(lambda: self._service.step_down(other.generation))
            self._heard_s = time.monotonic()
        elif other.role == "primary" and other.generation == ours:
            log.error("two_primaries", node=other.node, generation=ours, hint="promote one of them")
        return True

    def _pull(self) -> bool:
        """As a standby: fetch the changes of the primary."""
        service = self._service
        after, history_id, generation = self._call(
            lambda: (service.change_number, service.history_id, service.generation)
        )
        answer = self._client.changes(after, history_id, wait_s=WAIT_S)
        if answer.role != "primary" or answer.generation < generation:
            return False  # the peer is no primary: nothing to follow
        if answer.token_key_id != service.token_key_id:
            log.error("other_signing_key", hint="give both servers the same signing key file")
            return False
        self._call(lambda: service.follow(answer))
        self._heard_s = time.monotonic()
        return True

    def _take_over_if_due(self) -> None:
        lost_s = self._config.primary_lost_s
        silent_s = time.monotonic() - self._heard_s
        if lost_s and silent_s >= lost_s and self._call(lambda: self._service.history_id):
            self._call(lambda: self._service.promote(f"the primary was silent for {silent_s:.1f} s"))
