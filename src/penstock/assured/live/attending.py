"""A live router's attention for one client: its publisher waits for each message, and comes again at once.

Until somebody else says something, that client is served without the loop (_attending.pyx), for some milliseconds at a
time; so its messages take little longer than the disk does.
"""

import asyncio
from collections.abc import Callable

from penstock.assured.core.router.core import MessageRouter
from penstock.assured.live._attending import Attending
from penstock.assured.live.doors import RouterLinks
from penstock.assured.live.storing import ATTEND_SECONDS, Storing
from penstock.base.clock import NS_PER_SECOND
from penstock.journal import LoneWriter
from penstock.net.link import Link

ATTEND_NS = int(ATTEND_SECONDS * NS_PER_SECOND)


class Attendant:
    """`is_over` says that the core has failed."""

    def __init__(self, core: MessageRouter, links: RouterLinks, storing: Storing, is_over: Callable[[], bool]) -> None:
        self._core = core
        self._links = links
        self._storing = storing
        self._is_over = is_over
        self._loop = asyncio.get_running_loop()
        self._kernel = Attending(core.tables, core.endpoints.matcher.topics, links.receiver, links.ears.fileno())

    def attend(self) -> None:
        """A message that came alone was acknowledged: its publisher's next one is expected, if it is quick."""
        if not self._serve():
            self._links.look_out()

    def _serve(self) -> bool:
        """Whether a client was served."""
        link = self._links.prompt
        if link is None or not self._may_serve(link):
            return False
        kernel, rest = self._kernel, b""
        served = kernel.served

        def serve(journal: LoneWriter) -> bool:
            nonlocal rest
            endpoints = self._core.endpoints.matcher.owners
            rest = kernel.serve(journal, link.fd, link.number, endpoints, self._core.wall_offset_ns, ATTEND_NS)
            if kernel.unsent:
                link.write(kernel.unsent)
            return kernel.served > served

        if not self._storing.attend(serve):
            return False
        self._links.counters.add("messages_attended", kernel.served - served)
        self._links.attended(link, rest, is_prompt=kernel.is_prompt)
        if kernel.is_prompt and not rest:
            self._loop.call_soon(self._serve)  # if it is not the loop that has its next message by then
        return True

    def _may_serve(self, link: Link) -> bool:
        """Whether nothing but its topics decides what becomes of its messages, and nobody else wants the processor."""
        core = self._core
        client = core.links.get(link.number)
        is_plain = client is not None and core.is_active and core.publishing.is_plain(client)
        return is_plain and not self._is_over() and not self._links.receiver.is_spared and self._links.is_between(link)
