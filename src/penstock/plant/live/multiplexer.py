"""The update source of a connection multiplexer, which subscribes once to the upstream node for all its consumers."""

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.base.counters import Counters
from penstock.model import MessageModel
from penstock.net.secret import read_secret
from penstock.plant.config import AccessMode, MuxConfig
from penstock.plant.core.authority import Authority, OpenAuthority, UpstreamAuthority, UpstreamPerRequestAuthority
from penstock.plant.live.control_server import Sources
from penstock.plant.live.data_path import DataPath
from penstock.plant.live.upstream import Upstream
from penstock.runtime.node import Work
from penstock.security.live.own_token import OwnToken


class UpstreamSource:
    """Updates from the upstream node, from start() to close()."""

    def __init__(
        self,
        config: MuxConfig,
        data: DataPath,
        models: dict[int, MessageModel],
        counters: Counters,
        on_withdrawn: Callable[[str, str], None],
    ) -> None:
        above = config.upstream
        self.upstream = Upstream(
            config.name,
            (above.host, above.port),
            data,
            cls=above.cls,
            per_second=above.per_second,
            secret=read_secret(Path(above.secret_file)) if above.secret_file else None,
            tls=ssl.create_default_context(cafile=above.ca_file) if above.ca_file else None,
            counters=counters,
            on_withdrawn=on_withdrawn,
            known={model.id: model.version for model in models.values()},
            interface=above.interface,
        )
        self.authority = _authority(config.access, self.upstream)
        self.sources: Sources = self.upstream
        self._token = OwnToken(config.admin, above.topics) if config.admin.url else None

    @property
    def is_fed(self) -> bool:
        return self.upstream.link.attached.is_set()

    @property
    def tasks(self) -> Sequence[Work]:
        token, link = self._token, self.upstream.link
        return () if token is None else (lambda: token.keep(link.renew),)

    async def start(self) -> None:
        self.upstream.start()

    async def close(self) -> None:
        await self.upstream.close()

    def wanted(self, topics: Sequence[str]) -> None:
        self.upstream.wanted(topics)

    def unwanted(self, topics: Sequence[str]) -> None:
        self.upstream.unwanted(topics)


def _authority(access: AccessMode, upstream: Upstream) -> Authority:
    if access == "forward":
        return UpstreamAuthority(upstream)
    return UpstreamPerRequestAuthority(upstream) if access == "plant" else OpenAuthority()
