"""An agent of a tree with the feeds that a root publishes."""

import ssl
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.base.config import load_toml
from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError, PenstockError
from penstock.base.log import logger
from penstock.client.feeding import Content, SubscribedFeed
from penstock.middleware.core.events import SessionEvent
from penstock.middleware.core.reserved_topics import SESSION_TOPIC
from penstock.net.guard import Guard
from penstock.net.place import is_loopback, parse_place
from penstock.net.secret import read_secret
from penstock.node.plant import Plant
from penstock.runtime.node import in_thread
from penstock.tree.client import StreamPublisher, open_publisher
from penstock.tree.config import AgentConfig
from penstock.tree.live.driver import LiveAgent
from penstock.wire import encode_extensions

log = logger("node.agents")


def live_agent(config: AgentConfig) -> LiveAgent:
    """Create an agent; a root also gets the feeds that it publishes, as a part of its node."""
    agent = LiveAgent(config)
    if config.subscribe:
        feed = RootFeed(agent)
        agent.node.add("feed", start=feed.start, close=in_thread(feed.stop))
    return agent


def load_again(path: Path, name: str | None) -> AgentConfig:
    """Load the agent's own document, or its part of a plant's document, again."""
    if name is None:
        return load_toml(path, AgentConfig)
    found = Plant.load(path).node(name)
    if not isinstance(found, AgentConfig):
        raise ConfigurationError(f"{name} is no longer an agent", where=str(path))
    return found


def reload(agent: LiveAgent, load: Callable[[], AgentConfig]) -> None:
    """Apply a changed configuration. An unusable one is logged, and the current one stays in use."""
    try:
        agent.reload(load())
    except PenstockError as error:
        log.error("configuration_refused", code=error.code, what=str(error))
    else:
        log.info("configuration_changed", agent=agent.config.name)


def own_address(agent: LiveAgent) -> tuple[str, Guard]:
    """Return the address of the agent for links within its process, and the protection of these links: the agent's
    secret, and only its own certificate."""
    access = agent.config.control
    is_any = access.host in ("0.0.0.0", "::") and not access.advertised
    place = f"127.0.0.1:{agent.control_port}" if is_any else agent.place
    secret = read_secret(Path(access.secret_file)) if access.secret_file else None
    if access.tls is None:
        return place, Guard(secret)
    context = ssl.create_default_context(cafile=access.tls.certificate)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = not is_loopback(parse_place(place)[0])
    return place, Guard(secret, context, is_needed_here=True)


class RootFeed:
    """Publishes messages of the plant's feeds on the tree of this process's agent."""

    def __init__(self, agent: LiveAgent) -> None:
        config = agent.config
        self._agent = agent
        self._publisher: StreamPublisher | None = None
        self._counters = Counters("tree.feed", node=config.name)
        self._feed = SubscribedFeed(config.admin, config.subscribe, self, self._counters, image=False)

    def start(self) -> None:
        self._feed.start()

    def stop(self) -> None:
        self._feed.stop()
        if self._publisher is not None:
            self._publisher.close()

    # The feed's thread

    def take(self, content: Content, feed: str = "") -> None:
        publisher = self._open()
        for message in content:
            try:
                publisher.publish(
                    message.topic,
                    bytes(message.payload),
                    model_id=message.model_id,
                    model_version=message.model_version,
                    extensions=encode_extensions(message.extensions),
                )
            except PenstockError as error:
                self._counters.add("messages_dropped", cause=error.code)
                log.warning("message_not_published", topic=message.topic, code=error.code, error=str(error))

    def session(self, event: SessionEvent) -> None:
        """Publish the session event in every stream that has messages of the feed, after the messages so far. A session
        that was already running when the root joined may have begun while no root was running."""
        try:
            publisher, body = self._open(), msgspec.json.encode(event)
            streams = publisher.streams_with(SESSION_TOPIC)
            if event.kind == "running" and not streams:  # the tree has no messages of an earlier session
                return
            for stream in streams or [0]:
                publisher.publish(SESSION_TOPIC, body, stream=stream)
        except PenstockError as error:
            self._counters.add("messages_dropped", cause=error.code)
            log.warning("message_not_published", topic=SESSION_TOPIC, code=error.code, error=str(error))

    def lose(self) -> None:
        """Losses of a feed are counted by the feed; the tree cannot repair them."""

    def _open(self) -> StreamPublisher:
        if self._publisher is None or self._publisher.is_over:
            agent = self._agent
            place, guard = own_address(agent)
            self._publisher = open_publisher(
                place,
                name=f"{agent.config.name}-feed",
                tree=agent.config.tree,
                token=agent.own_token,
                guard=guard,
            )
        return self._publisher
