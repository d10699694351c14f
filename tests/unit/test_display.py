"""Objects show themselves in terminals and notebooks: escaped and bounded."""

import io
from collections.abc import Sequence
from html.parser import HTMLParser

import pytest
from rich.console import Console

from penstock.base.display import CELL_MAX, COLUMNS_MAX, ROWS_MAX, Display, Displayed

HOSTILE = [
    "<script>alert(1)</script>",
    "</td></table><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "[red]markup[/red] [link=file:///etc/passwd]x[/link]",
    "\x1b]0;title\x07\x1b[2J\r\n\x00\u202e",
    "x" * 10_000,
]


class Shown(Displayed):
    def __init__(self, rows: Sequence[Sequence[object]], title: str = "Title", columns: Sequence[str] = ("a",)) -> None:
        self.rows, self.title, self.columns = rows, title, columns

    def _title(self) -> str:
        return self.title

    def _display(self) -> Display:
        return Display(self.columns, self.rows, 5)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[object] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def text_of(shown: Displayed) -> str:
    console = Console(file=io.StringIO(), width=400, force_terminal=True, color_system=None, legacy_windows=False)
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("hostile", HOSTILE)
def test_values_are_never_markup_or_control_characters(hostile: str) -> None:
    shown = Shown([[hostile]], hostile, [hostile])
    parsed = Tags(shown._repr_html_())
    assert parsed.tags == {"table", "caption", "thead", "tr", "th", "tbody", "td", "p"}
    assert parsed.attributes == []
    assert parsed.texts.count(parsed.texts[0]) == 3  # title, column and cell have the same text
    printed = text_of(shown)
    assert "\x00" not in printed
    assert "\x1b]0;" not in printed
    assert "\x1b[2J" not in printed
    assert "\u202e" not in printed + repr(shown)
    assert repr(shown).isprintable()
    if hostile.startswith("[red]"):
        assert hostile in printed


def test_the_size_is_bounded_and_says_what_is_left_out() -> None:
    wide = Shown([[*range(COLUMNS_MAX * 3)]] * (ROWS_MAX * 50), columns=[str(n) for n in range(COLUMNS_MAX * 3)])
    parsed = Tags(wide._repr_html_())
    assert len(wide._repr_html_()) < (ROWS_MAX + 1) * COLUMNS_MAX * (CELL_MAX + 10)
    assert wide._repr_html_().count("<tr>") == ROWS_MAX + 1
    assert parsed.texts[-1] == f"… {ROWS_MAX * 49 + 5:,} more"
    assert f"… {ROWS_MAX * 49 + 5:,} more" in text_of(wide)
    assert len(repr(Shown([], "x" * 10_000))) < 100


def test_missing_values_are_empty_cells() -> None:
    assert "<td></td><td>0</td>" in Shown([[None, 0]], columns=["a", "b"])._repr_html_()
