"""A message whose model is unknown."""

cimport cython


@cython.freelist(64)
cdef class UnreadMessage:
    """A message whose model is unknown: its bytes and header."""

    model = None

    def __init__(self, message not None, seq, source) -> None:
        self.topic = message.topic
        self.seq = seq
        self.source = source
        self.model_id = message.model_id
        self.model_version = message.model_version
        self.payload = message.payload

    def __bytes__(self) -> bytes:
        return bytes(self.payload)

    def __repr__(self) -> str:
        return f"<UnreadMessage {self.topic} #{self.seq}, {len(self.payload)} bytes of model {self.model_id}>"
