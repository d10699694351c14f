"""Documents are run, not believed."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from logs import logs_kept
from penstock.base.counters import Cause
from penstock.base.errors import ConfigurationError
from penstock.cli.main import app
from penstock.model.message import RESERVED_NAMES
from penstock.net.udp import free_ports
from penstock.node.checking import check_files
from penstock.node.plant import Plant

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.usefixtures("own_formats")
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of one document build on each other; a block that begins with a file's name is that file. Ports are
    exchanged for free ones, so that nobody else on this machine is heard."""
    monkeypatch.chdir(tmp_path)
    named = r"```(?:toml|python)\n# (\S+\.(?:toml|py))\n(.*?)```"
    for name, block in re.findall(named, path.read_text(), flags=re.DOTALL):
        (tmp_path / name).write_text(block)
    namespace: dict[str, object] = {}
    written = sorted(set(re.findall(r"port=(\d+)", path.read_text())))
    ports = dict(zip(written, map(str, free_ports(len(written))), strict=True))
    for block in re.findall(r"```python\n(?!# \S+\.py\n)(.*?)```", path.read_text(), flags=re.DOTALL):
        block = re.sub(r"(?<=port=)\d+", lambda found: ports[found[0]], block)
        exec(compile(block, path.name, "exec"), namespace)


def test_the_tree_with_an_administration_server_can_be_run_as_it_is_written(tmp_path: Path) -> None:
    for name, block in re.findall(
        r"```toml\n# (\S+\.toml)\n(.*?)```", (ROOT / "docs/how-to/agents.md").read_text(), re.DOTALL
    ):
        (tmp_path / name).write_text(block)
        (tmp_path / name).chmod(0o600)
    with logs_kept():
        checked = CliRunner().invoke(app, ["up", "--check", str(tmp_path / "plant.toml")])
    assert (checked.exit_code, checked.output.count(": agent\n")) == (0, 4), checked.output
    policy = tmp_path / "policy.toml"
    policy.write_text(policy.read_text().replace('roles = ["filter"]\n', ""))
    with pytest.raises(ConfigurationError, match="the client tree lacks the role filter"):
        check_files(Plant.load(tmp_path / "plant.toml"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\[[^\]`]+\]\(([^)#|]+)\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_every_file_and_function_that_the_architecture_names_exists() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py*") if path.suffix in (".py", ".pyi"))
    for kind, method in re.findall(r"`(?:[a-z]+\.)*(_?[A-Z]\w+)\.(\w+)`", text):
        assert f"class {kind}" in source, kind
        assert f"def {method}(" in source, method
    for name in re.findall(r"`([a-z_]+/[\w/]+\.\w+)`", text):
        places = [ROOT / name, ROOT / "src" / "penstock" / name]
        assert any(place.exists() for place in places), name


def test_the_models_document_lists_every_reserved_name() -> None:
    text = (ROOT / "docs" / "reference" / "models.md").read_text()
    (listed,) = re.findall(r"no field can be\ncalled (.*?)\.\n", text, flags=re.DOTALL)
    assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(RESERVED_NAMES)


def test_the_stream_document_explains_every_cause() -> None:
    text = "".join(path.read_text() for path in (ROOT / "docs" / "reference" / "protocol").glob("*.md"))
    assert [cause for cause in Cause if f"`{cause}`" not in text] == []
