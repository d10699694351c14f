"""`penstock bench first`, shortened: real commands, without a set-up from a clone."""

import subprocess
from pathlib import Path

import pytest

import penstock
from penstock.base.errors import PenstockError
from penstock.bench import first


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HELPS": 1, "STARTS": 1, "IDLE_SECONDS": 0.1}.items():
        monkeypatch.setattr(first, name, value)


@pytest.mark.usefixtures("_short")
def test_help_and_a_minimal_plant_are_measured_without_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(penstock, "__file__", str(tmp_path / "lib" / "penstock" / "__init__.py"))
    results = {each.metric: each for each in first.run()}
    assert list(results) == ["help_ms", "minimal_plant_start_s", "minimal_plant_rss_mb"]
    assert all(each.value > 0 and each.bench == "first" and each.conditions for each in results.values())
    told = f"no clone_to_first_figure_s and second_start_s: penstock runs from {tmp_path / 'lib' / 'penstock'}"
    assert told in capsys.readouterr().err


def test_a_clone_is_made_and_timed_until_its_first_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout whose `make demo` prints a figure at once, and then waits to be interrupted."""
    package = tmp_path / "src" / "penstock"
    package.mkdir(parents=True)
    (tmp_path / "Makefile").write_text("demo:\n\t@echo 'subscriber-1 9,000/s p50 74 µs'; exec sleep 600\n")
    (package / "__init__.py").touch()
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    for command in (("init",), ("add", "."), (*identity, "commit", "--message", "first")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, capture_output=True)
    monkeypatch.setattr(penstock, "__file__", str(package / "__init__.py"))
    assert [each.metric for each in first._clone()] == ["clone_to_first_figure_s", "second_start_s"]


def test_a_demo_that_ends_without_a_figure_is_an_error_with_its_output() -> None:
    with (
        pytest.raises(PenstockError, match=r"ended early: no compiler\n"),
        first._output_until(first.FIGURE, ["echo", "no compiler"], 60.0),
    ):
        pytest.fail("there was no figure")
