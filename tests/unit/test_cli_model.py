"""`penstock model show` and `penstock model check`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.model import app
from penstock.model import shipped_names
from penstock.model.library import DIRECTORY

runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})

VERSION_1 = 'id = 9\nname = "sample"\nversion = 1\n[[field]]\nname = "a"\ntype = "i64"\n'


def run(*arguments: str, status: int = 0) -> str:
    outcome = runner.invoke(app, list(arguments))
    assert outcome.exit_code == status, outcome.output
    return outcome.stdout if status == 0 else outcome.stderr


@pytest.mark.parametrize("name", shipped_names())
@pytest.mark.parametrize("form", ["table", "arrow", "spark", "json", "numpy"])
def test_every_shipped_model_can_be_shown_in_every_form(name: str, form: str) -> None:
    assert "symbol" in run("show", name, "--as", form)


def test_the_table_shows_parts_offsets_and_conflation() -> None:
    text = run("show", "quote")
    assert "quote (id 1, version 1, 224 bytes)" in text
    assert "common" in text
    assert "price(8)" in text
    assert "conflate sum" in text
    assert "never conflated" in run("show", "trade")


def test_the_json_form_is_the_layout() -> None:
    layout = json.loads(run("show", "trade", "--as", "json"))
    assert layout["record_size"] == 72
    assert layout["fields"][0]["name"] == "symbol"


def test_a_path_can_be_shown_too() -> None:
    assert "bid_price" in run("show", str(DIRECTORY / "quote.toml"))


def test_a_good_document_passes(tmp_path: Path) -> None:
    older, newer = tmp_path / "older.toml", tmp_path / "newer.toml"
    older.write_text(VERSION_1)
    newer.write_text(VERSION_1.replace("version = 1", "version = 2") + '[[field]]\nname="b"\ntype="i8"\nsince=2\n')
    assert run("check", str(older)) == "sample version 1: 1 fields, 8 bytes\n"
    assert "readable by version 1" in run("check", str(newer), "--against", str(older))


def test_what_is_wrong_is_one_line_and_status_1(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text(VERSION_1.replace("i64", "i65"))
    message = run("check", str(broken), status=1)
    assert message.count("\n") == 1
    assert "field[0].type" in message
    assert "one of: bar, book_event" in run("show", "qoute", status=1)
    assert "cannot be read" in run("show", "missing.toml", status=1)


def test_an_incompatible_version_is_refused(tmp_path: Path) -> None:
    older, newer = tmp_path / "older.toml", tmp_path / "newer.toml"
    older.write_text(VERSION_1)
    newer.write_text(VERSION_1.replace("version = 1", "version = 2").replace("i64", "i32"))
    message = run("check", str(newer), "--against", str(older), status=1)
    assert "breaks readers of version 1" in message
    assert "type of field 'a' was i64, now it is i32" in message
