"""The OpenAPI document as a page for people: one file of HTML without scripts, fonts or anything from elsewhere. Served
by app/routes/docs.py.
"""

from __future__ import annotations

from html import escape
from typing import Any

import msgspec

Json = dict[str, Any]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
code { font-family: ui-monospace, monospace; } h2 { margin-top: 2.5rem; border-top: 1px solid #8886; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .2rem .8rem .2rem 0;
vertical-align: top; border-bottom: 1px solid #8883; } .required { font-weight: bold; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd; } a { color: #8cf; } }
"""


def docs_page(document: Json) -> str:
    """The whole page. Every text of the document is escaped."""
    info = document["info"]
    schemas = document["components"]["schemas"]
    base = document.get("servers", [{"url": ""}])[0]["url"]
    operations = [
        (base + path, method, op) for path, methods in document["paths"].items() for method, op in methods.items()
    ]
    title = f"{info['title']} {info['version']}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><h1>{escape(title)}</h1>"
        f'<p>{escape(info["summary"])} The same as data: <a href="openapi.json">openapi.json</a>.</p>'
        + "".join(_operation(path, method, op) for path, method, op in operations)
        + "<h1>Schemas</h1>"
        + "".join(_schema(name, schema) for name, schema in sorted(schemas.items()))
        + "</html>"
    )


def _operation(path: str, method: str, operation: Json) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    rows = "".join(
        _row(status, escape(response["description"]), ", ".join(_content(response.get("content", {}))))
        for status, response in operation["responses"].items()
    )
    asked = "".join(
        _row(f"<code>{escape(each['name'])}</code>", escape(each["in"]), _kind(each["schema"]))
        for each in operation.get("parameters", [])
    )
    return (
        f'<h2 id="{escape(operation["operationId"])}"><code>{method.upper()} {escape(path)}</code></h2>'
        f"<p>{escape(operation['summary'])}</p>"
        + (f"<table>{asked}</table>" if asked else "")
        + (f"<p>Body: {_kind(body)}</p>" if body else "")
        + f"<table>{rows}</table>"
    )


def _content(content: Json) -> list[str]:
    return [f"{escape(kind)}: {_kind(each['schema'])}" for kind, each in content.items()]


def _schema(name: str, schema: Json) -> str:
    required = schema.get("required", [])
    rows = "".join(
        _row(
            f'<code class="{"required" if field in required else ""}">{escape(field)}</code>',
            _kind(kind),
            "required" if field in required else "",
        )
        for field, kind in schema.get("properties", {}).items()
    )
    about = f"<p>{escape(schema['description'])}</p>" if "description" in schema else ""
    return f'<h2 id="{escape(name)}">{escape(name)}</h2>{about}<table>{rows}</table>'


def _row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


_TOLD = ("minimum", "exclusiveMinimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "enum", "const")


def _kind(schema: Json) -> str:
    """A schema in a few words, with links to the structs in it."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if schema.get("type") == "array" and schema.get("items"):
        found = f"list of ({_kind(schema['items'])})"
    else:
        found = escape(str(schema.get("type", "any")))
    bounds = [_bound(keyword, schema[keyword]) for keyword in _TOLD if keyword in schema]
    return found + (f" ({escape(', '.join(bounds))})" if bounds else "")


def _bound(keyword: str, value: object) -> str:
    """With its values as JSON has them."""
    if isinstance(value, list):
        return "one of " + ", ".join(msgspec.json.encode(each).decode() for each in value)
    return f"{keyword} {msgspec.json.encode(value).decode()}"
