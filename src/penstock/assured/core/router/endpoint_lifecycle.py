"""Creation and deletion of endpoints: from the configuration at the start, later on request of operators and
applications."""

from typing import TypeAlias

import msgspec
import numpy

from penstock.assured.config import DEAD, MIB, EndpointConfig
from penstock.assured.core.router._messages import empty_endpoint, endpoint_ids
from penstock.assured.core.router._settling import log_settled
from penstock.assured.core.router._tables import Tables
from penstock.assured.core.router.endpoints import Definition, Endpoint, Endpoints, ReplayState
from penstock.assured.core.router.events import Instruction, Noted, SendMessage
from penstock.assured.core.router.links import Link, Links, RefusedRequest
from penstock.assured.core.router.transactions import Transactions
from penstock.assured.wire.control import AlterEndpoint, CreateEndpoint, DeleteEndpoint, EmptyEndpoint, FlowEnded
from penstock.base.errors import LimitError

Change: TypeAlias = CreateEndpoint | AlterEndpoint | DeleteEndpoint | EmptyEndpoint

DEFINITION_SIZE_MAX = MIB
"""Maximum size of its JSON, which is one record of the log."""

CONDITION_SIZE_MAX = 4_096
MODELS = "the router knows the shipped models and those of its setting `models`"


class EndpointLifecycle:
    def __init__(self, tables: Tables, endpoints: Endpoints, links: Links, transactions: Transactions) -> None:
        self._tables = tables
        self._endpoints = endpoints
        self._links = links
        self._transactions = transactions
        self.is_mirrored = False
        """True if a standby takes over the active router's definitions."""

    def endpoint(self, name: str) -> Endpoint:
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            raise RefusedRequest("unknown_endpoint", f"there is no endpoint {name!r}")
        return endpoint

    def define_configured(self, configs: list[EndpointConfig]) -> list[Instruction]:
        """Define the endpoints of the router's own configuration, each after its dead-letter endpoint."""
        if self._endpoints.get(DEAD.name) is None and all(each.name != DEAD.name for each in configs):
            configs.insert(0, DEAD)
        found: list[Instruction] = []
        while configs:
            waiting = {each.name for each in configs}
            config = next((each for each in configs if each.dead_to not in waiting), configs[0])
            configs.remove(config)
            known = self._endpoints.get(config.name)
            where = self._impossible(config)
            if known is None or known.config != config:
                found += self._define(config)
            if where:
                found.append(
                    Noted("never_met", {"endpoint": config.name, "where": where, "hint": MODELS}, is_trouble=True)
                )
        return found

    def check_standby(self, link: Link, request: object) -> None:
        """Allow a standby only requests for endpoints that are configured by hand at both routers."""
        if self.is_mirrored or not link.is_operator or not isinstance(request, Change):
            raise RefusedRequest("not_active", "this router is the standby")

    def change(self, link: Link, request: Change, trouble: str) -> list[Instruction]:
        """Change an endpoint on request. `trouble` is the state of the disk."""
        if not link.may_define:
            raise RefusedRequest("not_entitled", "only operators may define endpoints")
        if trouble:
            raise RefusedRequest("disk", trouble)
        match request:
            case CreateEndpoint(_, config, from_id, from_time_ns):
                self._refuse_impossible(config)
                return self._create(config, from_id, from_time_ns)
            case AlterEndpoint(_, config):
                self.endpoint(config.name)
                self._refuse_impossible(config)
                return self._define(config)
            case DeleteEndpoint(_, name, is_forced):
                return self._delete(self.endpoint(name), is_forced)
            case EmptyEndpoint(_, name):
                return self._empty(self.endpoint(name))

    def _impossible(self, config: EndpointConfig) -> str:
        """Return a condition that matches no message; empty if there is none."""
        _check(config)
        return next((want.where for want in config.wants if not self._endpoints.matcher.can_hold(want.where)), "")

    def _refuse_impossible(self, config: EndpointConfig) -> None:
        if where := self._impossible(config):
            raise RefusedRequest(
                "malformed", f"no model that this router knows has the fields of {where!r}", hint=MODELS
            )

    def _create(self, config: EndpointConfig, from_id: int, from_time_ns: int) -> list[Instruction]:
        known = self._endpoints.get(config.name)
        if known is None:
            if not (from_id or from_time_ns):
                return self._define(config)
            return self._define(config, ReplayState(from_id, from_time_ns, live_from=self._tables.next_id))
        if known.config != config:
            raise RefusedRequest(
                "endpoint_exists", f"endpoint {config.name} exists with another configuration", hint="alter it"
            )
        return []

    def _define(self, config: EndpointConfig, replay: ReplayState | None = None) -> list[Instruction]:
        known = self._endpoints.get(config.name)
        own_through = self._endpoints.own_through_as(config)
        endpoint = self._endpoints.put(Definition(config, known.definition.replay if known else replay, own_through))
        self._endpoints.log(endpoint)
        return [Noted("defined", {"endpoint": config.name})]

    def _empty(self, endpoint: Endpoint) -> list[Instruction]:
        log_settled(self._tables, endpoint.number, numpy.sort(endpoint_ids(self._tables, endpoint.number)))
        count = empty_endpoint(self._tables, endpoint.number)
        return [Noted("emptied", {"endpoint": endpoint.name, "messages": count})]

    def _delete(self, endpoint: Endpoint, is_forced: bool) -> list[Instruction]:
        name = endpoint.name
        if others := self._endpoints.takes_dead_of(endpoint):
            raise RefusedRequest("endpoint_in_use", f"{name} is the dead-letter endpoint of {', '.join(others[:5])}")
        flows = self._links.flows_of(endpoint)
        if flows and not is_forced:
            raise RefusedRequest("endpoint_in_use", f"{name} has {len(flows)} flows", hint="close them, or force it")
        found: list[Instruction] = []
        for handle, number in flows:
            owner = self._links.get(number)
            if owner is not None:
                self._transactions.flow_closed(owner, handle)
                self._links.close_flow(owner, handle)
                found.append(SendMessage(number, FlowEnded(handle, "unknown_endpoint", f"{name} was deleted")))
        self._endpoints.log(endpoint, is_deleted=True)
        self._endpoints.remove(endpoint)
        return [*found, Noted("deleted", {"endpoint": name})]


def _check(config: EndpointConfig) -> None:
    """Check the configuration before anything changes."""
    size = len(msgspec.json.encode(config))
    if size > DEFINITION_SIZE_MAX:
        raise LimitError(f"a definition of {size} bytes", hint=f"at most {DEFINITION_SIZE_MAX}")
    for want in config.wants:
        if len(want.where) > CONDITION_SIZE_MAX:
            raise LimitError(f"a condition of {len(want.where)} characters", hint=f"at most {CONDITION_SIZE_MAX}")
        if want.where:
            from penstock.topics.expression import check_expression  # its parser is slow to import

            check_expression(want.where)
