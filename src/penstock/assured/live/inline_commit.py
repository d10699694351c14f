"""The router side of inline commit (client/inline_commit.py has the drawing): a publisher waits for each message and
sends the next one at once.

Until another client sends something, the publisher is served without the loop (_inline_commit.pyx), for a few
milliseconds at a time, so that a message takes little longer than the disk does.
"""

import asyncio
from collections.abc import Callable

from penstock.assured.core.router.router import MessageRouter
from penstock.assured.live._inline_commit import InlineCommitKernel
from penstock.assured.live.client_links import ClientLinks
from penstock.assured.live.disk import INLINE_COMMIT_SECONDS, LiveDisk
from penstock.base.clock import NS_PER_SECOND
from penstock.journal import InlineWriter
from penstock.net.live.link import Link

INLINE_COMMIT_NS = int(INLINE_COMMIT_SECONDS * NS_PER_SECOND)


class RouterInlineCommit:
    """`is_over` returns True if the core has failed."""

    def __init__(self, core: MessageRouter, links: ClientLinks, is_over: Callable[[], bool]) -> None:
        self._core = core
        self._links = links
        self._is_over = is_over
        self._loop = asyncio.get_running_loop()
        self._kernel = InlineCommitKernel(
            core.tables, core.endpoints.matcher.topics, links.receiver, links.readable.fileno()
        )

    def run(self, disk: LiveDisk) -> None:
        """Serve the publisher whose single message was just acknowledged, if its next one comes at once."""
        if not self._serve(disk):
            self._links.await_next()

    def _serve(self, disk: LiveDisk) -> bool:
        """True if a client was served."""
        link = self._links.waiting_publisher
        if link is None or not self._may_serve(link):
            return False
        kernel, rest = self._kernel, b""
        served = kernel.served

        def serve(journal: InlineWriter) -> bool:
            nonlocal rest
            endpoints = self._core.endpoints.matcher.owners
            rest = kernel.serve(journal, link.fd, link.number, endpoints, self._core.wall_offset_ns, INLINE_COMMIT_NS)
            if kernel.unsent:
                link.write(kernel.unsent)
            return kernel.served > served

        if not disk.commit_inline(serve):
            return False
        self._links.counters.add("messages_committed_inline", kernel.served - served)
        self._links.committed_inline(link, rest, is_next_ready=kernel.is_next_ready)
        if kernel.is_next_ready and not rest:
            self._loop.call_soon(self._serve, disk)  # unless the loop has read its next message by then
        return True

    def _may_serve(self, link: Link) -> bool:
        """True if only topics decide on the endpoints of its messages, and no other client has work to do."""
        core = self._core
        client = core.links.get(link.number)
        is_plain = client is not None and core.is_active and core.intake.is_plain(client)
        return (
            is_plain
            and not self._is_over()
            and not self._links.receiver.is_backing_off
            and self._links.is_between(link)
        )
