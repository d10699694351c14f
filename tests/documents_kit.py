"""Blocks of the documents: what is fenced, and the marker before it.

<!-- plant -->            a Python block that needs the plant of `penstock init` in plant.d
<!-- not run: REASON -->  a block that cannot run alone
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

FENCED = re.compile(r"^(?:<!-- (?P<mark>[^>]*) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
NOT_RUN = "not run: "


class Block(NamedTuple):
    page: Path
    kind: str
    mark: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.splitlines()[0]}"

    @property
    def is_run(self) -> bool:
        return not self.mark.startswith(NOT_RUN)

    @property
    def needs_plant(self) -> bool:
        return self.is_run and (self.kind == "console" or self.mark == "plant")


def blocks_of(page: Path) -> list[Block]:
    return [Block(page, each["kind"], each["mark"] or "", each["text"]) for each in FENCED.finditer(page.read_text())]


def indented_blocks_of(page: Path) -> list[str]:
    """Blocks indented by four spaces."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"(?:^|\n\n)((?: {4}.*\n|\n(?= {4}))+)", text)
    return [re.sub("^ {4}", "", each, flags=re.MULTILINE) for each in found]


class Typed(NamedTuple):
    """A command of a console block, and the output that follows it."""

    command: str
    output: list[str]


def typed_in(block: Block) -> Iterator[Typed]:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, *output = part.rstrip("\n").split("\n")
        yield Typed(command, output)


def unmatched(documented: list[str], actual: str) -> list[str]:
    """Documented lines that the output lacks, compared up to their first digit; "…" stands for any lines."""
    lines = actual.splitlines()
    begins = [re.split(r"\d|…", line)[0].rstrip() for line in documented]
    return [
        line
        for line, begin in zip(documented, begins, strict=True)
        if begin and not any(each.startswith(begin) for each in lines)
    ]
