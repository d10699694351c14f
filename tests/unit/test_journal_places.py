"""The journals that a path or a pattern names."""

from pathlib import Path

import pytest

from penstock.base.errors import JournalError
from penstock.spark.journals import find_journals


@pytest.mark.parametrize("name", ["cap[1].d", "what?.d", "a*b.d"])
def test_a_journal_whose_name_looks_like_a_pattern_is_found(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert [place.where for place in find_journals((str(tmp_path / name),), (), "", "")] == [str(tmp_path / name)]


def test_a_pattern_names_all_journals_that_match(tmp_path: Path) -> None:
    for name in ("b1.d", "b2.d", "c.d"):
        (tmp_path / name).mkdir()
    found = find_journals((str(tmp_path / "b*.d"),), (), "", "")
    assert [Path(place.where).name for place in found] == ["b1.d", "b2.d"]
    with pytest.raises(JournalError, match="no journal"):
        find_journals((str(tmp_path / "z*.d"),), (), "", "")
