"""A live agent: everything of it in one process, from its configuration to its end.

    agent = LiveAgent(config)
    await agent.start()
    await agent.run(stop)

The core, its links (links.py) and the disk's requests (storing.py) are in the loop's thread; reading journals, tokens and
metrics have threads of their own.
"""

import asyncio
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from penstock.base.clock import SystemRandomness, random_bytes
from penstock.base.counters import Counters
from penstock.base.endpoint import Endpoint, Health
from penstock.base.errors import PenstockError, TokenExpiredError
from penstock.base.log import logger
from penstock.base.metrics import Metrics
from penstock.model import MessageModel
from penstock.model.library import shipped, shipped_names
from penstock.net.agent import CoreRunner, NodeLife
from penstock.net.config import TlsConfig
from penstock.net.secret import read_secret
from penstock.net.tls import client_context, server_context
from penstock.security.brokering import Revoked
from penstock.security.client import AdminClient
from penstock.security.own_token import OwnToken
from penstock.security.token_watch import TokenWatch
from penstock.tree.config import AgentConfig
from penstock.tree.core import DistributionAgent
from penstock.tree.desk import Desk, refusal_of
from penstock.tree.events import (
    Append,
    Became,
    CheckToken,
    Close,
    Connect,
    Define,
    DefineStream,
    Event,
    Informed,
    Instruction,
    ReadJournal,
    Renewed,
    Revoke,
    Start,
    Stop,
)
from penstock.tree.links import AgentLinks
from penstock.tree.persistence import StreamStore
from penstock.tree.status import AgentStatus, Happening, LinkStatus, StreamStatus, gauges_of, rows_of
from penstock.tree.storing import Storing

EXPIRY_CHECK_SECONDS = 0.5
PUBLISHERS_SECONDS = 10.0
STATUS_LINKS_MAX = 10_000
METRICS_LINKS_MAX = 512
HAPPENINGS_MAX = 200

log = logger("tree")
