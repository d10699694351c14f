from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from penstock.base.config import Config, load_toml, parse_toml
from penstock.base.errors import ConfigurationError, UnknownKeyError


class Port(Config, frozen=True):
    number: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 7_400
    host: str = "127.0.0.1"


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Plant(Config, frozen=True):
    name: str
    join: Literal["live", "start"] = "live"
    repair: Literal["unicast", "multicast"] | None = None
    colours: list[Colour] = msgspec.field(default_factory=list)
    ports: list[Port] = msgspec.field(default_factory=list)
    named: dict[str, Port] = msgspec.field(default_factory=dict)
    spare: Port | None = None


def read(text: str) -> Plant:
    return parse_toml(text, Plant, where="plant.toml")


def test_values_and_defaults_are_read() -> None:
    plant = read('name = "p"\n[[ports]]\nnumber = 1\n[named.a]\nhost = "h"\n[spare]\n')
    assert plant == Plant(name="p", ports=[Port(number=1)], named={"a": Port(host="h")}, spare=Port())


@pytest.mark.parametrize(
    ("text", "path", "guess"),
    [
        ('nam = "p"', "nam", "did you mean 'name'?"),
        ('name = "p"\n[[ports]]\n[[ports]]\nnumbr = 1', "ports[1].numbr", "did you mean 'number'?"),
        ('name = "p"\n[named.a]\nzzz = 1', "named.a.zzz", "expected one of: number, host"),
        ('name = "p"\n[spare]\nzzz = 1', "spare.zzz", "expected one of: number, host"),
    ],
)
def test_an_unknown_key_is_refused_with_its_path_and_the_expected_keys(text: str, path: str, guess: str) -> None:
    with pytest.raises(UnknownKeyError) as caught:
        read(text)
    assert f"plant.toml: unknown key '{path}'" in str(caught.value)
    assert guess in caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('name = "p"\n[[ports]]\nnumber = 0', "plant.toml: ports[0].number: expected 'int' >= 1"),
        ('name = "p"\n[[ports]]\nnumber = "x"', "plant.toml: ports[0].number: expected 'int', got 'str'"),
        ("", "plant.toml: missing key 'name'"),
        (
            'name = "p"\njoin = "stat"',
            "plant.toml: join: 'stat' is not one of: live, start (did you mean 'start'?)",
        ),
        ('name = "p"\njoin = 7', "plant.toml: join: expected 'str', got 'int'"),
        ('name = "p"\nrepair = "both"', "plant.toml: repair: 'both' is not one of: multicast, unicast"),
        ('name = "p"\ncolours = ["red", "blue"]', "plant.toml: colours[1]: 'blue' is not one of: red, green"),
        ('name = "p"\nname = "q"', "plant.toml: is not valid TOML"),
        ("a=" + "[" * 20_000, "plant.toml: is not valid TOML"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path_and_the_expected_value(text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(text)
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"join": "stat"}, "Plant: join: 'stat' is not one of: live, start (did you mean 'start'?)"),
        ({"name": 7}, "Plant: name: expected 'str', got 'int'"),
        ({"named": {"a": 7}}, "Plant: named[...]: expected 'object', got 'int'"),
        ({"colours": [Colour.RED, 7]}, "Plant: colours[1]: "),
    ],
)
def test_a_value_set_in_python_is_checked_too(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Plant(**{"name": "p", **values})
    assert str(caught.value).startswith(expected)


def test_a_value_set_in_python_is_checked_against_its_bounds() -> None:
    with pytest.raises(ConfigurationError, match="Port: number: expected 'int' >= 1"):
        Port(number=0)
    with pytest.raises(ConfigurationError, match="Port: number: expected 'int' <= 65535"):
        msgspec.structs.replace(Port(), number=65_536)
    assert Plant(name="p", ports=[Port()], colours=[Colour.RED], repair="unicast").ports == [Port()]


def test_fields_are_keyword_only_and_immutable_also_in_subclasses() -> None:
    class Plain(Config):
        number: int = 1

    with pytest.raises(TypeError, match="positional"):
        Plain(1)  # type: ignore[misc]
    with pytest.raises(AttributeError, match="immutable"):
        Plain().number = 2  # type: ignore[misc]


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        load_toml(tmp_path / "missing.toml", Plant)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="is not UTF-8 text"):
        load_toml(tmp_path / "binary.toml", Plant)
    (tmp_path / "huge.toml").write_bytes(b"#" * 2_000_000)
    with pytest.raises(ConfigurationError, match="above the limit of 1048576"):
        load_toml(tmp_path / "huge.toml", Plant)
