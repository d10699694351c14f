"""Accounts that nodes have written down."""

from pathlib import Path

from penstock.capture import replay
from penstock.journal import JournalReader
from penstock.middleware import Deliver
from penstock.model import shipped, shipped_names


def recorded(path: Path) -> list[dict[str, object]]:
    with JournalReader.open(path) as journal:
        delivered = [answer for _, answer in replay(journal.read()) if isinstance(answer, Deliver)]
    models = {model.id: model for model in map(shipped, shipped_names())}
    return [
        {"model": models[message.model_id].name, **models[message.model_id].view(bytes(message.payload)).to_dict()}
        for answer in delivered
        for message in answer.messages
    ]
