"""Run as a process: a command whose router treats every client and every disk as fast, on any machine. The speed
decides whether a router serves a client without its loop; the tests cover the inline path itself."""

from typing import Any

from penstock.assured.live import client_links, disk
from penstock.base.clock import NS_PER_MS

PATIENT: tuple[tuple[Any, str, Any], ...] = (
    (client_links, "AWAIT_NEXT_NS", 50 * NS_PER_MS),
    (disk, "FAST_SYNC_SECONDS", 60.0),
)

if __name__ == "__main__":
    from penstock.cli.main import main

    for module, name, value in PATIENT:
        setattr(module, name, value)
    main()
