"""The scripts of live widgets in a real browser, with a model as anywidget passes it to them."""

from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

import penstock

SCRIPTS = Path(penstock.__file__).parent / "notebook"

DRAW = """async ([source, state]) => {
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const { default: widget } = await import(url);
  const heard = {};
  globalThis.model = {
    get: (name) => state[name],
    on: (event, run) => (heard[event] ??= []).push(run),
    set: (name, value) => { state[name] = value; (heard[`change:${name}`] ?? []).forEach((run) => run()); },
  };
  widget.render({ model: globalThis.model, el: document.body });
}"""
HOSTILE = "<img src=x onerror=globalThis.hacked=1>"


def drawn(chromium: Browser, script: str, **state: Any) -> Page:
    page = chromium.new_page()
    page.set_content("<!doctype html><body></body>")
    page.evaluate(DRAW, [(SCRIPTS / script).read_text(), state])
    return page


def test_a_table_shows_texts_and_repaints(chromium: Browser) -> None:
    page = drawn(chromium, "table.js", columns=["topic", HOSTILE], rows=[["a", HOSTILE], ["b", "2"]], note="", state="")
    expect(page.locator("th")).to_have_text(["topic", HOSTILE])
    expect(page.locator("td")).to_have_text(["a", HOSTILE, "b", "2"])
    page.evaluate("model.set('rows', [['a', '5']])")
    expect(page.locator("td")).to_have_text(["a", "5"])
    page.evaluate("model.set('note', '3 more topics')")
    page.evaluate("model.set('state', 'stopped')")
    expect(page.locator("body > div")).to_have_text("3 more topics · stopped")
    assert page.locator("img").count() == 0
    assert page.evaluate("globalThis.hacked") is None
    page.close()


def test_a_chart_has_a_line_and_a_name_for_each_topic(chromium: Browser) -> None:
    series = [
        {"name": HOSTILE, "points": [[1_000, 1.0], [2_000, 3.0], [3_000, 2.0]]},
        {"name": "flat", "points": [[1_000, 2.0]]},
    ]
    page = drawn(chromium, "chart.js", field="bid_price", series=[], state="")
    expect(page.locator("svg text")).to_have_text(["bid_price"])
    page.evaluate("(series) => model.set('series', series)", series)
    expect(page.locator("polyline")).to_have_count(2)
    assert page.locator("polyline").first.get_attribute("points") == "80.0,236.0 396.0,24.0 712.0,130.0"
    expect(page.locator("span")).to_have_text([f"▬ {HOSTILE}", "▬ flat"])
    expect(page.locator("svg text")).to_have_text(["bid_price", "3.000000", "1.000000", "00:00:01", "00:00:03 UTC"])
    page.evaluate("model.set('series', [{ name: 'a', points: [[5, 1]] }])")
    assert "NaN" not in page.content()
    page.evaluate("model.set('state', 'the subscription is closed')")
    expect(page.locator("body > div").last).to_have_text("the subscription is closed")
    assert page.evaluate("globalThis.hacked") is None
    page.close()
