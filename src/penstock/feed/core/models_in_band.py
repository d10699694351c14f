"""Message models in the stream of their messages: all models at the start, then each again at intervals.

After the start, models are sent one at a time, so that they delay the data little. They have no ORIGIN and no number in
a source stream: active and backup adapters each send them, and their application messages still have equal numbers.
"""

from collections.abc import Sequence

from penstock.base.errors import ConfigurationError
from penstock.base.limits import MODEL_IN_BAND_SIZE_MAX
from penstock.middleware.core.events import OutgoingMessage
from penstock.middleware.core.reserved_topics import MODEL_TOPIC
from penstock.model import MessageModel


class ModelsInBand:
    """The schedule of the models. `messages` has all of them, for streams that begin with the models."""

    def __init__(self, models: Sequence[MessageModel] = (), interval_ns: int = 0) -> None:
        self.messages = tuple(_message_of(model) for model in models)
        self._pause_ns = interval_ns // max(1, len(models))
        self._due_ns: int | None = None
        self._next = 0

    def due(self, now_ns: int) -> tuple[OutgoingMessage, ...]:
        """Return the models to send now. A late model is sent only once."""
        if not self.messages or (self._due_ns is not None and now_ns < self._due_ns):
            return ()
        is_head, self._due_ns = self._due_ns is None, now_ns + self._pause_ns
        if is_head:
            return self.messages
        message = self.messages[self._next]
        self._next = (self._next + 1) % len(self.messages)
        return (message,)

    def next_deadline_ns(self) -> int | None:
        """None before the start of the stream, and without models."""
        return self._due_ns


def _message_of(model: MessageModel) -> OutgoingMessage:
    content = model.text.encode()
    if len(content) > MODEL_IN_BAND_SIZE_MAX:
        raise ConfigurationError(
            f"the document of model {model.name!r} has {len(content)} bytes, the limit is {MODEL_IN_BAND_SIZE_MAX} "
            "in band",
            where="publish.models_in_band",
            hint="remove its comments, or let clients request models from the administration server",
        )
    return OutgoingMessage(MODEL_TOPIC, content)
