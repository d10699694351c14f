"""A recorded feed as a source stream of a live adapter: a file, a capture or text, as fast as the adapter takes it."""

import threading
from pathlib import Path

from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.feed.adapter_config import SourceStreamConfig
from penstock.feed.datapath import DataPath
from penstock.feed.events import AdapterEvent, SessionBegan, SourceBroken, SourceMessages
from penstock.feed.line_events import LineInstruction, SessionStarted, SourceLost, SourceReady
from penstock.feed.sources import open_source

LOOK_SECONDS = 0.02

log = logger("feed.replay")


class ReplayInput:
    """Plays from start() to stop(), in a thread of its own; begins when the feed has an active adapter."""

    def __init__(self, config: SourceStreamConfig, data: DataPath) -> None:
        self._config = config
        self._data = data
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-replay", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopped.set()
        self._thread.join()

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
                if (event := self._event_of(instruction)) is not None:
                    # a batch is good until the next step: it is waited for
                    self._data.ask(lambda event=event: self._data.handle(event)).result()  # type: ignore[misc]
            for damage in source.damages:
                log.warning("damaged", stream=self._config.name, damage=str(damage))
        log.info("replayed", stream=self._config.name, url=self._config.url)

    def _event_of(self, instruction: LineInstruction) -> AdapterEvent | None:
        stream_id = self._config.id
        match instruction:
            case SourceReady(batch):
                return SourceMessages(stream_id, batch)
            case SourceLost(first, last):
                return SourceBroken(stream_id, first, last)
            case SessionStarted(name, first):
                return SessionBegan(stream_id, name, first)
            case _:
                return None
