"""The console's page as files: complete, offline, and unable to turn outside text into markup."""

import re
from pathlib import Path

import pytest

import penstock.web

ASSETS = Path(penstock.web.__file__).parent / "assets"
VENDOR = ASSETS / "vendor"
OURS = sorted(path for path in ASSETS.rglob("*") if path.is_file() and VENDOR not in path.parents)
SCRIPTS = [path for path in OURS if path.suffix == ".js"]
SIZE_MAX = 512 * 1024
LINES_MAX = 400

MAKES_MARKUP = re.compile(
    r"\b(innerHTML|outerHTML|insertAdjacentHTML|setHTMLUnsafe|DOMParser|createContextualFragment|srcdoc|eval|Function)\b"
    r"|document\.write|javascript:"
)


def test_every_file_that_the_page_needs_exists() -> None:
    page = (ASSETS / "index.html").read_text(encoding="utf-8")
    named = re.findall(r'(?:src|href)="(assets/[^"]+)"', page)
    assert len(named) > 5
    for name in named:
        assert (ASSETS.parent / name).is_file(), name
    imported = {ASSETS / "js" / "main.js"}
    for path in SCRIPTS:
        for name in re.findall(r'^(?:import|export) .*from "([^"]+)";', path.read_text(encoding="utf-8"), re.MULTILINE):
            assert name.startswith("./"), f"{path.name} imports {name}"
            assert (path.parent / name).is_file(), f"{path.name} imports {name}"
            imported.add((path.parent / name).resolve())
    assert imported == set(SCRIPTS), "a script without an importer"


def test_nothing_is_loaded_from_other_hosts() -> None:
    for path in OURS:
        found = set(re.findall(r"https?://[^\s\"'`)]+", path.read_text(encoding="utf-8")))
        assert found <= {"http://www.w3.org/2000/svg"}, (path.name, found)


def test_the_page_has_no_inline_script_style_or_handler() -> None:
    page = (ASSETS / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_create_no_markup_from_text_and_stay_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert MAKES_MARKUP.search(text) is None
    assert 'setAttribute("style"' not in text  # the page's policy would refuse it
    assert len(text.splitlines()) <= LINES_MAX


def test_third_party_files_have_their_licence_and_version() -> None:
    for directory in VENDOR.iterdir():
        assert "Permission is hereby granted" in (directory / "LICENSE").read_text(encoding="utf-8")
        version = (directory / "VERSION").read_text(encoding="utf-8").strip()
        assert any(f"v{version}" in path.read_text(encoding="utf-8") for path in directory.glob("*.js"))


def test_the_page_is_small() -> None:
    assert sum(path.stat().st_size for path in ASSETS.rglob("*") if path.is_file()) < SIZE_MAX
