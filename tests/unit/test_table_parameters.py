"""One table for several venues: its venue and topic prefix are parameters."""

import json
import os
from datetime import date, time
from pathlib import Path

import pytest

from command_here import run_here
from feed_slices_kit import DAY, blocks_of, write_day
from penstock.base.errors import ConfigurationError, TableError
from penstock.convert import Converter, ConverterTable, SourceBatch, TableChoice, converter_function, shipped_tables
from penstock.convert.table import DIRECTORY
from penstock.feed.adapter_config import AdapterConfig
from penstock.node.checking import check_files
from penstock.node.plant import Plant
from penstock.spark.feedoptions import FeedSourceOptions
from penstock.spark.feedslices import FeedSlice
from penstock.spark.pipeline.archive.commits import Catalogue
from penstock.spark.pipeline.sources.find import find_feeds
from unit.recordings_kit import pipeline_options

BX = TableChoice(name="itch", venue="XBOS", prefix="md.us.bx")


def _made(choice: str | TableChoice, tmp_path: Path) -> list[tuple[str, str, bytes]]:
    data = write_day(tmp_path / "day.itch", 500)
    converter = Converter(ConverterTable.find(choice).compile(), 1, trading_date=date.fromisoformat(DAY))
    models = {output.model.id: output.model for output in converter.plan.outputs}
    made = []
    for number, message in enumerate(blocks_of(data), start=1):
        for topic, _, model_id, record in converter.convert(SourceBatch.from_messages([message], number)):
            made.append((topic, models[model_id].view(record).venue, bytes(record)))
    return made


@pytest.mark.spec("DAY-10")
def test_a_venue_and_a_prefix_replace_those_of_the_table(tmp_path: Path) -> None:
    nasdaq, bx = (
        [each for each in _made(table, tmp_path) if not each[0].endswith(".status")]  # halts of other markets differ
        for table in ("itch", BX)
    )
    assert len(bx) == len(nasdaq) > 100
    assert {venue for _, venue, _ in nasdaq} == {"XNAS"}
    assert {venue for _, venue, _ in bx} == {"XBOS"}
    assert [topic.replace("md.us.eq.", "md.us.bx.", 1) for topic, _, _ in nasdaq] == [topic for topic, _, _ in bx]
    assert all(topic.startswith("md.us.bx.") for topic, _, _ in bx)


@pytest.mark.spec("DAY-10")
@pytest.mark.parametrize("name", sorted(set(shipped_tables()) - {"contribution"}))
def test_every_shipped_table_accepts_both_parameters(name: str) -> None:
    plan = ConverterTable.find(TableChoice(name=name, venue="XTST", prefix="a.b")).compile()
    assert all(topic.startswith("a.b.") for topic in plan.topics)
    assert plan.venue == "XTST"
    assert all(output.model.view(output.blank).venue == "XTST" for output in plan.outputs)


@pytest.mark.spec("DAY-10", "SYNC-2")
def test_plans_with_different_parameters_have_different_identities() -> None:
    own = ConverterTable.find("itch").compile()
    assert own.identity == ConverterTable.find(TableChoice(name="itch")).compile().identity
    assert own.identity == ConverterTable.find(TableChoice(name="itch", venue="XNAS")).compile().identity
    others = [TableChoice(name="itch", venue="XBOS"), TableChoice(name="itch", prefix="md.us.bx"), BX]
    identities = {ConverterTable.find(each).compile().identity for each in others}
    assert len(identities | {own.identity}) == 4


@pytest.mark.spec("DAY-10")
def test_a_function_with_another_constant_is_another_plan() -> None:
    text = """
name = "probe"
format = "csv_ticks"
[output.out]
model = "trade"
topic = "probe"
[[message.trade]]
emit = "out"
quantity = "quantity | number | parameterised_dozens"
"""
    identities = set()
    for body in ("value // 12", "value // 13"):
        namespace: dict[str, object] = {}
        exec(f"def parameterised_dozens(value): return {body}", namespace)
        converter_function("parameterised_dozens", gives="number")(namespace["parameterised_dozens"])  # type: ignore[type-var]
        identities.add(ConverterTable.parse(text).compile().identity)
    assert len(identities) == 2


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (TableChoice(name="contribution", venue="XBOS"), "does not use venue 'XBOS'"),
        (TableChoice(name="contribution", prefix="a"), "does not use prefix 'a'"),
        (TableChoice(name="itch", prefix="md..bx"), "prefix 'md..bx'"),
        (TableChoice(name="itch", prefix="md.{symbol}"), "cannot have placeholders"),
        (TableChoice(name="itch", prefix="md.>"), "prefix 'md.>'"),
    ],
)
def test_a_parameter_without_effect_or_with_an_invalid_topic_is_refused(choice: TableChoice, said: str) -> None:
    with pytest.raises(TableError) as refused:
        ConverterTable.find(choice)
    assert said in str(refused.value)
    assert choice.name in str(refused.value)


def test_a_table_that_uses_a_parameter_requires_it() -> None:
    text = """
name = "t"
format = "csv_ticks"
[output.o]
model = "trade"
topic = "{prefix}.x"
[[message.trade]]
emit = "o"
"""
    with pytest.raises(TableError, match="prefix"):
        ConverterTable.parse(text).compile()
    assert ConverterTable.parse(text).with_parameters(prefix="here").compile().topics == ("here.x",)


def test_a_venue_of_more_than_four_characters_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="venue"):
        TableChoice(name="itch", venue="NASDAQ")


PLANT = """
name = "example"
[[feed]]
name = "bx"
table = {table}
service.open = true
streams = [{{ id = 1, name = "bx", lines = [{{ port = 7000 }}] }}]
[[feed.adapter]]
name = "bx-a"
"""


@pytest.mark.spec("DAY-10")
def test_a_plant_names_the_parameters_beside_the_table(tmp_path: Path) -> None:
    path = tmp_path / "plant.toml"
    path.write_text(PLANT.format(table='{ name = "itch", venue = "XBOS", prefix = "md.us.bx" }'))
    plant = Plant.load(path)
    config = plant.node("bx-a")
    assert isinstance(config, AdapterConfig)
    assert config.table == BX
    check_files(plant)
    path.write_text(PLANT.format(table='{ name = "itch", prefix = "md..bx" }'))
    with pytest.raises(TableError, match=r"md\.\.bx"):
        check_files(Plant.load(path))
    path.write_text(PLANT.format(table='{ name = "itch", venu = "XBOS" }'))
    with pytest.raises(ConfigurationError, match="venu"):
        Plant.load(path)


@pytest.mark.spec("DAY-10")
def test_the_command_accepts_parameters(tmp_path: Path) -> None:
    path = tmp_path / "ticks.csv"
    path.write_bytes(b"trade,1700000000000000000,AAPL,190.25,100,1\n")
    ran = run_here("convert", "run", "csv-ticks", path, "--venue", "XTST", "--prefix", "md.test")
    assert ran.returncode == 0, ran.stderr
    first = json.loads(ran.stdout.splitlines()[0])
    assert first["topic"] == "md.test.AAPL.trade"
    assert first["message"]["venue"] == "XTST"
    checked = run_here("convert", "check", "itch", "--prefix", "md.us.psx", "--venue", "XPSX")
    assert "emit trade on md.us.psx.{symbol}.trade" in checked.stdout
    refused = run_here("convert", "check", "contribution", "--prefix", "md.us.psx")
    assert refused.returncode != 0


ROUND_THE_CLOCK = """
name = "night-shift"
timezone = "UTC"
weekdays = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
open = 01:00:00
close = 21:00:00
day_ends = 21:30:00
"""
TRADE_NS = 1_700_080_200 * 10**9
"""2023-11-15 20:30 UTC, 15:30 in New York."""


def night(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(ROUND_THE_CLOCK)
    return path


@pytest.mark.spec("DAY-2", "SYNC-2")
def test_the_calendar_is_a_parameter_of_the_table(tmp_path: Path) -> None:
    own = ConverterTable.find("itch").compile()
    for place in ("night.toml", "elsewhere/other.toml"):
        night(tmp_path / place)
    plans = [
        ConverterTable.find(TableChoice(name="itch", calendar="night.toml"), tmp_path).compile(),
        ConverterTable.find(TableChoice(name="itch", calendar=str(tmp_path / "elsewhere" / "other.toml"))).compile(),
    ]
    assert [plan.calendar.name for plan in plans] == ["night-shift"] * 2
    assert plans[0].identity == plans[1].identity != own.identity, "the rules count, not their place"
    named = ConverterTable.find(TableChoice(name="itch", calendar="us-equities")).compile()
    assert named.identity == own.identity, "the calendar that the venue has by default"
    with pytest.raises(ConfigurationError, match="unknown calendar 'moon'"):
        ConverterTable.find(TableChoice(name="itch", calendar="moon")).compile()


@pytest.mark.spec("DAY-2")
@pytest.mark.parametrize("hours", ["open = 22:00:00", "open = 01:00:00\npre_open = 22:00:00"])
def test_times_since_midnight_need_sessions_that_open_on_their_trading_date(tmp_path: Path, hours: str) -> None:
    """Otherwise the evening's messages would have times of the next evening."""
    path = tmp_path / "evening.toml"
    path.write_text(ROUND_THE_CLOCK.replace("open = 01:00:00", hours))
    with pytest.raises(TableError, match="'night-shift' open on the day before"):
        ConverterTable.find(TableChoice(name="itch", calendar=str(path))).compile()
    dated = ConverterTable.find(TableChoice(name="csv-ticks", calendar=str(path))).compile()
    assert dated.calendar.opens_day_before, "times since 1970 need no trading date"


@pytest.mark.spec("DAY-2")
def test_a_table_names_a_calendar_beside_it(tmp_path: Path) -> None:
    night(tmp_path / "night.toml")
    text = (DIRECTORY / "csv-ticks.toml").read_text()
    (tmp_path / "mine.toml").write_text(f'calendar = "night.toml"\n{text}')
    assert ConverterTable.find("mine.toml", tmp_path).compile().calendar.name == "night-shift"
    choice = TableChoice(name="mine.toml", calendar="us-equities")
    assert ConverterTable.find(choice, tmp_path).compile().calendar.name == "us-equities"


@pytest.mark.spec("DAY-2", "SYNC-2")
def test_an_adapter_gives_the_calendar_beside_the_table_or_as_its_parameter(tmp_path: Path) -> None:
    night(tmp_path / "night.toml")
    path = tmp_path / "plant.toml"

    def loaded(table: str, more: str = "") -> AdapterConfig:
        path.write_text(PLANT.format(table=table).replace("service.open", f"{more}\nservice.open", 1))
        config = Plant.load(path).node("bx-a")
        assert isinstance(config, AdapterConfig)
        return config

    as_parameter = loaded('{ name = "itch", calendar = "night.toml" }').load(tmp_path)
    beside = loaded('"itch"', 'calendar = "night.toml"').load(tmp_path)
    assert as_parameter.calendar.name == "night-shift"
    assert as_parameter.identity == beside.identity
    with pytest.raises(ConfigurationError, match=r"calendar is given twice: 'us-equities' and 'night\.toml'"):
        loaded('{ name = "itch", calendar = "night.toml" }', 'calendar = "us-equities"')


@pytest.mark.spec("DAY-2", "DAY-8")
def test_convert_the_pipeline_and_spark_accept_the_calendar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calendar = night(tmp_path / "night.toml")
    ticks = tmp_path / "ticks.csv"
    ticks.write_bytes(f"trade,{TRADE_NS},AAPL,190.25,100,1\n".encode())

    def conditions(*options: object) -> list[str]:
        ran = run_here("convert", "run", "csv-ticks", ticks, "--trading-date", "2023-11-15", *options)
        assert ran.returncode == 0, ran.stderr
        found: list[str] = json.loads(ran.stdout.splitlines()[0])["message"]["conditions"]
        return found

    early = tmp_path / "early.toml"
    early.write_text(ROUND_THE_CLOCK.replace("21:00:00", "20:00:00"))
    assert conditions("--venue", "XNAS") == []
    assert conditions("--venue", "XNAS", "--calendar", calendar) == []
    assert conditions("--venue", "XNAS", "--calendar", early) == ["extended_hours"], "closed at 20:00 UTC"
    monkeypatch.chdir(tmp_path)
    (feed,) = find_feeds(pipeline_options(tables=["csv-ticks"], calendars=["early.toml"]), [ticks], 1)
    (piece,) = feed.pieces(Catalogue())
    (framed,) = FeedSourceOptions(path=(str(ticks),), table="csv-ticks", calendar="early.toml").slices()
    for each in (piece.slice, framed):
        assert isinstance(each, FeedSlice)
        assert each.conversion is not None
        assert each.conversion.calendar == str(early), "workers have another directory"
        assert each.conversion.load()[1].calendar.document.close == time(20)
    early.write_text(ROUND_THE_CLOCK)
    os.utime(early, ns=(1, 1))
    assert framed.conversion is not None
    assert framed.conversion.load()[1].calendar.document.close == time(21), "the file has changed"
