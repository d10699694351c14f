"""The message models of the server: those shipped with Penstock and those of a directory."""

import hashlib
from pathlib import Path

import msgspec

from penstock.base.errors import ConfigurationError, NotFoundError
from penstock.model import MessageModel, shipped, shipped_names
from penstock.model.library import DIRECTORY
from penstock.security.core.brokering import ModelDocument, ModelReference


class ModelCatalogue:
    """Models by id and version. The server refuses to start with a version that programs of an older version cannot
    read."""

    def __init__(self, directory: Path | None = None) -> None:
        self._documents: dict[tuple[int, int], ModelDocument] = {}
        models: dict[tuple[int, int], tuple[MessageModel, Path]] = {}
        own = [(shipped(name), DIRECTORY / f"{name}.toml") for name in shipped_names()]
        for model, path in [*own, *((MessageModel.load(path), path) for path in _documents_in(directory))]:
            place = model.id, model.version
            if place in models:
                raise ConfigurationError(
                    f"is model {model.id} version {model.version}, as {models[place][1].name} is", where=str(path)
                )
            models[place] = model, path
            self._documents[place] = ModelDocument(id=model.id, version=model.version, name=model.name, text=model.text)
        for (number, version), (model, path) in models.items():
            for older in (each for (other, v), (each, _) in models.items() if other == number and v < version):
                problems = model.incompatibilities(older)
                if problems:
                    raise ConfigurationError(
                        f"cannot be read by programs that know version {older.version}: {problems[0]}", where=str(path)
                    )

    def references(self) -> list[ModelReference]:
        documents = sorted(self._documents.values(), key=lambda each: (each.id, each.version))
        return [ModelReference(id=each.id, version=each.version, name=each.name) for each in documents]

    def get(self, model_id: int, version: int | None) -> tuple[ModelDocument, str]:
        """Return a model's document and its ETag; the newest version by default."""
        versions = [number for other, number in self._documents if other == model_id]
        wanted = version if version is not None else max(versions, default=0)
        document = self._documents.get((model_id, wanted))
        if document is None:
            known = f"there are versions {sorted(versions)}" if versions else "this server does not have it"
            raise NotFoundError(f"there is no model {model_id} of this version", hint=known)
        digest = hashlib.sha256(msgspec.json.encode(document)).hexdigest()[:32]
        return document, f'"{digest}"'


def _documents_in(directory: Path | None) -> list[Path]:
    if directory is None:
        return []
    if not directory.is_dir():
        raise ConfigurationError("is not a directory of models", where=str(directory))
    return sorted(directory.glob("*.toml"))
