"""`penstock model show` and `penstock model check`."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from command_here import run_here
from penstock.base.errors import PenstockError
from penstock.cli.model import _rows, app
from penstock.model import Field, shipped, shipped_names
from penstock.model.library import DIRECTORY

runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})

VERSION_1 = 'id = 9\nname = "sample"\nversion = 1\n[[field]]\nname = "a"\ntype = "i64"\n'


def run(*arguments: str) -> str:
    outcome = runner.invoke(app, list(arguments), catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


def refusal(*arguments: str) -> str:
    """The output of main() for an error, which is one line."""
    with pytest.raises(PenstockError) as caught:
        runner.invoke(app, list(arguments), catch_exceptions=False)
    return str(caught.value)


@pytest.mark.parametrize("name", shipped_names())
@pytest.mark.parametrize("form", ["table", "arrow", "spark", "json", "numpy"])
def test_every_shipped_model_can_be_shown_in_every_form(name: str, form: str) -> None:
    assert shipped(name).fields[0].name in run("show", name, "--as", form)


def test_the_table_shows_parts_offsets_and_conflation() -> None:
    text = run("show", "quote")
    assert "quote (id 1, version 1, 224 bytes)" in text
    assert "common" in text
    assert "price(8)" in text
    assert "conflate sum" in text
    assert "never conflated" in run("show", "trade")


@pytest.mark.parametrize("name", shipped_names())
def test_the_table_accounts_for_every_byte(name: str) -> None:
    model = shipped(name)
    rows = [row for part in model.parts for row in _rows(model, part)]
    places = [(row.offset, row.size) if isinstance(row, Field) else row[:2] for row in rows]
    assert [offset for offset, _ in places] == [0, *(offset + size for offset, size in places[:-1])]
    assert sum(size for _, size in places) == model.record_size


def test_the_table_shows_padding_room_values_and_bits(tmp_path: Path) -> None:
    document = tmp_path / "sample.toml"
    document.write_text(
        'id = 100\nname = "sample"\nversion = 1\nparts = [{ name = "p", size = 32 }, { name = "q" }]\nfield = [\n'
        '{ name = "a", part = "p", type = "enum", values = { buy = 1, sell = 2 } },\n'
        '{ name = "b", part = "p", type = "i32" },\n'
        '{ name = "c", part = "q", type = "flags", bits = { halted = 0, crossed = 12 } },\n]\n'
    )
    rows = [[cell.strip() for cell in re.split("[│┃]", line)[1:]] for line in run("show", str(document)).splitlines()]
    found = [row[:5] for row in rows if len(row) > 5 and row[0].isdigit()]
    assert found == [
        ["0", "32", "p", "part", ""],
        ["0", "1", "a", "enum", "buy = 1, sell = 2"],
        ["1", "3", "", "padding", ""],
        ["4", "4", "b", "i32", ""],
        ["8", "24", "", "reserved", ""],
        ["32", "8", "q", "part", ""],
        ["32", "2", "c", "flags", "bit 0 halted, bit 12 crossed"],
        ["34", "6", "", "padding", ""],
    ]


def test_an_unknown_format_is_refused_with_the_list_of_formats() -> None:
    outcome = runner.invoke(app, ["show", "quote", "--as", "xml"])
    assert outcome.exit_code == 2
    assert "'--as': 'xml' must be one of: table, arrow, spark, json, numpy" in outcome.stderr


def test_a_shipped_model_can_be_checked_by_name() -> None:
    assert run("check", "trade") == "trade version 1: 11 fields, 72 bytes\n"


def test_an_id_of_a_shipped_model_causes_a_warning(tmp_path: Path) -> None:
    document = tmp_path / "mine.toml"
    document.write_text(VERSION_1.replace("id = 9", "id = 2"))
    assert run("check", str(document)).splitlines()[1:] == [
        "warning: id 2 is that of the shipped model 'trade'; yours start at 100"
    ]


def test_the_json_form_is_the_layout() -> None:
    layout = json.loads(run("show", "trade", "--as", "json"))
    assert layout["record_size"] == 72
    assert layout["fields"][0]["name"] == "symbol"


def test_a_document_can_be_shown_by_its_path() -> None:
    assert "bid_price" in run("show", str(DIRECTORY / "quote.toml"))


def test_a_valid_document_passes(tmp_path: Path) -> None:
    older, newer = tmp_path / "older.toml", tmp_path / "newer.toml"
    older.write_text(VERSION_1)
    newer.write_text(VERSION_1.replace("version = 1", "version = 2") + '[[field]]\nname="b"\ntype="i8"\nsince=2\n')
    assert run("check", str(older)) == "sample version 1: 1 fields, 8 bytes\n"
    assert "readable by version 1" in run("check", str(newer), "--against", str(older))


def test_errors_are_reported_in_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text(VERSION_1.replace("i64", "i65"))
    message = refusal("check", str(broken))
    assert "\n" not in message
    assert "field[0].type" in message
    assert "did you mean 'quote'?" in refusal("show", "qoute")
    assert f"one of: {', '.join(shipped_names())}" in refusal("check", "qoute")
    assert "cannot be read" in refusal("show", "missing.toml")


def test_the_command_writes_one_line_and_ends_with_status_1() -> None:
    ended = run_here("model", "show", "qoute")
    assert ended.returncode == 1
    assert re.fullmatch(r"error \[model\]: unknown model 'qoute' .*\n", ended.stderr)


def test_an_incompatible_version_is_refused(tmp_path: Path) -> None:
    older, newer = tmp_path / "older.toml", tmp_path / "newer.toml"
    older.write_text(VERSION_1)
    newer.write_text(VERSION_1.replace("version = 1", "version = 2").replace("i64", "i32"))
    message = refusal("check", str(newer), "--against", str(older))
    assert "breaks readers of version 1" in message
    assert "type of field 'a' changed from i64 to i32" in message


def test_a_changed_document_with_an_unchanged_version_is_refused(tmp_path: Path) -> None:
    older, newer = tmp_path / "older.toml", tmp_path / "newer.toml"
    older.write_text(VERSION_1)
    newer.write_text(VERSION_1 + 'conflate = "sum"\n')
    assert "increase the version" in refusal("check", str(newer), "--against", str(older))
    assert "readable by version 1" in run("check", str(older), "--against", str(older))
