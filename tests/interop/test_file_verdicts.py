"""`penstock feed info` on all available real files: the reported format, and the exit status."""

import json
import re
from pathlib import Path

import pytest

from command_here import run_here

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="needs the real data samples in ../shared/data")

UNKNOWN_PROTOCOLS = ("B3", "Cboe", "Cme", "Eurex", "Nyse", "Siac")


def files(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in DATA.glob(pattern) if path.is_file())


def refusal(path: Path) -> str:
    done = run_here("feed", "info", path)
    assert done.returncode == 1, path
    assert not done.stdout, path
    assert "ITCH messages" not in done.stderr.replace("files of ITCH messages", ""), path
    return done.stderr


def test_vendor_encodings_are_named_and_never_reported_as_a_feed() -> None:
    found = files("dbn/**/*")
    assert len(found) > 100
    for path in found:
        said = refusal(path)
        if ".frag" in path.name:
            assert "binary data of unknown format that begins " in said, path
        elif path.suffix == ".dbz":
            assert "Databento's older encoding (DBZ)" in said, path
        else:
            version = re.search(r"\.v(\d)\.", path.name)
            assert "Databento Binary Encoding (DBN version " in said, path
            assert version is None or f"DBN version {version[1]})" in said, path
            assert path.suffix != ".zst" or "(in zstd)" in said, path


def test_json_is_named() -> None:
    for path in files("crypto_binance/*", "crypto_hyperliquid/*", "facts.json"):
        assert "this is JSON" in refusal(path)


def test_documents_are_refused_with_their_first_words() -> None:
    assert "text of unknown layout that begins '!" in refusal(DATA / "equity_ticks_lean" / "FORMAT.md")
    assert "text of unknown layout that begins '# shared" in refusal(DATA / "README.md")


def test_a_zip_archive_of_a_table_is_read() -> None:
    readme = (DATA / "README.md").read_text()
    found = files("equity_ticks_lean/*.zip")
    assert len(found) == 8
    for path in found:
        told = re.search(rf"`equity_ticks_lean/{re.escape(path.name)}`.*\n.*\n  - rows (\d+), bytes (\d+)", readme)
        assert told is not None
        report = json.loads(run_here("feed", "info", path, "--json").stdout)
        assert (report["format"], report["compression"], report["bytes_read"]) == ("csv", "zip", int(told[2]))
        assert report["streams"][0]["messages"] == int(told[1])
        assert report["damages_total"] == 0


def test_captures_of_other_protocols_are_not_reported_as_valid() -> None:
    found = [path for name in UNKNOWN_PROTOCOLS for path in files(f"pcap_omi/{name}/**/*.pcap")]
    assert len(found) > 50
    for path in found:
        done = run_here("feed", "info", path)
        assert done.returncode == 1, path
        assert done.stdout.endswith("the file is not a known feed\n"), path
        assert "the first of those datagrams, to " in done.stdout, path


def test_feeds_are_still_read() -> None:
    for path in files("itch/*.itch", "itch/synthetic/*.itch"):
        done = run_here("feed", "info", path)
        assert (done.returncode, done.stdout[:13]) == (0, "ITCH messages"), path
    for path in files(
        "pcap_iex/*.gz", "pcap_omi/Iex/Deep.*/*", "pcap_omi/Nasdaq/Nasdaq.Equities.TotalView.Itch.v5.0/*"
    ):
        done = run_here("feed", "info", path)
        assert (done.returncode, done.stdout[:9]) == (0, "a capture"), path
    for path in files("lobster/*.csv", "mbo_mbp_csv/*", "crypto_tardis_csv/*", "fx_truefx/*"):
        done = run_here("feed", "info", path)
        assert (done.returncode, done.stdout[:24]) == (0, "text, a message per line"), path
        assert " columns in every line" in done.stdout, path
