"""Regions of records, and the notification filters that watch them."""

from penstock.base.clock import NS_PER_SECOND
from penstock.engine.client._store import RecordState, RecordStore
from penstock.engine.client._watch import Watch
from penstock.engine.client.filters import NotificationFilter
from penstock.engine.client.inbox import RegionOpened
from penstock.model import MessageModel

FOREVER_S = 1e9


class Region:
    """The records of one model."""

    def __init__(self, opened: RegionOpened, store: RecordStore, model: MessageModel) -> None:
        self.opened = opened
        self.store = store
        self.model = model
        self.topics: dict[int, str] = {}  # by slot

    def close(self) -> None:
        self.store.close()
        self.opened.close()


class FilterWatch:
    """One notification filter over all regions."""

    def __init__(self, rule: NotificationFilter) -> None:
        self.rule = rule
        self.watches: dict[int, Watch] = {}  # by model
        self._closes_ns = 0
        self._turn = 0

    def add(self, model_id: int, region: Region) -> None:
        watch = self.watches[model_id] = Watch(region.store)
        watch.configure(self.rule)
        for slot in region.topics:
            watch.admit(slot)
        self._closes_ns = 0

    def change(self, rule: NotificationFilter) -> None:
        for watch in self.watches.values():
            watch.configure(rule)
            if rule.session is None:
                watch.set_session(-(2**63), 2**63 - 1)
        self.rule = rule
        self._closes_ns = 0

    def next(self, now_ns: int, wall_ns: int) -> tuple[int, int, RecordState] | None:
        """Return model id, slot and record of the next notification; models take turns."""
        if self.rule.session is not None and wall_ns >= self._closes_ns:
            opens_ns, self._closes_ns = self.rule.session.window(wall_ns)
            for watch in self.watches.values():
                watch.set_session(opens_ns, self._closes_ns)
        turns = list(self.watches.items())
        for at in range(len(turns)):
            model_id, watch = turns[(self._turn + at) % len(turns)]
            if (told := watch.next(now_ns, wall_ns)) is not None:
                self._turn = (self._turn + at + 1) % len(turns)
                return model_id, *told
        return None

    def wait_s(self, now_ns: int, wall_ns: int) -> float:
        """Seconds until a report may be due although no record is written."""
        deadlines = [watch.next_deadline_ns(now_ns, wall_ns) for watch in self.watches.values()]
        return min(((each - now_ns) / NS_PER_SECOND for each in deadlines if each is not None), default=FOREVER_S)
