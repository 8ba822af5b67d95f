"""Credentials, kept out of everything that is written or printed.

Whatever rayfl writes (configurations, journals, params, tags, tables) and whatever it says (errors,
warnings, tracebacks) goes through `mask_secrets`. A credential is

- in a URI, all up to the last @ before a blank: passwords may hold slashes, quotes and further @;
- in a URI, every value of its query and its fragment, but for a few settings that are known to be
  harmless, such as `region`: there are too many names for a token to know them all;
- whatever stands under a name such as `password`, `api_key` or `X-Amz-Signature`, however it is
  written: as a key of a mapping, and as `name=value` or `name: value` in a text.

It is better to hide too much: what is hidden is only shown, and never used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

STARS = "***"

_SECRET_NAME = re.compile(
    r"""secret | passw | passphrase | pwd | token | credential | signature | authori[sz]ation
    | api[_-]?key
    | (?:access|account|private|shared|storage|subscription)[_-]?key
    | (?<![a-z])(?:sig|auth)(?![a-z])""",
    re.VERBOSE | re.IGNORECASE,
)
"""The last two are words of their own: `sigma` is none."""
_HARMLESS = {
    "allow_bucket_creation",
    "allow_bucket_deletion",
    "buffer_size",
    "cache",
    "endpoint_override",
    "mode",
    "region",
    "replication",
    "scheme",
    "sslmode",
    "timeout",
}
"""Settings in the query of a URI that are shown."""
_HARMLESS_VALUE = re.compile(r"[A-Za-z0-9._:-]{0,64}")

# Bounded repetitions: a text may be a megabyte of anything.
_CREDENTIAL = re.compile(
    rf"""
    (?P<uri> [A-Za-z][A-Za-z0-9+.-]{{1,20}} :/{{1,2}} (?!/) )   # a path has more or no slashes
    (?P<rest> [^ \t\r\n\f\v]+ )
    |
    (?<![\w.-])
    (?= [\w.-]{{0,100}}? (?:{_SECRET_NAME.pattern}) )
    (?P<name> [\w.-]{{1,120}} ["']? [ \t]* =
            | [\w-]{{1,120}} ["']? [ \t]* : )
    (?P<gap> [ \t]* )
    (?: (?:bearer|basic|digest) [ \t]+ )?
    (?: (?P<quote>["']) (?: \\. | (?!(?P=quote)) [^\\] )* (?P=quote) | [^ \t\r\n\f\v]+ )""",
    re.VERBOSE | re.IGNORECASE,
)


def mask_secrets(value: Any) -> Any:
    """Values with the credentials in them replaced by stars.

    Parameters
    ----------
    value : object
        A text, or mappings and lists of texts, to any depth; anything else is returned as it is.
    """
    if isinstance(value, str):
        # Without one of these there is neither a URI nor a name of anything.
        may_have = ":" in value or "=" in value
        return _CREDENTIAL.sub(_mask_found, value) if may_have else value
    if isinstance(value, Mapping):
        return {mask_secrets(key): _mask_item(key, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mask_secrets(item) for item in value]
    return value


def is_secret_name(name: object) -> bool:
    """Whether what stands under a name is a credential."""
    return isinstance(name, str) and _SECRET_NAME.search(name) is not None


def describe_error(error: BaseException, uri: str = "") -> str:
    """The first line of what an error says, without credentials; its kind where it says nothing.

    Parameters
    ----------
    error : BaseException
        Anything that was raised.
    uri : str
        What it is about. Libraries take URIs apart, and then speak of a part that shows no more
        what it was: parts of this one's credentials are hidden as well.
    """
    said = str(mask_secrets(str(error)))
    for part in sorted(_list_parts(uri), key=len, reverse=True):
        said = said.replace(part, STARS)
    lines = said.strip().splitlines()
    return lines[0] if lines else type(error).__name__


# -- what was found --------------------------------------------------------------------------------


def _mask_item(name: object, item: Any) -> Any:
    """What stands under a name of a mapping."""
    if not is_secret_name(name):
        return mask_secrets(item)
    if isinstance(item, Mapping):
        return {mask_secrets(key): _mask_item(name, inner) for key, inner in item.items()}
    if isinstance(item, (list, tuple)):
        return [_mask_item(name, inner) for inner in item]
    # Whether there is one at all is no secret.
    return item if item is None or isinstance(item, bool) or item == "" else STARS


def _mask_found(found: re.Match[str]) -> str:
    if found["uri"] is None:
        quote = found["quote"] or ""
        return f"{found['name']}{found['gap']}{quote}{STARS}{quote}"
    user, at, place = _split_user(found["rest"])
    if "?" in user or "#" in user:
        # Of a query with an @ in it, or of a password with a question mark: nobody can tell.
        return f"{found['uri']}{STARS}"
    return f"{found['uri']}{STARS if user else ''}{at}{_mask_query(place)}"


def _split_user(word: str) -> tuple[str, str, str]:
    """User and password, the @, and what comes after it."""
    user, at, place = word.rpartition("@")
    if ":" in user:
        return user, at, place
    # A token alone ends before the path, in which there may be another @.
    host, slash, path = word.partition("/")
    user, at, place = host.rpartition("@")
    return user, at, f"{place}{slash}{path}"


def _mask_query(place: str) -> str:
    """A URI without its query's values."""
    path, *queries = re.split(r"([?#])", place)
    return path + "".join(
        part if part in ("?", "#") else re.sub(r"[^&;]+", _mask_setting, part) for part in queries
    )


def _mask_setting(found: re.Match[str]) -> str:
    name, equals, value = found[0].partition("=")
    if not equals:
        return STARS
    shown = name.lower() in _HARMLESS and _HARMLESS_VALUE.fullmatch(value)
    return found[0] if shown else f"{name}={STARS}"


def _list_parts(uri: str) -> Iterator[str]:
    """What a library may say of a URI's credentials, once it has taken it apart."""
    _, _, word = uri.partition("://")
    user, _, _ = _split_user(word)
    settings = [setting.partition("=") for setting in re.split(r"[?#&;]", word)[1:]]
    values = [value for name, _, value in settings if name.lower() not in _HARMLESS]
    for written in (user, user.partition(":")[2], *re.split(r"[:/@?#]", user), *values):
        yield from (part for part in (written, unquote(written)) if len(part) > 2)
