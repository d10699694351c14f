"""`penstock bench assured`, shortened: it prints every figure, from real processes."""

from pathlib import Path

import pytest

from penstock.bench.assured import pair, rate, recovery
from penstock.bench.assured.peers import PEERS, StoringPeer

PAYLOAD = bytes(100)
COUNT = 600


def peer_param(peer: StoringPeer) -> object:
    slow = [pytest.mark.soak] if peer.name == "rabbitmq" else []  # it starts for half a minute
    missing = pytest.mark.skipif(peer.program() is None, reason=f"{peer.package} is not installed")
    return pytest.param(peer, id=peer.name, marks=[*slow, missing])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.spec("REPL-1")
def test_rates_are_measured_with_whatever_peers_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Missing(StoringPeer):
        name = "other"
        package = "no-such-server"

    there = [peer for peer in PEERS if peer.name == "redis" and peer.program()]
    for name, value in {"PEERS": (*there, Missing()), "ROUNDS": 1, "ROUND_SECONDS": 0.05}.items():
        monkeypatch.setattr(rate, name, value)
    monkeypatch.setattr(rate, "SINGLE_ROUNDS", 1)
    results = {each.metric: each for each in rate.run()}
    assert list(results) == [
        "acks_per_s_256",
        *(f"speedup_vs_{peer.name}" for peer in there),
        "single_ratio_to_fdatasync",
        *(f"single_speedup_vs_{peer.name}" for peer in there),
    ]
    assert all(each.value > 0 and each.bench == "assured" and each.conditions for each in results.values())
    assert "no speedup_vs_other: it is not installed (apt install no-such-server)" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spec("REPL-1")
def test_a_router_recovers_all_that_it_had_and_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "MESSAGES", 5_000)
    results = {each.metric: each.value for each in recovery.run()}
    assert list(results) == ["recovery_s_1m", "bytes_per_queued_message"]
    assert results["recovery_s_1m"] > 0


@pytest.mark.soak  # test_assured_pair.py tests copies and switches without measuring
@pytest.mark.spec("REPL-11")
def test_copies_and_switches_are_measured_with_real_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    short = {
        "ROUNDS": 1, "ROUND_SECONDS": 0.05, "OFFERED_ROUNDS": 1, "OFFERED_SECONDS": 0.5, "SWITCHES": 2,
        "REPLACEMENTS": 1,
    }  # fmt: skip
    for name, value in short.items():
        monkeypatch.setattr(pair, name, value)
    results = {each.metric: each.value for each in pair.run()}
    names = ["sync_ratio", "async_ratio", "isolation_ratio", "switch_ms_p50", "automatic_switch_ms_p50"]
    assert list(results) == names


@pytest.mark.parametrize("peer", [peer_param(peer) for peer in PEERS])
def test_a_peer_acknowledges_all_that_is_published(peer: StoringPeer, tmp_path: Path) -> None:
    with peer.running(tmp_path, PAYLOAD) as client:
        client.publish(COUNT, 256)
        client.publish(1, 1)
        assert client.queued() == COUNT + 1
        client.empty()
        assert client.queued() == 0
