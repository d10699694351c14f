"""Fixtures and options of all tests."""

import gc
import io
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from logs import logs_kept, streams
from penstock.feed.formats import DATAGRAM_FORMATS

SOAK = os.environ.get("PENSTOCK_SOAK") == "1"

hypothesis.settings.register_profile("suite", max_examples=60, deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("soak", max_examples=5_000, deadline=None, print_blob=True)
hypothesis.settings.load_profile("soak" if SOAK else "suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Spark's tests first: a worker begins with them, and other workers take tests from its end. So one session is
    # enough.
    items.sort(key=lambda item: "spark" not in item.path.parts)
    if SOAK:
        return
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.skip(reason="long: run it with make soak"))


def pytest_collection_finish() -> None:
    """Existing objects stay alive: freeze them, so that hundreds of garbage collections skip them."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Tests may change the log destinations, which are restored afterwards."""
    with logs_kept():
        yield io.StringIO()


@pytest.fixture(autouse=True)
def _logs_go_where_they_went() -> Iterator[None]:
    """A test that leaves its own log destination in place breaks later tests: its stream is soon closed."""
    before = streams()
    yield
    assert streams() == before, (
        "logs are still sent where this test sent them: logs_kept() and the fixture `lines` help"
    )


@pytest.fixture
def own_formats() -> Iterator[None]:
    """Tests may register datagram formats, which are removed afterwards."""
    before = dict(DATAGRAM_FORMATS)
    yield
    DATAGRAM_FORMATS.clear()
    DATAGRAM_FORMATS.update(before)


@pytest.fixture(scope="session")
def soak() -> bool:
    """True in the long run."""
    return SOAK


@pytest.fixture(scope="session")
def project() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def samples(project: Path) -> Path:
    """Real market data, which is not part of the checkout but may be stored beside it."""
    found = project.parent / "shared" / "data"
    if not found.is_dir():
        pytest.skip("the real samples are not here: they would be in ../shared/data")
    return found
