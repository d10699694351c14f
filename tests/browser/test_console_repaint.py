"""How often the console repaints rows on the screen, by the clock of the page, which the test moves."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from browser.browser_kit import Visits, ask_to_watch, fill_in, row
from integration.console_kit import SECRETS, RunningConsole, running_console
from waiting import wait_until

ROWS = 200
SECONDS = 3
PER_SECOND_MIN = 4
FEED = """
const Real = globalThis.WebSocket;
const ROWS = 200, EVERY_MS = 40;

// Every 40 ms a new price of each of 200 instruments, in place of the gateway.
globalThis.WebSocket = class {
  #number = 0;

  constructor(url, protocol) {
    if (url.pathname !== "/ws/stream") return new Real(url, protocol);
    setTimeout(() => this.onopen(), 0);
  }

  send(text) {
    const { op, id } = JSON.parse(text);
    if (op !== "subscribe") return;
    this.#tell({ kind: "welcome", agent: "fast", path: [] });
    this.#tell({ kind: "subscribed", id, topics: ["md.>"], is_live: true });
    setInterval(() => this.#quote(id), EVERY_MS);
  }

  close() {}

  #quote(id) {
    this.#number += 1;
    const messages = Array.from({ length: ROWS }, (_, row) => ({
      ids: [id], topic: `md.us.eq.S${String(row).padStart(3, "0")}.quote`, stream: "md", seq: this.#number,
      time_ms: Date.now(), model: "quote", fields: { bid_price: this.#number, ask_price: this.#number + 1 },
    }));
    this.#tell({ kind: "messages", messages });
  }

  #tell(document) {
    this.onmessage({ data: JSON.stringify(document) });
  }
};
"""

COUNT = """(topic) => {
  const value = document.querySelector(`#quote-rows tr[data-topic="${topic}"] .bid .value`);
  globalThis.counting?.disconnect();
  globalThis.counted = 0;
  globalThis.counting = new MutationObserver(() => (globalThis.counted += 1));
  globalThis.counting.observe(value, { childList: true, characterData: true, subtree: true });
}"""


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    with running_console(tmp_path_factory.mktemp("console")) as made:
        yield made


def topic_of(number: int) -> str:
    return f"md.us.eq.S{number:03}"


def fast_page(visits: Visits, port: int) -> Page:
    """A page that watches 200 instruments, its clock stopped."""
    page = visits.open(port, script=FEED)
    page.evaluate("localStorage.setItem('penstock:watch:trial:alice', '[]')")
    page.clock.install()
    fill_in(page, "alice", SECRETS["alice"])
    expect(page.locator("#console")).to_be_visible()
    ask_to_watch(page, "md.>")
    expect(page.locator("#quote-rows tr")).to_have_count(ROWS)
    page.clock.pause_at(page.evaluate("Date.now() + 2000"))
    return page


def count_changes(page: Page, topic: str) -> int:
    """How often the bid of a topic is painted anew in these seconds of the page's clock."""
    page.evaluate(COUNT, topic)
    for _ in range(10 * SECONDS):
        page.clock.run_for(100)
    return int(page.evaluate("globalThis.counted"))


def test_rows_on_the_screen_are_repainted_four_times_a_second(visits: Visits, console: RunningConsole) -> None:
    page = fast_page(visits, console.console.port)
    near, far = topic_of(3), topic_of(ROWS - 1)
    expect(row(page, near)).to_be_in_viewport()
    # the browser tells the page which rows are on the screen a little later
    wait_until(lambda: count_changes(page, near) >= PER_SECOND_MIN * SECONDS, "rows on the screen are repainted")
    assert 0 < count_changes(page, far) < PER_SECOND_MIN * SECONDS  # nobody sees these rows

    row(page, far).scroll_into_view_if_needed()
    expect(row(page, far)).to_be_in_viewport()
    wait_until(lambda: count_changes(page, far) >= PER_SECOND_MIN * SECONDS, "a row that was scrolled to is repainted")
