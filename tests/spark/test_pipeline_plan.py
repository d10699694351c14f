"""`penstock pipeline plan` on an archive: reads recorded traffic, writes a group map and its waste."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.pipeline.command import app
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.plan import TopicTraffic, recorded_traffic
from penstock.topics import GroupMap
from spark.archive_tables import MESSAGES, write_tables

SECOND = 10**9


def messages(topic: str, times_s: list[float], *, captured: bool = True) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "seq": number, "publisher": 1, "packet": number,
         "captured": int(at * SECOND) if captured else None, "event_time": int(at * SECOND)}
        for number, at in enumerate(times_s, start=1)
    ]  # fmt: skip


@pytest.mark.spec("PIPE-10")
def test_a_plan_is_made_from_an_archive(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trades = messages("md.a.trade", [1.0, 1.2, 1.4, 1.6, 1.8, 1.9, 7.0]) + messages("md.b.trade", [2.0, 9.0])
    quotes = messages("md.a.quote", [5.0, 5.1], captured=False) + messages("md.c.quote", [0.5] * 50)
    archive = tmp_path / "archive"
    write_tables(archive, {"trade": (MESSAGES, trades), "quote": (MESSAGES, quotes)})
    write_tables(archive, {"delivery": ("place STRING, messages BIGINT", [{"place": "x", "messages": 9}])})
    found = recorded_traffic(spark, Archive.open(archive), display_rate=4)
    sizes = {each.topic: each.bytes // each.messages for each in found}
    assert sorted(each._replace(bytes=0) for each in found) == [
        TopicTraffic("md.a.quote", 2, 0, 1, 2, 0),
        TopicTraffic("md.a.trade", 7, 0, 2, 6, 2),
        TopicTraffic("md.b.trade", 2, 0, 2, 1, 0),
        TopicTraffic("md.c.quote", 50, 0, 1, 50, 46),
    ]
    assert sizes["md.a.trade"] == sizes["md.b.trade"] > 0
    hosts = tmp_path / "hosts.toml"
    hosts.write_text('[hosts]\none = ["md.a.>"]\ntwo = ["md.*.trade"]\n')
    out = tmp_path / "groups.toml"
    arguments = ["plan", str(archive), "--interests", str(hosts), "--groups", "5", "--out", str(out)]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    groups = GroupMap.load(out)
    assert groups.group_of("md.c.quote") not in {*groups.groups_for(["md.a.>"]), *groups.groups_for(["md.*.trade"])}
    lines = done.output.splitlines()
    assert next(line.split() for line in lines if line.startswith("one group")) == [
        "one", "group", "1", "122", "18", "104", "85.2%"
    ]  # fmt: skip
    assert next(line.split() for line in lines if line.startswith("plan"))[-3:] == ["18", "0", "0.0%"]
    assert any(line.split() == ["md.c.quote", "50", "50.0", "50", "92%"] for line in lines)
