"""Documents are executed, not trusted."""

import ast
import importlib.util
import re
import shlex
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from documents_kit import DOCUMENTS, NOT_RUN, ROOT, blocks_of, indented_blocks_of
from logs import logs_kept
from penstock.base.counters import Cause
from penstock.base.errors import ConfigurationError
from penstock.cli.main import COMMANDS, app, load_command
from penstock.model.message import RESERVED_NAMES
from penstock.net.udp import free_ports
from penstock.node.checking import check_files
from penstock.node.plant import Plant

NOT_RUN_MAX = 20
"""Maximum number of blocks marked as not run, in all documents together."""


@pytest.mark.usefixtures("own_formats")
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of one document build on each other; a block that begins with a file's name is that file. Ports are
    replaced by free ones, so that no other process on this machine is reached."""
    monkeypatch.chdir(tmp_path)
    named = r"```(?:toml|python)\n# (\S+\.(?:toml|py))\n(.*?)```"
    for name, block in re.findall(named, path.read_text(), flags=re.DOTALL):
        (tmp_path / name).write_text(block)
    namespace: dict[str, object] = {}
    written = sorted(set(re.findall(r"port=(\d+)", path.read_text())))
    ports = dict(zip(written, map(str, free_ports(len(written))), strict=True))
    for block in blocks_of(path):
        is_file = re.match(r"# \S+\.py\n", block.text) is not None
        if block.kind == "python" and block.is_run and not block.needs_plant and not is_file:
            text = re.sub(r"(?<=port=)\d+", lambda found: ports[found[0]], block.text)
            exec(compile(text, path.name, "exec"), namespace)


def test_the_tree_with_an_administration_server_works_as_documented(tmp_path: Path) -> None:
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
def test_links_have_existing_targets(path: Path) -> None:
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


@pytest.mark.parametrize("name", ["commands.md", "configuration.md", "python-api.md", "metrics.md", "errors.md"])
def test_generated_pages_are_current(name: str, generator: ModuleType) -> None:
    page = ROOT / "docs" / "reference" / name
    assert page.read_text() == generator.pages()[name], f"{name} is stale: run `make docs`"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """docs/generate.py, loaded once."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.pages()
    module.pages = lambda: made  # type: ignore[attr-defined]
    return module


def test_few_blocks_are_skipped_and_each_names_the_reason() -> None:
    marked = [block for page in DOCUMENTS for block in blocks_of(page) if not block.is_run]
    assert len(marked) <= NOT_RUN_MAX
    assert all(len(block.mark) > len(NOT_RUN) + 10 for block in marked)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_program_blocks_are_fenced_so_that_they_run(path: Path) -> None:
    """An indented block is a drawing, a command or a part of a document, never a program."""
    assert [block for block in indented_blocks_of(path) if _is_program(block)] == []


def _is_program(text: str) -> bool:
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return False
    return any(isinstance(node, ast.With | ast.For | ast.Import | ast.ImportFrom | ast.FunctionDef) for node in body)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documented_configuration_is_toml(path: Path) -> None:
    for block in blocks_of(path):
        if block.kind == "toml":
            tomllib.loads(block.text)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documented_commands_exist_with_their_options(path: Path) -> None:
    texts = [block.text for block in blocks_of(path) if block.kind in ("", "console")] + indented_blocks_of(path)
    for line in "\n".join(texts).replace("\\\n", " ").splitlines():
        if found := re.match(r"(?:\$ )?(?:\S+=\S+ )*penstock (?!\[)([a-z].*)", line):
            _check_command(found[1], f"{path.name}: {line}")


def _check_command(text: str, where: str) -> None:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    words = []
    for word in lexer:
        if set(word) <= set(";&|<>"):
            break
        words.append(word)
    if words[0] not in COMMANDS:
        assert re.fullmatch(r"--?[a-z-]+", words[0]), where
        return
    command: Any = load_command(words[0])
    rest = words[1:]
    while hasattr(command, "commands") and rest and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    flags = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
    used = {word.partition("=")[0] for word in rest if re.match(r"--[a-z]", word)}
    assert used <= flags, f"{where}: {sorted(used - flags)}"
    assert not hasattr(command, "commands") or not rest or rest[0].startswith("-"), f"{where}: no command {rest[0]}"
