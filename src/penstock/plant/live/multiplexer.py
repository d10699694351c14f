"""A connection multiplexer: subscribes once to the upstream node for all its consumers."""

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.net.secret import Secret, read_secret
from penstock.plant.config import AccessMode, MuxConfig
from penstock.plant.core.authority import (
    Authority,
    LocalAuthority,
    OpenAuthority,
    UpstreamAuthority,
    UpstreamPerRequestAuthority,
)
from penstock.plant.core.status import NodeKind
from penstock.plant.live.control_server import Sources
from penstock.plant.live.driver import LiveNode
from penstock.plant.live.upstream import Upstream
from penstock.security.live.own_token import OwnToken


class LiveMux(LiveNode):
    """A connection multiplexer: subscribes once to the upstream node for all its consumers."""

    kind: NodeKind = "mux"

    def __init__(self, config: MuxConfig) -> None:
        self.config = config
        self._upstream: Upstream | None = None
        super().__init__(config)
        if config.admin.url:
            token = OwnToken(config.admin, config.upstream.topics)
            self.node.add_task(lambda: token.keep(self._above().link.renew))

    def _access_mode(self) -> AccessMode:
        return self.config.access

    def _authority(self) -> Authority:
        if self.node.tokens is not None:
            return LocalAuthority(self.node.tokens.gate.verify)
        modes: dict[AccessMode, Callable[[], Authority]] = {
            "open": OpenAuthority,
            "forward": lambda: UpstreamAuthority(self._above()),
            "plant": lambda: UpstreamPerRequestAuthority(self._above()),
        }
        return modes[self.config.access]()

    def _sources(self) -> Sources:
        return self._above()

    def _above(self) -> Upstream:
        if self._upstream is None:
            above = self.config.upstream
            tls = ssl.create_default_context(cafile=above.ca_file) if above.ca_file else None
            self._upstream = Upstream(
                self.config.name,
                (above.host, above.port),
                self._data,
                cls=above.cls,
                per_second=above.per_second,
                secret=self._upstream_secret(),
                tls=tls,
                counters=self.node.counters("plant.upstream"),
                on_withdrawn=self._server_revoke,
                known={model.id: model.version for model in self._models.values()},
                interface=above.interface,
            )
        return self._upstream

    def _upstream_secret(self) -> Secret | None:
        path = self.config.upstream.secret_file
        return read_secret(Path(path)) if path else None

    def _server_revoke(self, subscription_id: str, reason: str) -> None:
        self._server.revoke(subscription_id, reason)

    def _is_fed(self) -> bool:
        return self._above().link.attached.is_set()

    async def _begin(self) -> None:
        self._above().start()

    async def _finish(self) -> None:
        await self._above().close()

    def wanted(self, topics: Sequence[str]) -> None:
        self._above().wanted(topics)

    def unwanted(self, topics: Sequence[str]) -> None:
        self._above().unwanted(topics)
