"""The files of the feed in docs/how-to/write-your-own-feed.md, and a capture of that feed."""

import re
from pathlib import Path

from unit.test_feed_files import frame, pcap

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "how-to" / "write-your-own-feed.md"

DATAGRAMS = [
    b"TOY monday 1\nT,1700000000000000000,ACME,10.50,300,1",
    b"TOY monday 2\nT,1700000000000000200,ACME,10.52,50,2\nQ,1700000000000000300,ACME,10.50,100,10.51,400",
]
TOPICS = ["md.toy.ACME.trade", "md.toy.ACME.trade", "md.toy.ACME.quote"]


def write_own_feed(directory: Path) -> None:
    """toy.py, toy-format.toml and toy.toml from the guide, and toy.pcap."""
    for name, block in re.findall(
        r"```(?:toml|python)\n# (\S+\.(?:toml|py))\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL
    ):
        (directory / name).write_text(block)
    (directory / "toy.pcap").write_bytes(pcap([frame(data) for data in DATAGRAMS]))


def install_own_feed(directory: Path) -> Path:
    """The same as an installed package with an entry point; returns the directory for sys.path."""
    site = directory / "site"
    package = site / "acme_feeds"
    package.mkdir(parents=True)
    write_own_feed(package)
    (package / "__init__.py").touch()
    table = package / "toy.toml"
    table.write_text(table.read_text().replace('modules = ["toy.py"]\n', ""))
    information = site / "acme_feeds-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-feeds\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[penstock.feeds]\ntoy = acme_feeds.toy\n")
    return site
