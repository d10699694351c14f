"""Source streams of a live adapter that do not come as datagrams: a recorded feed, or a SoupBinTCP server.

Each batch is passed to the data thread, and the next one is read when the data thread has taken it: back-pressure.
"""

import asyncio
import threading
from pathlib import Path

from penstock.base.errors import ConfigurationError, PenstockError
from penstock.base.log import logger
from penstock.feed.adapter_config import SourceStreamConfig
from penstock.feed.core.events import AdapterEvent, SessionBegan, SessionOver, SourceBroken, SourceMessages
from penstock.feed.core.lines.events import LineInstruction, SessionEnded, SessionStarted, SourceLost, SourceReady
from penstock.feed.live.data_path import DataPath
from penstock.feed.live.soup_client import SoupClient, SoupClientConfig
from penstock.feed.recorded.files import open_source

LOOK_SECONDS = 0.02
AGAIN_SECONDS = 1.0

log = logger("feed.stream_sources")


class ReplaySource:
    """A file, a capture or text, in a thread of its own; it begins when the feed has an active adapter."""

    def __init__(self, config: SourceStreamConfig, data: DataPath) -> None:
        self._config = config
        self._data = data
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-replay", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._is_stopped.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            while not self._data.ask(lambda: self._data.core.synchroniser.term).result():
                if self._is_stopped.wait(LOOK_SECONDS):
                    return
            self._play()
        except PenstockError as error:
            log.error("replay_failed", stream=self._config.name, code=error.code, error=str(error))

    def _play(self) -> None:
        with open_source(Path(self._config.url)) as source:
            for instruction in source:
                if self._is_stopped.is_set():
                    return
                if isinstance(instruction, SessionEnded):
                    continue  # the end of a file does not mean that its session ended
                if (event := event_of(self._config.id, instruction)) is not None:
                    self._data.ask(lambda event=event: self._data.handle(event)).result()  # type: ignore[misc]
            for damage in source.damages:
                log.warning("damaged", stream=self._config.name, damage=str(damage))
        log.info("replayed", stream=self._config.name, url=self._config.url)


class SoupSource:
    """A SoupBinTCP server, in the thread of the loop. After the end of a session, or a refusal, the source logs in
    again."""

    def __init__(self, config: SourceStreamConfig, data: DataPath) -> None:
        assert config.server is not None
        self._config = config
        self._data = data
        self._settings = SoupClientConfig(
            host=config.server.host,
            port=config.server.port,
            user=config.user,
            password=_password_in(config.password_file),
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                async for instruction in SoupClient(self._settings).events():
                    if (event := event_of(self._config.id, instruction)) is not None:
                        await asyncio.wrap_future(self._data.ask(lambda event=event: self._data.handle(event)))  # type: ignore[misc]
            except PenstockError as error:
                log.error("source_refused", stream=self._config.name, code=error.code, error=str(error))
            await asyncio.sleep(AGAIN_SECONDS)


def event_of(stream_id: int, instruction: LineInstruction) -> AdapterEvent | None:
    """The adapter's event for this instruction; None if there is none."""
    match instruction:
        case SourceReady(batch):
            return SourceMessages(stream_id, batch)
        case SourceLost(first, last):
            return SourceBroken(stream_id, first, last)
        case SessionStarted(name, first, is_reset, receive_ns):
            return SessionBegan(stream_id, name, first, is_reset, receive_ns)
        case SessionEnded():
            return SessionOver(stream_id)
        case _:
            return None


def _password_in(path: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        raise ConfigurationError("cannot read the password", where=path) from None
