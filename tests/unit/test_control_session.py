"""A control connection from both ends, byte for byte, without a socket or a clock."""

from typing import Any

import msgspec
import pytest

from penstock.base.core import Tick
from penstock.base.counters import Cause, Counters
from penstock.base.errors import (
    AuthenticationError,
    ConnectionLostError,
    FrameError,
    LocalProtocolError,
    RefusedError,
    RemoteProtocolError,
    VersionError,
)
from penstock.net.config import ControlConfig
from penstock.net.core.control import ControlProtocol, ErrorMessage, Ping, Pong, Proof, Version, encode_session
from penstock.net.core.control_session import ControlSession, Peer
from penstock.net.core.events import (
    BytesReceived,
    ClockSample,
    ClockSampled,
    Close,
    Connected,
    EndOfStream,
    Opened,
    ReadingPaused,
    ReadingResumed,
    Received,
    Send,
)
from penstock.net.core.framing import FrameDecoder, encode_frame
from penstock.net.secret import Secret
from unit.net_kit import ECHO, MS, NEWER, SECRET, HandClock, Later, Say, converse, ended, exchange, of, sent, session

OTHER_SECRET = Secret(b"not the same secret")


def messages(data: bytes) -> list[Any]:
    return [msgspec.msgpack.decode(frame) for frame in FrameDecoder(2**20).feed(data)]


def pair(**options: Any) -> tuple[ControlSession[Any], ControlSession[Any]]:
    client, server = session("client", **options), session("server", **options)
    converse(client, server)
    return client, server


@pytest.mark.spec("OPS-2")
def test_without_secrets_two_hellos_open_the_connection() -> None:
    client_said, server_said = converse(session("client"), session("server"))
    assert of(Opened, client_said) == [Opened(Peer("the-server", Version(1, 2), False))]
    assert of(Opened, server_said) == [Opened(Peer("the-client", Version(1, 2), False))]
    assert [each["type"] for each in messages(sent(client_said))] == ["hello"]


@pytest.mark.spec("OPS-2")
def test_with_secrets_both_sides_prove_themselves_and_the_client_goes_first() -> None:
    client, server = session("client", secret=SECRET), session("server", secret=SECRET)
    hello = client.handle(Connected(), 0)
    server.handle(Connected(), 0)
    answer = server.handle(BytesReceived(sent(hello)), 0)
    assert [each["type"] for each in messages(sent(answer))] == ["hello"]
    assert not of(Opened, answer)
    proof = client.handle(BytesReceived(sent(answer)), 0)
    assert not of(Opened, proof)
    opened = server.handle(BytesReceived(sent(proof)), 0)
    assert of(Opened, opened)[0].peer.is_authenticated
    assert of(Opened, client.handle(BytesReceived(sent(opened)), 0))[0].peer.is_authenticated


@pytest.mark.spec("OPS-2")
def test_a_wrong_secret_is_refused() -> None:
    client_said, server_said = converse(session("client", secret=OTHER_SECRET), session("server", secret=SECRET))
    assert not of(Opened, client_said + server_said)
    assert ended(server_said).cause == Cause.AUTHENTICATION
    assert isinstance(ended(server_said).error, AuthenticationError)
    error = ended(client_said).error
    assert isinstance(error, RefusedError)
    assert error.peer_code == "authentication"
    assert "proof" not in [each["type"] for each in messages(sent(server_said))]


@pytest.mark.spec("OPS-2")
@pytest.mark.parametrize(("client_secret", "server_secret"), [(SECRET, None), (None, SECRET)])
def test_a_secret_on_one_side_only_is_refused_by_both(client_secret: Any, server_secret: Any) -> None:
    client_said, server_said = converse(
        session("client", secret=client_secret), session("server", secret=server_secret)
    )
    assert not of(Opened, client_said + server_said)
    owner = "client" if client_secret else "server"
    for said in (client_said, server_said):
        assert ended(said).cause == Cause.AUTHENTICATION
        assert f"only the {owner} has a secret" in str(ended(said).error)


@pytest.mark.spec("OPS-2")
def test_a_proof_is_valid_for_one_connection_and_one_side() -> None:
    """A proof that is replayed to a server with a new nonce, or reflected to its sender, is refused."""
    client, server = session("client", secret=SECRET), session("server", secret=SECRET)
    client_said, server_said = converse(client, server)
    recorded, first_proof = sent(client_said), messages(sent(server_said))[1]["proof"]
    again = session("server", secret=SECRET, nonce=b"t" * 32)
    again.handle(Connected(), 0)
    assert ended(again.handle(BytesReceived(recorded), 0)).cause == Cause.AUTHENTICATION
    reflecting = session("server", secret=SECRET)
    reflecting.handle(Connected(), 0)
    reflecting.handle(BytesReceived(sent(session("client", secret=SECRET).handle(Connected(), 0))), 0)
    said = reflecting.handle(BytesReceived(encode_frame(encode_session(Proof(first_proof)))), 0)
    assert ended(said).cause == Cause.AUTHENTICATION


@pytest.mark.spec("OPS-2")
def test_an_attacker_on_the_path_cannot_change_a_hello() -> None:
    client, server = session("client", NEWER, secret=SECRET), session("server", NEWER, secret=SECRET)
    hello = sent(client.handle(Connected(), 0))
    server.handle(Connected(), 0)
    lowered = hello.replace(b"minor\x03", b"minor\x02")
    assert lowered != hello
    answer = server.handle(BytesReceived(lowered), 0)
    proof = client.handle(BytesReceived(sent(answer)), 0)
    assert ended(server.handle(BytesReceived(sent(proof)), 0)).cause == Cause.AUTHENTICATION


def test_adjacent_minor_versions_agree_on_the_lower_one() -> None:
    for protocols in ((ECHO, NEWER), (NEWER, ECHO)):
        client_said, server_said = converse(session("client", protocols[0]), session("server", protocols[1]))
        for said in (client_said, server_said):
            assert of(Opened, said)[0].peer.version == Version(1, 2)


@pytest.mark.parametrize(
    "other", [ControlProtocol("echo", Version(2, 0), Say), ControlProtocol("other", Version(1, 2), Say)]
)
def test_another_major_version_or_protocol_is_refused_and_both_are_named(other: ControlProtocol[Any]) -> None:
    client_said, server_said = converse(session("client"), session("server", other))
    for said in (client_said, server_said):
        assert ended(said).cause == Cause.VERSION
        error = ended(said).error
        assert isinstance(error, VersionError)
        assert error.what == f"the client speaks echo 1.2, the server {other}" or error.what == (
            f"the server speaks {other}, the client echo 1.2"
        )


def test_messages_of_the_newer_minor_version_are_skipped_and_counted() -> None:
    counters = Counters("control")
    client, server = session("client", NEWER), session("server", ECHO, counters=counters)
    converse(client, server)
    said = server.handle(BytesReceived(sent(client.handle(Send(Later("x")), 0))), 0)
    assert said == []
    assert counters.by_cause("messages_skipped") == {"kind": 1}
    assert server.handle(BytesReceived(sent(client.handle(Send(Say("x")), 0))), 0) == [Received(Say("x"))]


def test_an_unknown_message_at_the_same_version_is_an_error() -> None:
    _, server = pair()
    said = server.handle(BytesReceived(encode_frame(NEWER.encode(Later("x"), 100))), 0)
    assert ended(said).cause == Cause.MESSAGE


def test_messages_are_delivered_in_order_both_ways_in_any_pieces() -> None:
    client, server = pair(secret=SECRET)
    data = b"".join(sent(client.handle(Send(Say(str(n))), 0)) for n in range(20))
    received = [each for at in range(len(data)) for each in server.handle(BytesReceived(data[at : at + 1]), 0)]
    assert received == [Received(Say(str(n))) for n in range(20)]
    assert client.handle(BytesReceived(sent(server.handle(Send(Say("back")), 0))), 0) == [Received(Say("back"))]


@pytest.mark.parametrize("secret", [None, SECRET])
def test_the_handshake_works_byte_by_byte(secret: Secret | None) -> None:
    client, server = session("client", secret=secret), session("server", secret=secret)
    said: dict[str, list[Any]] = {"client": client.handle(Connected(), 0), "server": server.handle(Connected(), 0)}
    done = {"client": 0, "server": 0}
    for _ in range(1_000):
        for name, other_name, other in (("client", "server", server), ("server", "client", client)):
            data = sent(said[name])
            if done[name] < len(data):
                said[other_name] += other.handle(BytesReceived(data[done[name] : done[name] + 1]), 0)
                done[name] += 1
    assert of(Opened, said["client"])
    assert of(Opened, said["server"])


def test_the_heartbeat_samples_the_clock() -> None:
    client, server = session("client", clock=HandClock(100)), session("server", clock=HandClock(5_100))
    client_said, server_said = converse(client, server)
    ping = client.handle(Tick(), 0)
    assert messages(sent(ping)) == [{"type": "ping", "t1": 100}]
    client_said, server_said = ping, []
    exchange(client, server, client_said, server_said)
    assert of(ClockSampled, client_said) == [ClockSampled(ClockSample(100, 5_100, 5_100, 100))]
    assert client.handle(Tick(), 0) == []
    assert client.next_deadline_ns() == ControlConfig().ping_ms * MS


def test_an_unrequested_pong_is_counted() -> None:
    counters = Counters("control")
    client, _ = pair(counters=counters)
    assert client.handle(BytesReceived(encode_frame(encode_session(Pong(7, 8, 9)))), 0) == []
    assert counters.by_cause("messages_skipped") == {"unexpected": 1}


def test_a_silent_peer_times_out() -> None:
    client, _ = pair(config=ControlConfig(ping_ms=100, silence_ms=250))
    assert until_silent(client) == [0, 100, 200, 250]
    assert client.next_deadline_ns() is None


def until_silent(core: ControlSession[Any]) -> list[int]:
    """The deadlines in milliseconds, up to the one at which the peer times out."""
    times = []
    said: list[Any] = []
    while not any(each for each in said if not sent([each])):
        now_ns = core.next_deadline_ns()
        assert now_ns is not None
        times.append(now_ns // MS)
        said = core.handle(Tick(), now_ns)
    assert ended(said).cause == Cause.SILENT
    return times


def test_silence_is_not_counted_while_we_do_not_read() -> None:
    client, server = pair(config=ControlConfig(ping_ms=100, silence_ms=250))
    client.handle(ReadingPaused(), 0)
    assert not [each for each in client.handle(Tick(), 10_000 * MS) if not sent([each])]
    client.handle(BytesReceived(sent(server.handle(Send(Say("late")), 0))), 10_000 * MS)
    assert until_silent(client)[-1] == 10_250


def test_silence_is_counted_again_when_we_read_again() -> None:
    client, _ = pair(config=ControlConfig(ping_ms=100, silence_ms=250))
    client.handle(ReadingPaused(), 0)
    client.handle(ReadingResumed(), 10_000 * MS)
    assert until_silent(client)[-1] == 10_250


def test_time_in_which_our_process_was_stopped_is_not_silence_of_the_peer() -> None:
    """A process that was stopped for longer than silence_ms first reads what the peer sent in between."""
    client, server = pair(config=ControlConfig(ping_ms=100, silence_ms=250))
    assert not [each for each in client.handle(Tick(), 5_000 * MS) if not sent([each])], "the process was stopped"
    client.handle(BytesReceived(sent(server.handle(Send(Say("sent meanwhile")), 0))), 5_001 * MS)
    assert until_silent(client)[-1] == 5_251, "from here on the process runs, and the peer sends nothing"


def test_a_lost_peer_times_out_also_when_our_process_was_stopped() -> None:
    client, _ = pair(config=ControlConfig(ping_ms=100, silence_ms=250))
    client.handle(Tick(), 5_000 * MS)
    assert until_silent(client)[-1] == 5_150, "100 ms of the silence had passed before the stop"


@pytest.mark.parametrize("side", ["client", "server"])
def test_the_handshake_has_a_timeout(side: Any) -> None:
    core = session(side, config=ControlConfig(handshake_ms=50))
    core.handle(Connected(), 10 * MS)
    core.handle(BytesReceived(b"\x10"), 59 * MS)
    assert core.next_deadline_ns() == 60 * MS
    assert core.handle(Tick(), 59 * MS) == []
    end = ended(core.handle(Tick(), 60 * MS))
    assert end.cause == Cause.SILENT
    assert isinstance(end.error, ConnectionLostError)


def test_a_stranger_cannot_make_the_server_buffer_much() -> None:
    server = session("server")
    server.handle(Connected(), 0)
    end = ended(server.handle(BytesReceived((1_025).to_bytes(4, "little")), 0))
    assert (end.cause, type(end.error)) == (Cause.LENGTH, FrameError)


def test_a_frame_that_is_too_long_is_answered_after_the_messages_before_it() -> None:
    _, server = pair(config=ControlConfig(message_size_max=200))
    said = server.handle(BytesReceived(encode_frame(ECHO.encode(Say("x"), 200)) + b"\xc9\0\0\0"), 0)
    assert of(Received, said) == [Received(Say("x"))]
    assert ended(said).cause == Cause.LENGTH
    assert messages(sent(said))[0]["code"] == "frame"


@pytest.mark.parametrize(
    "payload", [b"", b"rubbish", encode_session(Ping(1)), encode_session(Proof(bytes(32))), ECHO.encode(Say("x"), 99)]
)
@pytest.mark.parametrize("side", ["client", "server"])
def test_only_a_hello_is_accepted_first(side: Any, payload: bytes) -> None:
    core = session(side)
    core.handle(Connected(), 0)
    end = ended(core.handle(BytesReceived(encode_frame(payload)), 0))
    assert end.cause == Cause.MESSAGE
    assert isinstance(end.error, RemoteProtocolError)


def test_a_second_hello_is_an_error() -> None:
    _, server = pair()
    hello = sent(session("client").handle(Connected(), 0))
    assert ended(server.handle(BytesReceived(hello), 0)).cause == Cause.MESSAGE


@pytest.mark.spec("OPS-8")
def test_a_goodbye_ends_both_sides_in_order() -> None:
    client, server = pair()
    client_said = client.handle(Close("done"), 0)
    assert (ended(client_said).cause, ended(client_said).error) == (Cause.CLOSED, None)
    end = ended(server.handle(BytesReceived(sent(client_said)), 0))
    assert (end.cause, end.error) == (Cause.GOODBYE, None)


def test_the_end_of_the_stream_without_a_goodbye_is_a_connection_loss() -> None:
    for rest, place in ((b"", "without a goodbye"), (b"\5\0", "in the middle of a frame")):
        _, server = pair()
        server.handle(BytesReceived(rest), 0)
        end = ended(server.handle(EndOfStream(), 0))
        assert end.cause == Cause.CUT
        assert place in str(end.error)


def test_events_after_the_end_are_ignored() -> None:
    client, _ = pair()
    client.handle(EndOfStream(), 0)
    for event in (BytesReceived(b"x"), EndOfStream(), Tick(), Close()):
        assert client.handle(event, 10**18) == []


def test_error_texts_of_the_peer_are_escaped() -> None:
    client, _ = pair()
    said = client.handle(BytesReceived(encode_frame(encode_session(ErrorMessage("x", "red: \x1b[31m\n")))), 0)
    assert "\x1b" not in str(ended(said).error)
    assert "\n" not in str(ended(said).error)


@pytest.mark.spec("OPS-2")
def test_the_history_of_a_failure_does_not_contain_payloads() -> None:
    assert "s3cret" not in repr([Send(Say("s3cret")), BytesReceived(b"s3cret")])


def test_mistakes_of_the_caller_are_refused() -> None:
    with pytest.raises(LocalProtocolError):
        session("client", nonce=b"short")
    core = session("client")
    with pytest.raises(LocalProtocolError, match="handshake"):
        core.handle(Send(Say("x")), 0)
    core.handle(Connected(), 0)
    with pytest.raises(LocalProtocolError, match="connected before"):
        core.handle(Connected(), 0)
    with pytest.raises(LocalProtocolError, match="does not accept event str"):
        core.handle("nonsense", 0)  # type: ignore[arg-type]
