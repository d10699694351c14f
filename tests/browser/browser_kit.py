"""Pages of a console in a real browser: open, log in, inspect."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from playwright.sync_api import Browser, BrowserContext, Locator, Page, WebSocketRoute, expect

from integration.console_kit import SECRETS
from waiting import PATIENCE_SECONDS

LAPTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
SECTIONS = ("quotes", "book", "alerts", "topology", "history", "infostream", "streams", "clients", "publish")
MISTAKES_MAX = 3
PATIENCE_MS = PATIENCE_SECONDS * 1_000

Sockets: TypeAlias = Mapping[str, Callable[[WebSocketRoute], Any]]

expect.set_options(timeout=PATIENCE_MS)


class Visits:
    """The pages of one test, each in a separate browser context, so that they share no cookies."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self._mistakes: list[str] = []

    def open(
        self, port: int, section: str = "", *, sockets: Sockets | None = None, script: str = "", **settings: Any
    ) -> Page:
        """Open the page without a login; `sockets` answer in place of the console, by path; `script` runs first."""
        context = self._browser.new_context(**{"viewport": LAPTOP, **settings})
        self._contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: self._mistakes.append(str(error)))
        page.on("console", lambda said: self._note(said.text))
        if script:
            page.add_init_script(script)
        for path, answer in (sockets or {}).items():
            page.route_web_socket(f"**{path}", answer)
        page.goto(f"http://127.0.0.1:{port}/{f'#{section}' if section else ''}")
        return page

    def log_in(self, port: int, name: str, section: str = "", *, has_watch_list: bool = True, **settings: Any) -> Page:
        """The page of a logged-in user, who has an empty watch list in this browser, or none yet."""
        page = self.open(port, section, **settings)
        if has_watch_list:
            page.evaluate("name => localStorage.setItem(`penstock:watch:trial:${name}`, '[]')", name)
        fill_in(page, name, SECRETS[name])
        expect(page.locator("#console")).to_be_visible()
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()
        assert not self._mistakes, self._mistakes

    def _note(self, text: str) -> None:
        is_mistake = "Content Security Policy" in text or "Uncaught" in text
        if is_mistake and len(self._mistakes) < MISTAKES_MAX:
            self._mistakes.append(text)


def fill_in(page: Page, name: str, secret: str) -> None:
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Secret").fill(secret)
    page.get_by_role("button", name="Log in").click()


def go_to(page: Page, section: str) -> None:
    page.get_by_role("navigation").get_by_role("link", name=section).click()


def node(page: Page, name: str) -> Locator:
    return page.locator(f'.node[data-node="{name}"]')


def link(page: Page, source: str, target: str) -> Locator:
    return page.locator(f'path.edge[data-link="{source} → {target}"]')


def row(page: Page, topic: str) -> Locator:
    """The row of a topic in the quotes table."""
    return page.locator(f'#quote-rows tr[data-topic="{topic}"]')


def watch(page: Page, *topics: str) -> None:
    """Hide the row and wait until it is hidden."""
    ask_to_watch(page, *topics)
    expect(page.locator("#watch-list li").last).to_have_attribute("data-state", "held")


def ask_to_watch(page: Page, *topics: str) -> None:
    page.get_by_label("Topics to watch").fill(" ".join(topics))
    page.get_by_role("button", name="Watch", exact=True).click()


def notice(page: Page, matter: str) -> Locator:
    return page.locator(f'.notice[data-matter^="{matter}"]')


def too_wide(page: Page) -> list[str]:
    """Elements beyond the right edge of the screen, whether the page scrolls sideways or hides them."""
    found = page.evaluate(
        """() => [...document.querySelectorAll("body *")]
            .filter((it) => it.checkVisibility() && !it.closest(".unseen, thead, svg"))
            .filter((it) => it.getBoundingClientRect().right > innerWidth + 1)
            .map((it) => `${it.tagName.toLowerCase()}.${it.className} ${it.textContent.slice(0, 40)}`)
            .concat(document.documentElement.scrollWidth > innerWidth ? ["the page"] : [])"""
    )
    return [str(each) for each in found]


def focused(page: Page) -> str:
    """A description of the element with the focus."""
    return str(
        page.evaluate(
            """() => {
                const it = document.activeElement;
                const words = it.getAttribute("aria-label") || it.innerText || it.name || it.id || it.tagName;
                return `${it.tagName.toLowerCase()} ${words}`.split("\\n")[0].trim();
            }"""
        )
    )


def has_visible_focus(page: Page) -> bool:
    """True if the browser draws an outline around the element with the focus."""
    style = page.evaluate("getComputedStyle(document.activeElement).outline")
    return re.search(r"\bnone\b|\b0px\b", str(style)) is None
