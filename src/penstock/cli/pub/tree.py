"""`penstock pub --agent`: publishing on a distribution tree."""

import sys
from contextlib import ExitStack

from penstock.base.errors import ConfigurationError
from penstock.cli.common.secrets import given_secret
from penstock.cli.pub.options import PubOptions
from penstock.client import connect
from penstock.middleware import OutgoingBatch
from penstock.model import Message
from penstock.net.guard import Guard
from penstock.tree.client import StreamPublisher, open_publisher

FLUSH_SECONDS = 10.0


def opened_publisher(stack: ExitStack, agents: tuple[str, ...], options: PubOptions) -> StreamPublisher:
    """Open the publisher; it is flushed when the stack ends."""
    agent, *alternates = agents
    name, secret = options.name or "", given_secret(options.secret)
    if options.connect is None:
        publisher = open_publisher(
            agent, alternates=tuple(alternates), name=name, tree=options.tree, guard=Guard(secret)
        )
    elif options.credentials is None:
        raise ConfigurationError("--connect needs --credentials", hint="a file made by `penstock admin client`")
    else:
        client = stack.enter_context(connect(options.connect, credentials=options.credentials, secret=secret))
        publisher = client.stream_publisher(agent=agents, name=name, tree=options.tree)
    return stack.enter_context(publisher)


class TreeOutput:
    """A publisher of a tree, used like one of a channel."""

    def __init__(self, publisher: StreamPublisher) -> None:
        self._publisher = publisher
        self._count = 0

    def publish(self, topic: str, payload: bytes | Message) -> None:
        self._publisher.publish(topic, payload)
        self._count += 1

    def publish_batch(self, batch: OutgoingBatch) -> None:
        topics, payloads = bytes(batch.topic_data), batch.payloads.tobytes()
        for row in batch.rows:
            topic_at, payload_at = int(row["topic_offset"]), int(row["payload_offset"])
            self._publisher.publish(
                topics[topic_at : topic_at + int(row["topic_size"])].decode(),
                payloads[payload_at : payload_at + int(row["payload_size"])],
                model_id=int(row["model_id"]),
                model_version=int(row["model_version"]),
            )
            self._count += 1

    def conclude(self) -> None:
        """Wait until the root has stored everything, and report it."""
        is_kept = self._publisher.flush(FLUSH_SECONDS)
        rest = "" if is_kept else f"; the root stored {self._publisher.accepted:,} of them and does not answer"
        sys.stderr.write(f"{self._count:,} messages published{rest}\n")
