"""The OpenAPI document, made from the table of operations and the classes of the documents."""

import re
from typing import Any

import msgspec

import penstock
from penstock.admin.core.operations import OPERATIONS, Operation
from penstock.security.core.brokering import ErrorDocument

REFERENCE = "#/components/schemas/{name}"


def document() -> dict[str, Any]:
    kinds = [each.request for each in OPERATIONS if each.request is not None]
    kinds += [each.answer for each in OPERATIONS if each.answer is not None]
    _, components = msgspec.json.schema_components([*dict.fromkeys(kinds), ErrorDocument], ref_template=REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock stream administration", "version": penstock.__version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"session": {"type": "http", "scheme": "bearer", "description": "From /v1/login."}},
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [*_path_parameters(operation), *_query_parameters(operation)],
        "responses": {
            "200": {"description": "Done.", "content": _content(operation.answer)},
            "default": {"description": "Refused, and why.", "content": _content(ErrorDocument)},
        },
    }
    if operation.request is not None:
        described["requestBody"] = {"required": True, "content": _content(operation.request)}
    if operation.roles is not None:
        described["security"] = [{"session": []}]
        described["description"] = (
            f"Needs one of the roles: {', '.join(sorted(operation.roles))}." if operation.roles else ""
        )
    return described


def _content(kind: Any) -> dict[str, Any]:
    schema = {"type": "null"} if kind is None else {"$ref": REFERENCE.format(name=kind.__name__)}
    return {"application/json": {"schema": schema}}


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", operation.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(operation: Operation) -> list[dict[str, Any]]:
    (schema,), components = msgspec.json.schema_components([operation.query], ref_template=REFERENCE)
    properties = components[schema["$ref"].rpartition("/")[2]]["properties"]
    return [{"name": name, "in": "query", "schema": each} for name, each in properties.items()]
