"""The calls to an offload process, byte by byte: msgpack encoded and decoded by hand."""

from penstock.base.errors import NotFoundError
from penstock.engine.client.offload.calls import Answer, Call, answer_decoder, answer_of, call_decoder, encoder


def test_call_bytes() -> None:
    golden = bytes.fromhex("92") + b"\xa4read" + bytes.fromhex("93") + b"\xa4md.A" + b"\xcb" + bytes(8) + b"\xc3"
    assert encoder.encode(Call("read", ["md.A", 0.0, True])) == golden
    assert call_decoder.decode(golden) == Call("read", ["md.A", 0.0, True])


def test_answer_and_error_bytes() -> None:
    assert encoder.encode(Answer(["md.A"])) == bytes.fromhex("9691") + b"\xa4md.A" + b"\xa0" * 5
    golden = b"\x96\xc0" + b"\xa9not-found" + b"\xa4what" + b"\xa5where" + b"\xa4hint" + b"\xa0"
    error = answer_of(NotFoundError("what", where="where", hint="hint"))
    assert answer_decoder.decode(golden) == error
    assert answer_decoder.decode(encoder.encode(error)) == error
