"""As much of JSON Schema (2020-12) as the files in schema/ use; a keyword that is not known here raises."""

from __future__ import annotations

import re

_NOTES = {"$schema", "$id", "$defs", "title", "description", "then", "else"}
_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "number": (int, float), "integer": int,
          "null": type(None)}


def _is(value, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def faults(schema, value, root=None, where: str = "") -> list[str]:
    """What of `value` the schema does not allow, a line each; none when it is valid."""
    root = schema if root is None else root
    if isinstance(schema, bool):
        return [] if schema else [f"{where}: not allowed"]
    found: list[str] = []

    def say(keyword: str, arg) -> None:
        found.append(f"{where or '.'}: {keyword} {str(arg)[:80]}: {str(value)[:80]}")

    for keyword, arg in schema.items():
        if keyword in _NOTES:
            continue
        if keyword == "$ref":
            target = root
            for part in arg.removeprefix("#/").split("/"):
                target = target[part]
            found += faults(target, value, root, where)
        elif keyword == "type":
            if not any(_is(value, name) for name in ([arg] if isinstance(arg, str) else arg)):
                say(keyword, arg)
        elif keyword == "const":
            if value != arg:
                say(keyword, arg)
        elif keyword == "enum":
            if value not in arg:
                say(keyword, arg)
        elif keyword == "pattern":
            if isinstance(value, str) and not re.search(arg, value):
                say(keyword, arg)
        elif keyword in ("minimum", "maximum"):
            if isinstance(value, (int, float)) and (value < arg if keyword == "minimum" else value > arg):
                say(keyword, arg)
        elif keyword == "required":
            if isinstance(value, dict) and not set(arg) <= value.keys():
                say(keyword, sorted(set(arg) - value.keys()))
        elif keyword == "properties":
            for key in arg.keys() & value.keys() if isinstance(value, dict) else ():
                found += faults(arg[key], value[key], root, f"{where}.{key}")
        elif keyword == "additionalProperties":
            for key in value.keys() - schema.get("properties", {}).keys() if isinstance(value, dict) else ():
                found += faults(arg, value[key], root, f"{where}.{key}")
        elif keyword in ("maxProperties", "minProperties", "maxItems", "minItems", "minLength"):
            kind = {"Properties": dict, "Items": list, "Length": str}[keyword[3:]]
            if isinstance(value, kind) and (len(value) < arg if keyword.startswith("min") else len(value) > arg):
                say(keyword, arg)
        elif keyword == "not":
            if not faults(arg, value, root, where):
                say(keyword, arg)
        elif keyword == "items":
            for i, item in enumerate(value if isinstance(value, list) else ()):
                found += faults(arg, item, root, f"{where}[{i}]")
        elif keyword in ("oneOf", "anyOf"):
            good = sum(not faults(option, value, root, where) for option in arg)
            if good == 0 or (keyword == "oneOf" and good > 1):
                say(keyword, f"{good} of {len(arg)} hold")
        elif keyword == "if":
            branch = "then" if not faults(arg, value, root, where) else "else"
            found += faults(schema.get(branch, True), value, root, where)
        else:
            raise ValueError(f"{where}: the keyword {keyword} is not known here")
    return found
