"""What happens to message routers while they are judged: killed, paused, cut off, and with no room on the disk."""

import asyncio
import contextlib
import os
import resource
import signal
from abc import abstractmethod
from typing import ClassVar

from integration.assured_kit import RouterProcess
from integration.filter_kit import Loop
from penstock.net.place import parse_place

CHUNK_SIZE = 65_536
LIMIT_BYTES = 16_384


class Cable:
    """A way to a router that can be cut: nothing passes then in either direction, and nobody is told."""

    def __init__(self, target: str = "") -> None:
        self.target = target
        self._loop = Loop()
        self._links: set[asyncio.Task[None]] = set()
        self._server = self._loop.run(self._start())
        self.place = "{}:{}".format(*self._server.sockets[0].getsockname())

    async def _start(self) -> asyncio.Server:
        self._is_whole = asyncio.Event()
        self._is_whole.set()
        return await asyncio.start_server(self._connected, "127.0.0.1")

    def cut(self) -> None:
        self._loop.loop.call_soon_threadsafe(self._is_whole.clear)

    def mend(self) -> None:
        self._loop.loop.call_soon_threadsafe(self._is_whole.set)

    def close(self) -> None:
        self._loop.run(self._close())
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        for each in self._links:
            each.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        task.add_done_callback(self._links.discard)
        writers = [writer]
        try:
            await self._is_whole.wait()
            there, onward = await asyncio.open_connection(*parse_place(self.target))
            writers.append(onward)
            ways = [asyncio.ensure_future(self._carry(*way)) for way in ((reader, onward), (there, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass  # nobody is there: whoever came is sent away
        finally:
            for each in writers:
                each.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until one of them is gone."""
        with contextlib.suppress(OSError):
            while True:
                await self._is_whole.wait()
                data = await reader.read(CHUNK_SIZE)
                await self._is_whole.wait()
                if not data:
                    return
                writer.write(data)
                await writer.drain()


class Fault:
    """From begin() to end()."""

    name: ClassVar[str]

    def __init__(self, router: RouterProcess) -> None:
        self.router = router

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def end(self) -> None: ...


class Killed(Fault):
    name = "killed"

    def begin(self) -> None:
        self.router.kill()

    def end(self) -> None:
        self.router.start()


class Paused(Fault):
    name = "paused"

    def begin(self) -> None:
        os.kill(self.router.pid, signal.SIGSTOP)

    def end(self) -> None:
        os.kill(self.router.pid, signal.SIGCONT)


class Full(Fault):
    """The limit on the size of its files cuts a write in the middle, as a full disk may."""

    name = "full"

    def begin(self) -> None:
        self._limit(LIMIT_BYTES)

    def end(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        _, hard = resource.prlimit(self.router.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(
            self.router.pid, resource.RLIMIT_FSIZE, (size if size != resource.RLIM_INFINITY else hard, hard)
        )


class CutOff(Fault):
    """By one or several cables."""

    name = "cut off"

    def __init__(self, router: RouterProcess, *cables: Cable) -> None:
        super().__init__(router)
        self.cables = cables

    def begin(self) -> None:
        for each in self.cables:
            each.cut()

    def end(self) -> None:
        for each in self.cables:
            each.mend()
