"""Validation errors as sentences: the key's path, what is allowed, the value, and the nearest
spelling."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from rayfl.component import _Slot, show_value
from rayfl.errors import ConfigError, suggest_nearest
from rayfl.secrets import STARS, is_secret_name

UNKNOWN = {"extra_forbidden", "unexpected_keyword_argument"}
SHOWN = 8
LONGEST_PATH = 200
LONGEST_RULE = 1000


def explain_errors(
    error: ValidationError, model: type[BaseModel], settings: Any, where: str
) -> str:
    """All that is wrong with `settings`, a line each."""
    problems = error.errors(include_url=False)
    lines: dict[str, None] = {}
    done = 0
    # Of thousands of unknown keys only the first are looked up.
    while done < len(problems) and len(lines) < SHOWN:
        lines[phrase_problem(problems[done], model, settings)] = None
        done += 1
    more = [f"... and {len(problems) - done} more"] if done < len(problems) else []
    return "\n".join([f"{where}:", *(f"  {line}" for line in [*lines, *more])])


def phrase_problem(item: Mapping[str, Any], model: type[BaseModel], settings: Any) -> str:
    """One problem."""
    unknown = item["type"] in UNKNOWN
    # What the user wrote may look like a branch; it is always last.
    loc = [part for part in item["loc"][:-1] if not is_branch(part)]
    loc += [part for part in item["loc"][-1:] if unknown or not is_branch(part)]
    path = _shorten_path(".".join(str(part) for part in loc)) or "the configuration"
    if unknown:
        known = known_keys(model, settings, loc[:-1])
        hint = suggest_nearest(str(loc[-1]), known)
        if not hint and len(loc) == 1:
            hint = suggest_deeper(str(loc[-1]), model)
        return (
            f"{path} is not a known key. {hint} Known here: {', '.join(known) or 'none'}".replace(
                ".  ", ". "
            )
        )
    if item["type"] in {"missing", "missing_argument", "missing_keyword_only_argument"}:
        return f"{path} is required and missing"
    said = item["msg"].removeprefix("Value error, ").removeprefix("Input should ")
    # A component's own rule may quote what was written.
    rule = said if len(said) <= LONGEST_RULE else f"{said[:LONGEST_RULE]}..."
    hint = (
        suggest_nearest(item["input"], list_choices(item)) if isinstance(item["input"], str) else ""
    )
    shown = STARS if is_secret_name(path) else show_value(item["input"])
    got = "" if names_value(rule, item["input"]) else f"; got {shown}"
    return f"{path}: {phrase_rule(rule)}{got}. {hint}".rstrip(" .")


def suggest_deeper(word: str, model: type[BaseModel]) -> str:
    """The setting of a section that may be meant by a key at the top: `training.rounds` by
    `rounds`."""
    places = {}
    for name in model.model_fields:
        for inner in known_keys(model, {}, [name]):
            places[inner] = f"{name}.{inner}"
    close = get_close_matches(word, places, n=1, cutoff=0.7)
    return f"Did you mean '{places[close[0]]}'?" if close else ""


def _shorten_path(path: str) -> str:
    """A key's path; keys of anybody's may be of any length."""
    return path if len(path) <= LONGEST_PATH else f"{path[:LONGEST_PATH]}..."


def names_value(rule: str, value: Any) -> bool:
    """Whether a rule names the offending value itself."""
    name = value.get("name") if isinstance(value, Mapping) else value
    return "; got " in rule or (isinstance(name, str) and f"'{name}'" in rule)


def phrase_rule(rule: str) -> str:
    """`be greater than 0` as `must be greater than 0`."""
    return f"must {rule}" if rule.startswith(("be ", "have ", "match ")) else rule


def list_choices(item: Mapping[str, Any]) -> list[str]:
    """The literals that would have been allowed."""
    expected = str(item.get("ctx", {}).get("expected", ""))
    return expected.replace(" or ", ", ").replace("'", "").split(", ")


def is_branch(part: Any) -> bool:
    """Whether a step of an error's path names a branch of a union (`constrained-int`, `Class`), not
    a key."""
    return (
        isinstance(part, str)
        and (part[:1].isupper() or any(mark in part for mark in "[-("))
        and " " not in part
    )


def known_keys(model: type[Any], settings: Any, loc: Sequence[Any]) -> list[str]:
    """The keys that may stand at a path of the configuration."""
    here: Any = model
    for part in loc:
        settings = settings.get(part) if isinstance(settings, Mapping) else None
        here = find_child(here, part, settings)
    return sorted(list_fields(here))


def find_child(owner: Any, part: Any, settings: Any) -> Any:
    """The class of a field, where it has keys of its own; a slot's is the component that the
    settings name."""
    if (
        not (isinstance(owner, type) and issubclass(owner, BaseModel))
        or part not in owner.model_fields
    ):
        return find_component(owner, part, settings)
    field = owner.model_fields[part]
    found = next((meta for meta in field.metadata if isinstance(meta, _Slot)), None)
    if found is not None:
        return resolve_component(found, settings)
    kinds = (field.annotation, *get_args(field.annotation))
    return next(
        (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None
    )


def find_component(owner: Any, part: Any, settings: Any) -> Any:
    """The same for a field of a component, whose slots hide in the annotation."""
    annotation = getattr(owner, "__annotations__", {}).get(part)
    metadata: Iterable[Any] = getattr(annotation, "__metadata__", ())
    found = next((meta for meta in metadata if isinstance(meta, _Slot)), None)
    return None if found is None else resolve_component(found, settings)


def resolve_component(found: _Slot, settings: Any) -> Any:
    name = settings.get("name") if isinstance(settings, Mapping) else settings
    try:
        return found.registry.find(name) if isinstance(name, str) else None
    except ConfigError:
        return None


def list_fields(owner: Any) -> list[str]:
    if isinstance(owner, type) and issubclass(owner, BaseModel):
        return list(owner.model_fields)
    if dataclasses.is_dataclass(owner):
        return [field.name for field in dataclasses.fields(owner)]
    return []
