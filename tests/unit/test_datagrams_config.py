"""The configuration of events over UDP: valid and invalid."""

import msgspec
import pytest

from penstock.base.errors import ConfigurationError
from penstock.engine import make_event
from penstock.engine.core.events import Lost, SessionTold
from penstock.engine.core.kernel._event import ALL_ITEMS, RECEIPT_SIZE, EventKind, TransmissionClass
from penstock.engine.core.session_events import encode_session, session_id
from penstock.middleware import SessionEvent
from penstock.middleware.core.events import SessionKind
from penstock.plant.config import DatagramsConfig, MuxConfig, PlantConfig
from penstock.plant.core.incoming import EARLY_MAX, SESSIONS_MAX, Incoming, Updated
from penstock.wire.term import session_tag

GROUP = "239.255.1.2:7420"


@pytest.mark.parametrize(
    "values",
    [
        {"group": GROUP},
        {"interface": "127.0.0.1", "missed": "resend_all"},
        {"interface": "127.0.0.1", "group": "10.0.0.1:7420"},
        {"interface": "127.0.0.1", "group": "239.255.74.11:7420"},
    ],
)
def test_an_invalid_group_is_refused(values: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        DatagramsConfig(**values)  # type: ignore[arg-type]


def test_only_a_node_whose_items_keep_their_numbers_has_a_group() -> None:
    sent = DatagramsConfig(interface="127.0.0.1", group=GROUP, missed="resend_all")
    assert PlantConfig(name="plant", datagrams=sent).datagrams.group == GROUP
    with pytest.raises(ConfigurationError):
        MuxConfig(name="mux", datagrams=sent)


def test_early_updates_are_bounded_and_the_newest_are_kept() -> None:
    incoming = Incoming(lambda number: ())
    incoming.begin(is_again=False, is_split=True)
    for item in range(EARLY_MAX + 1):
        for version in (2, 1):
            data = make_event(
                EventKind.UPDATE, item=item, cls=TransmissionClass.ADAPTIVE, version=version, number=version
            )
            assert not list(incoming.read_fresh(data, is_group=True))
    assert not list(incoming.read(make_event(EventKind.DEFINE, item=0, body=b"a")))
    (update,) = incoming.read(make_event(EventKind.DEFINE, item=1, body=b"b"))
    assert isinstance(update, Updated)
    assert (update.topic, update.version) == (b"b", 2)
    assert not list(incoming.read(make_event(EventKind.REFRESH, item=1, version=1, number=1)))  # overtaken


def test_a_number_that_is_assigned_to_another_item_starts_again() -> None:
    incoming = Incoming(lambda number: ())
    incoming.begin(is_again=False, is_split=True)
    late = make_event(EventKind.UPDATE, item=1, cls=TransmissionClass.ADAPTIVE, version=9, number=9)
    list(incoming.read(make_event(EventKind.DEFINE, item=1, body=b"a")))
    assert len(list(incoming.read_fresh(late))) == 1
    list(incoming.read(make_event(EventKind.DEFINE, item=1, body=b"b")))
    assert len(list(incoming.read(make_event(EventKind.REFRESH, item=1, version=1, number=1)))) == 1


@pytest.mark.spec("MUX-3")
def test_an_overtaken_image_is_dropped_and_versions_of_a_restarted_plant_start_again() -> None:
    """Versions start again with a restarted plant; the node above continues its numbers."""
    incoming = Incoming(lambda number: ())
    incoming.begin(is_again=False, is_split=True)

    def made(kind: EventKind, version: int, number: int) -> bytes:
        return make_event(kind, item=1, cls=TransmissionClass.ADAPTIVE, version=version, number=number)

    receipt = make_event(EventKind.RECEIPT, item=ALL_ITEMS, number=12, body=bytes(RECEIPT_SIZE))
    list(incoming.read(make_event(EventKind.DEFINE, item=1, body=b"a")))
    assert len(list(incoming.read_fresh(made(EventKind.UPDATE, 60, 20)))) == 1
    assert [type(each) for each in incoming.read(receipt + made(EventKind.REFRESH, 50, 10))] == [Lost]
    assert len(list(incoming.read_fresh(made(EventKind.UPDATE, 1, 30)))) == 1
    assert not list(incoming.read_fresh(made(EventKind.UPDATE, 61, 21)))


@pytest.mark.spec("DAY-3", "MUX-3")
@pytest.mark.parametrize("kind", ["end", "begin"])
def test_updates_that_the_end_of_their_session_has_overtaken_are_left_out(kind: SessionKind) -> None:
    days = [SessionEvent("begin", 1, day, "", session_tag(day), "sim") for day in ("monday", "tuesday")]
    ids = [session_id(day) for day in days]
    over = msgspec.structs.replace(days[0], kind="end") if kind == "end" else days[1]
    incoming = Incoming(lambda number: ())
    incoming.begin(is_again=False, is_split=True)

    def session(event: SessionEvent, number: int) -> bytes:
        return make_event(EventKind.SESSION, item=ALL_ITEMS, number=number, body=encode_session(event))

    def update(item: int, day: int, number: int, *, is_group: bool = False) -> list[int]:
        data = make_event(
            EventKind.UPDATE, item=item, cls=TransmissionClass.ADAPTIVE, version=number, number=number, slot=ids[day]
        )
        return [each.version for each in incoming.read_fresh(data, is_group=is_group) if isinstance(each, Updated)]

    list(incoming.read(make_event(EventKind.DEFINE, item=1, body=b"a") + session(days[0], 1)))
    assert update(1, 0, 2) == [2]
    assert update(2, 0, 3, is_group=True) == []  # not defined yet
    assert [type(each) for each in incoming.read(session(over, 10))] == [SessionTold]
    assert update(1, 0, 4) == []
    assert list(incoming.read(make_event(EventKind.DEFINE, item=2, body=b"b"))) == []
    assert update(1, 1, 9) == [9], "an update of the next session may come first"
    list(incoming.read(session(days[0], 11)))
    assert update(1, 0, 12) == [12], "the session was begun again"


def test_sessions_of_the_node_above_are_bounded() -> None:
    incoming = Incoming(lambda number: ())
    incoming.begin(is_again=False, is_split=True)
    for number in range(1, 2 * SESSIONS_MAX):
        event = SessionEvent("end", number, "monday", "", 1, "sim")
        list(incoming.read(make_event(EventKind.SESSION, item=ALL_ITEMS, number=number, body=encode_session(event))))
    assert len(incoming._running) == len(incoming._over) == SESSIONS_MAX


@pytest.mark.spec("MUX-3")
def test_after_a_loss_no_definition_is_trusted() -> None:
    """The definition of another item with the same number may have been lost."""
    incoming = Incoming(lambda number: ())
    incoming.begin(is_again=False)
    update = make_event(EventKind.UPDATE, item=1, cls=TransmissionClass.CRITICAL, version=1, number=1)
    list(incoming.read(make_event(EventKind.DEFINE, item=1, body=b"a")))
    assert len(list(incoming.read(update))) == 1
    incoming.repair()
    assert not list(incoming.read(update))
    list(incoming.read(make_event(EventKind.DEFINE, item=1, body=b"b")))
    (taken,) = incoming.read(update)
    assert getattr(taken, "topic", b"") == b"b"
