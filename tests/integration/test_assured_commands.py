"""`penstock router` and `penstock queue` against a real router; a router in a plant; the example."""

import json
import re
import runpy
import shlex
import subprocess
from pathlib import Path

import pytest

from command_here import run_here
from first_plant_kit import free_first_port
from integration.assured_kit import client_of, router_config, router_here
from integration.command_kit import running
from penstock.assured.node_config import RouterAccess
from penstock.assured.wire._layout import OUTCOME_DEGRADED
from penstock.base.errors import LocalProtocolError, PenstockError
from penstock.net.secret import write_private
from penstock.net.udp import free_ports
from waiting import PATIENCE_SECONDS, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"


def done(*words: object) -> "subprocess.CompletedProcess[str]":
    found = run_here(*words)
    assert found.returncode == 0, found.stderr
    return found


def refused(*words: object) -> str:
    found = run_here(*words)
    assert found.returncode != 0, found.stdout
    return found.stderr


def test_queues_are_made_filled_listed_and_drained(tmp_path: Path) -> None:
    with router_here(router_config(tmp_path)) as router:
        place = router.place
        done("queue", "create", place, "fills", "fills.>", "--deliveries-max", 5, "--exclusive")
        shown = json.loads(done("queue", "show", place, "fills").stdout)
        assert shown["endpoint"]["wants"] == [{"topics": ["fills.>"], "where": ""}]
        assert (shown["endpoint"]["consumers"], shown["endpoint"]["deliveries_max"]) == ("exclusive", 5)
        done("queue", "create", place, "fills", "fills.>", "--alter")
        assert "2 messages stored" in done("queue", "publish", place, "fills.new", "one", "two", "--priority", 7).stderr
        lines = done("queue", "list", place).stdout.splitlines()
        assert [line.split(":")[0] for line in lines] == ["dead", "orders", "fills"]
        assert "fills: 2 messages" in lines[2]
        looked = done("queue", "drain", place, "fills", "--keep")
        assert [json.loads(line)["payload"] for line in looked.stdout.splitlines()] == ["one", "two"]
        drained = [json.loads(line) for line in done("queue", "drain", place, "fills").stdout.splitlines()]
        assert [(each["payload"], each["priority"], each["is_redelivered"]) for each in drained] == [
            ("one", 7, True), ("two", 7, True)
        ]  # fmt: skip
        done("queue", "delete", place, "fills")
        assert "unknown queue" in refused("queue", "show", place, "fills")
        assert "no endpoint" in refused("queue", "drain", place, "fills")

        page = router.router.node.url.removeprefix("http://")
        assert "router: active, epoch 1" in done("router", "status", "--node", page).stdout
        told = json.loads(done("router", "status", "--node", page, "--json").stdout)
        assert (told["kind"], told["role"]) == ("router", "active")
        assert "error [" in refused("router", "switch", place)
        assert "either a document or a directory" in refused("router", "run")


def test_what_is_wrong_is_said_and_the_status_tells(tmp_path: Path) -> None:
    with router_here(router_config(tmp_path / "state")) as router:
        place = router.place
        assert "1 message stored" in done("queue", "publish", place, "orders.new", "one").stderr
        told = refused("queue", "publish", place, "nobody.wants", "one")
        assert "1 message not queued: no queue has an interest in nobody.wants\n" in told
        assert "stored" not in told
        assert "messages_unmatched" not in told
        with client_of(place) as client, client.publisher() as publisher:
            with pytest.raises(LocalProtocolError, match="no replication is called 'sync'"):
                publisher.publish("orders.new", b"", replication="sync")
            with pytest.raises(LocalProtocolError, match="bytes, not text"):
                publisher.publish("orders.new", "text")  # type: ignore[arg-type]
    (port,) = free_ports(1)
    assert run_here("router", "status", "--node", f"127.0.0.1:{port}").returncode == 1
    assert run_here("witness", "status", "--node", f"127.0.0.1:{port}").returncode == 1
    (tmp_path / "file").write_text("")
    assert "no directory can be made there" in refused("router", "run", tmp_path / "file", "--port", port)
    plant = tmp_path / "plant.toml"
    plant.write_text('name = "desk"\n[[router]]\nname = "orders"\n')
    assert "this is a plant's document (add --name with one of: orders)" in refused("router", "run", "--config", plant)


def test_a_client_without_the_secret_is_told_so_at_once(tmp_path: Path) -> None:
    write_private(tmp_path / "secret", b"the secret of this router")
    access = RouterAccess(port=0, secret_file=str(tmp_path / "secret"))
    with (
        router_here(router_config(tmp_path / "state", control=access)) as router,
        client_of(router.place) as client,
        pytest.raises(PenstockError, match="secret"),
    ):
        client.publisher()


def test_a_plant_with_a_router(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    plant = tmp_path / "plant.toml"
    plant.write_text(
        f"""
        name = "desk"
        [[router]]
        name = "orders"
        control = {{ port = {port} }}
        endpoints = [{{ name = "new", wants = [{{ topics = ["orders.new.>"] }}] }}]
        """
    )
    assert done("up", plant, "--check").stdout == "orders: router\n"
    with running("up", str(plant)) as up, client_of(f"127.0.0.1:{port}") as client:
        with client.publisher() as publisher:
            assert publisher.publish("orders.new.AAPL", b"buy", timeout=PATIENCE_SECONDS) == "stored"
        wait_until(lambda: "orders: active, epoch 1" in up.out, "what up says")
        shown = done("router", "status", plant).stdout
        assert "orders: active" in shown
        assert "new: 1 message (" in shown
        up.interrupt()
    assert (tmp_path / "state" / "orders" / "journal").is_dir()


@pytest.mark.spec("REPL-7", "REPL-8")
def test_a_plant_with_a_pair_and_an_operator(tmp_path: Path) -> None:
    first, second, link = free_ports(3)
    plant = tmp_path / "plant.toml"
    pair = f'pair = {{ routers = ["one", "two"], link = {{ port = {link} }} }}'
    plant.write_text(
        f"""
        name = "desk"
        [[router]]
        name = "one"
        control = {{ port = {first} }}
        endpoints = [{{ name = "new", wants = [{{ topics = ["orders.new.>"] }}], replication = "synchronous" }}]
        {pair}
        [[router]]
        name = "two"
        control = {{ port = {second} }}
        {pair}
        """
    )
    assert done("up", plant, "--check").stdout == "one: router\ntwo: router\n"
    places = [f"127.0.0.1:{port}" for port in (first, second)]
    with running("up", str(plant)) as up, client_of(places[0]) as client:
        wait_until(lambda: "one: active, epoch 1, in step" in up.out and "two: standby, epoch 1, in step" in up.out)
        with client.publisher() as publisher:
            assert publisher.publish("orders.new.AAPL", b"buy") == "synchronous"
            assert "degraded" in done("router", "degrade", places[0]).stdout
            assert publisher.publish("orders.new.AAPL", b"sell") == "degraded"
            shown = done("router", "status", plant).stdout
            assert "one: active" in shown
            assert "with two: degraded since " in shown
            assert "by an operator's order" in shown
            done("router", "degrade", places[0], "--end")
            wait_until(lambda: "with two: in step" in done("router", "status", plant).stdout, "the end of it")
            assert "stands by" in refused("router", "degrade", places[1])
            assert "is active" in done("router", "switch", places[1]).stdout
            assert publisher.publish("orders.new.AAPL", b"again") == "synchronous"
            assert client.router == "two", "it was told where the other is"
        up.interrupt()


def test_what_is_run_one_by_one_of_a_plant_is_found_by_its_document(tmp_path: Path) -> None:
    one, two, link = free_ports(3)
    voting = free_ports(3)
    plant = tmp_path / "plant.toml"
    listens = dict(zip(("one", "two", "three"), voting, strict=True))

    def router(name: str, port: int) -> str:
        voters = ", ".join(f'{each} = "127.0.0.1:{at}"' for each, at in listens.items() if each != name)
        votes = f'witness = "three", listen = {{ port = {listens[name]} }}, voters = {{ {voters} }}'
        pair = f'routers = ["one", "two"], link = {{ port = {link} }}, voting = {{ {votes} }}'
        return f'[[router]]\nname = "{name}"\ncontrol = {{ port = {port} }}\npair = {{ {pair} }}\n'

    witness = f'[[witness]]\nname = "three"\nrouters = ["one", "two"]\ncontrol = {{ port = {voting[2]} }}\n'
    plant.write_text(f'name = "desk"\n{router("one", one)}{router("two", two)}{witness}')
    assert "not started from this document on this host" in run_here("router", "status", plant).stdout
    with (
        running("router", "run", "--config", str(plant), "--name", "one") as first,
        running("router", "run", "--config", str(plant), "--name", "two") as second,
        running("witness", "run", "--config", str(plant), "--name", "three") as third,
    ):
        for each in (first, second, third):
            each.wait_for_output('"url"')
        assert re.match(r"one: .*\n(  .*\n)*two: ", done("router", "status", plant).stdout)
        assert done("witness", "status", plant).stdout.startswith("three: epoch ")


def test_what_cannot_run_says_why_as_other_commands_do(tmp_path: Path) -> None:
    with router_here(router_config(tmp_path / "state")) as router:
        port = router.place.rpartition(":")[2]
        told = refused("router", "run", tmp_path / "other", "--port", port)
        assert re.search(rf"^error \[config\]: .*{port}", told, re.MULTILINE)
        witness = tmp_path / "witness.toml"
        witness.write_text(f"""
            name = "w"
            routers = ["one", "two"]
            state_directory = "{tmp_path / "witness"}"
            control = {{ port = {port} }}
            """)
        assert re.search(rf"^error \[config\]: .*{port}", refused("witness", "run", "--config", witness), re.MULTILINE)
    nameless = tmp_path / "plant.toml"
    nameless.write_text('[[router]]\nname = "one"\n')
    assert "the plant has no name (add name = " in refused("router", "run", "--config", nameless, "--name", "one")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("", "two is not"),
        ('pair = { routers = ["two", "one"] }', "two is not"),
        ('pair = { routers = ["one", "two"], link = { port = 7466 } }', "different ports for the same link"),
        (
            'pair = { routers = ["one", "two"], voting = { witness = "w", voters = { one = "h:1", w = "h:2" } } }',
            "only one of",
        ),
    ],
)
def test_routers_of_a_document_that_are_no_pair_are_refused(tmp_path: Path, other: str, why: str) -> None:
    plant = tmp_path / "plant.toml"
    plant.write_text(
        f"""
        name = "desk"
        [[router]]
        name = "one"
        pair = {{ routers = ["one", "two"] }}
        [[router]]
        name = "two"
        control = {{ port = 7461 }}
        {other}
        """
    )
    assert why in refused("up", plant, "--check")


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "assured.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "it has 1,000 orders" in out
    assert "filled: buy 1 AAPL\nfilled: buy 2 AAPL" in out


def test_a_first_plant_has_a_PairOfRouters(tmp_path: Path) -> None:
    """What `penstock init` says to type is right; a client who may only publish cannot consume."""
    directory = tmp_path / "plant.d"
    told = done("init", directory, "--port", free_first_port()).stdout
    publish, drain = map(shlex.split, re.findall(r"^  penstock (queue .*)$", told, flags=re.MULTILINE))
    plant = str(directory / "plant.toml")
    with running("node", plant, "admin"), running("node", plant, "witness"), running("node", plant, "router-a"):
        wait_until(lambda: run_here(*publish).returncode == 0, "a router takes a message")
        assert "a trade" in done(*drain).stdout
        assert "may not consume" in refused(*drain[:-1], directory / "booking.toml")


def test_what_becomes_of_too_much_and_who_decides_is_said_in_commands(tmp_path: Path) -> None:
    with router_here(router_config(tmp_path, replicate_by="publisher")) as router:
        place = router.place
        done("queue", "create", place, "few", "few.>", "--messages-max", 1, "--when-full", "dead")
        done("queue", "publish", place, "few.x", "one", "--replication", "synchronous")
        done("queue", "publish", place, "few.x", "two")
        lines = done("queue", "list", place).stdout.splitlines()
        assert "few: 1 message, 8 bytes, 0 unsettled, 0 consumers; few.>" in lines
        assert any(line.startswith("dead: 1 message,") for line in lines)
        (dead,) = done("queue", "drain", place, "dead").stdout.splitlines()
        assert (json.loads(dead)["dead_reason"], json.loads(dead)["dead_from"]) == ("overflowed", "few")
        assert "dead_reason" not in done("queue", "drain", place, "few", "--keep").stdout
        done("queue", "create", place, "full", "full.>", "--bytes-max", 20)
        told = refused("queue", "publish", place, "full.x", "a text that is too long for it")
        assert "message 1 was refused: endpoint 'full' is full: 20 bytes (bytes_max)" in told
        assert "1 message browsed\n" in done("queue", "drain", place, "few", "--keep").stderr
        assert router.router._core.tables.publishers.outcome_counts()[OUTCOME_DEGRADED] == 1
        assert "synchronous" in refused("queue", "publish", place, "few.x", "--replication", "some")


@pytest.mark.spec("REPL-13")
def test_what_no_queue_wants_is_kept_as_long_as_the_log_retains_it(tmp_path: Path) -> None:
    """Its publisher is told that nobody wants it; an endpoint that begins in the past gets it."""
    with router_here(router_config(tmp_path, retain_s=3_600)) as router:
        place = router.place
        assert "1 message not queued: no queue has an interest in" in refused(
            "queue", "publish", place, "nobody.wants", "one"
        )
        done("queue", "create", place, "late", "nobody.>", "--from-id", 1)
        assert "1 message\n" in done("queue", "drain", place, "late").stderr
        done("queue", "create", place, "later", "nobody.>", "--from-time", "2020-01-31T15:30:00")
        assert "1 message\n" in done("queue", "drain", place, "later").stderr
        assert "is not a time" in refused("queue", "create", place, "never", "--from-time", "yesterday")
        told = refused("queue", "create", place, "never", ">", "--where", "nofield = 3")
        assert "has the fields of 'nofield = 3'" in told
