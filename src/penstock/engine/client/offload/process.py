"""The offload process: `python -m penstock.engine.client.offload.process FD`, started by sources.py.

It serves one application, at the other end of the socket, and ends with it.
"""

import os
import signal
import socket
import sys

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import PenstockError, ProducerGoneError, RingClosedError
from penstock.base.segment import Segment
from penstock.engine.client.event_reader import EventReader
from penstock.engine.client.offload.calls import (
    ANSWER_SIZE_MAX,
    HELLO_FDS_MAX,
    HELLO_SIZE_MAX,
    RING_EVENTS,
    Answer,
    Start,
    answer_of,
    encoder,
    start_decoder,
)
from penstock.engine.client.offload.dispatch import CallDispatcher, events_dispatcher, records_dispatcher
from penstock.engine.client.record_reader import RecordsReader
from penstock.net.live.unix import Connection
from penstock.shm import RingReader, RingWriter

START_WAIT_NS = 10 * NS_PER_SECOND


def main(fd: int) -> None:
    # Ctrl-C is handled by the application, whose end also ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(socket.socket(fileno=fd))
    data, fds = connection.receive(HELLO_SIZE_MAX, HELLO_FDS_MAX, START_WAIT_NS)
    start: Start = start_decoder.decode(data)
    with Segment("ring", tuple(fds), connection) as calls:
        try:
            dispatcher, reader = _dispatcher(start)
        except PenstockError as error:
            connection.send(encoder.encode(answer_of(error)))
            return
        try:
            with RingWriter.create(RING_EVENTS * ANSWER_SIZE_MAX, ANSWER_SIZE_MAX) as answers:
                connection.send(encoder.encode(Answer(os.getpid())), answers.segment.fds)
                with RingReader(calls, wait=start.request.wait) as ring:
                    _serve(ring, dispatcher, answers)
        finally:
            reader.close()


def _dispatcher(start: Start) -> tuple[CallDispatcher, EventReader | RecordsReader]:
    if start.kind == "events":
        return events_dispatcher(start.request, start.queue_bytes)
    return records_dispatcher(start.request)


def _serve(ring: RingReader, dispatcher: CallDispatcher, answers: RingWriter) -> None:
    while True:
        try:
            call = ring.read()
        except (ProducerGoneError, RingClosedError):
            return
        if call is not None:
            answers.write(dispatcher.answer(call))


if __name__ == "__main__":
    main(int(sys.argv[1]))
