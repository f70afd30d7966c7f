"""The reference of the custom resources as Markdown, from the same source. `python -m headrace_operator.reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from headrace_operator.crds import crds
from headrace_operator.schema import Json


def _kind(schema: Json) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "number or text"
    if schema["type"] == "array":
        return f"list of {_kind(schema['items'])}"
    return {"object": "object", "string": "text", "integer": "number", "boolean": "true or false"}[schema["type"]]


def _allowed(schema: Json) -> str:
    parts = []
    if "enum" in schema:
        parts.append("one of " + ", ".join(f"`{value}`" for value in schema["enum"]))
    if "minimum" in schema:
        parts.append(f"from {schema['minimum']} to {schema['maximum']}")
    for each in (schema, schema.get("items", {})):
        parts += [rule["message"] for rule in each.get("x-kubernetes-validations", [])]
    return "; ".join(parts)


def _rows(schema: Json, prefix: str) -> Iterator[str]:
    for name, each in schema.get("properties", {}).items():
        where = f"{prefix}.{name}"
        default = each.get("default")
        shown = "" if default in (None, {}, []) else f"`{default}`"
        must = " (required)" if name in schema.get("required", []) else ""
        yield f"| `{where}` | {_kind(each)}{must} | {shown} | {each.get('description', '')} | {_allowed(each)} |"
        inner = each["items"] if each["type"] == "array" else each
        if "description" in inner or each["type"] == "object":
            yield from _rows(inner, where + ("[]" if each["type"] == "array" else ""))


def reference() -> str:
    """The whole page."""
    lines = ["# Custom resources", "", "Written by `python -m headrace_operator.reference`.", ""]
    for crd in crds():
        names, (version,) = crd["spec"]["names"], crd["spec"]["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        lines += [f"## {names['kind']} (`kubectl get {names['shortNames'][0]}`)", "", schema["description"], ""]
        for part in ("spec", "status"):
            lines += [
                f"### {part}",
                "",
                "| field | what | default | meaning | rules |",
                "| --- | --- | --- | --- | --- |",
            ]
            lines += [*_rows(schema["properties"][part], part), ""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Prints it."""
    sys.stdout.write(reference())


if __name__ == "__main__":
    main()
