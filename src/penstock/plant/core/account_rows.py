"""The accounts of a plant node as rows of the models `engine_intake` and `engine_account`."""

from collections.abc import Iterable, Iterator

import msgspec

from penstock.engine.core.consumer_records import ConsumerDistributionRecord
from penstock.model import shipped
from penstock.plant.core.status import NodeKind
from penstock.runtime.accounts import Account

INTAKE, ACCOUNT = shipped("engine_intake"), shipped("engine_account")


class ConsumerAccount(msgspec.Struct, frozen=True):
    """Events that one consumer has been sent since it was attached."""

    record: ConsumerDistributionRecord
    attachment: int
    is_closed: bool = False


class IntakeCounts(msgspec.Struct, frozen=True):
    """Messages that the node has received."""

    updates: int
    items: int
    losses: int
    consumers: int


def account_rows(kind: NodeKind, intake: IntakeCounts, accounts: Iterable[ConsumerAccount]) -> Iterator[Account]:
    yield Account(INTAKE, "", {"kind": kind, **msgspec.structs.asdict(intake)}, is_repeated=True)
    for each in accounts:
        record = each.record
        for name, of_class in record.classes.items():
            fields = {
                "consumer": record.name,
                "destination": record.destination[: ACCOUNT.fields_by_name["destination"].size],
                "attachment": each.attachment,
                "overruns": record.overruns,
                "receipts": record.receipts,
                "items": record.items,
                "class_name": name,
                **msgspec.structs.asdict(of_class),
            }
            yield Account(ACCOUNT, (each.attachment, name), fields, each.is_closed, basis=record)
