"""The events that the readers of each client have applied, according to their requests.

A reader is one process that polls for events with a session of its own; several may share a client's credentials. A
reader that asks for the events after number N has applied all events up to N. A process that logs in again remains the
same reader. Nothing here is durable: after a restart the readers are known as soon as they poll again.
"""

from collections.abc import Iterable

import msgspec

from penstock.base.clock import NS_PER_SECOND


class Reader(msgspec.Struct):
    client: str
    session: str
    applied: int
    """The number of the last event that the reader has applied."""
    seen_ns: int
    """Time at which the reader's last request started or ended."""
    open_requests: int = 0


class EventReaders:
    def __init__(self, lost_s: float, now_ns: int) -> None:
        self._lost_ns = round(lost_s * NS_PER_SECOND)
        self._started_ns = now_ns
        self._readers: dict[str, Reader] = {}  # by session

    def expect(self, client: str, session: str, after: int, now_ns: int) -> None:
        """A client has subscribed: its reader, if it is new, will ask for the events after this number."""
        if session not in self._readers:
            self.forget_lost(now_ns)
            self._readers[session] = Reader(client, session, after, now_ns)

    def begin(self, client: str, session: str, after: int, now_ns: int) -> Reader:
        """A reader asks for the events after this number."""
        self.expect(client, session, after, now_ns)
        reader = self._readers[session]
        reader.applied, reader.seen_ns = after, now_ns
        reader.open_requests += 1
        return reader

    def end(self, reader: Reader, now_ns: int, *, is_gone: bool = False) -> None:
        """The request was answered, or its reader disconnected before."""
        reader.open_requests -= 1
        reader.seen_ns = now_ns
        if is_gone and reader.open_requests <= 0:
            del self._readers[reader.session]

    def change_session(self, client: str, former: str, session: str) -> None:
        """The client has logged in again in place of a former session. Otherwise a reader of the former session, which
        never polls again, would count as behind until it is lost."""
        reader = self._readers.get(former)
        if reader is not None and reader.client == client and session not in self._readers:
            del self._readers[former]
            reader.session = session
            self._readers[session] = reader

    def behind(self, clients: Iterable[str], number: int, now_ns: int, *, publishing: Iterable[str] = ()) -> list[str]:
        """The clients with a present reader that has not applied event `number`. Clients in `publishing` are also
        behind without a reader."""
        self.forget_lost(now_ns)
        present: dict[str, bool] = {}
        for each in self._readers.values():
            present[each.client] = present.get(each.client, True) and each.applied >= number
        wanted = set(clients)
        late = {each for each in wanted if not present.get(each, True)}
        return sorted(late | {each for each in publishing if each in wanted and each not in present})

    def is_settling(self, now_ns: int) -> bool:
        """True for some time after a start, in which readers may not have polled yet."""
        return now_ns - self._started_ns <= self._lost_ns

    def forget_lost(self, now_ns: int) -> None:
        """Forget readers without a request for too long. Call it often: if the clock was set back, the waiting times
        begin anew."""
        self._started_ns = min(self._started_ns, now_ns)
        for each in self._readers.values():
            each.seen_ns = min(each.seen_ns, now_ns)
        lost = [
            session
            for session, each in self._readers.items()
            if each.open_requests <= 0 and now_ns - each.seen_ns > self._lost_ns
        ]
        for session in lost:
            del self._readers[session]
