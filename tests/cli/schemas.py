"""Documents against the schemas of schema/, which refer to one another by file name."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

SCHEMAS = Path(__file__).resolve().parents[2] / "schema"


def load(name: str) -> dict:
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text())


def validator(name: str, part: str = ""):
    """Of a whole schema, or of one of its $defs. None: jsonschema is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer versions have another way, Debian's has this one
            from jsonschema import Draft202012Validator, RefResolver
    except ImportError:
        return None
    schema = {"$ref": f"{name}.schema.json#/$defs/{part}"} if part else load(name)
    store = {path.name: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Draft202012Validator(schema, resolver=RefResolver("", schema, store=store))


def faults(name: str, document: dict, part: str = "") -> list[str]:
    """What is wrong with the document, by place."""
    check = validator(name, part)
    assert check is not None, "python3-jsonschema is not installed"
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}"
            for error in check.iter_errors(document)]
