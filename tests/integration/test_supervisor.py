"""A supervisor and its processes: how they die, and that they always end with the supervisor."""

from integration.command_kit import is_alive, kill
from penstock.node.supervisor import Supervisor
from waiting import PATIENCE_SECONDS

WAITS = "code:interact"
"""Command of an interpreter that reads its standard input until the input ends."""


def test_a_process_that_dies_is_named_and_the_others_go_on() -> None:
    ended: list[str] = []
    with Supervisor(lambda member: ended.append(member.fault)) as supervisor:
        killed, failing, other = (
            supervisor.start(name, work, [], lambda line: None)
            for name, work in (("one", WAITS), ("two", "this:nothing"), ("three", WAITS))
        )
        kill(killed.pid)
        assert supervisor.wait(lambda: len(ended) == 2, PATIENCE_SECONDS)
        assert sorted(ended) == ["one was killed by SIGKILL", "two ended with status 1"]
        assert not killed.is_running
        assert not failing.is_running
        assert other.is_running
    assert not is_alive(other.pid)
