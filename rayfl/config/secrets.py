"""Credentials, kept out of everything that is written or printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

STARS = "***"
_USER = re.compile(
    r"""(?<=://)(?!/)           # a URI with a host: paths as in sqlite:////tmp/a@b have none
    (?: [^\s'"]*:[^\s'"]*       # user:password, up to the last @: passwords hold slashes and @, too
      | [^\s'"/]* )             # a token alone, which ends before the path
    (?=@)""",
    re.VERBOSE,
)
_QUERY = re.compile(
    r"""(?<=[?&;])
    ([^\s'"=&;]*(?:secret|token|passw|pwd|key|sig|credential|auth)[^\s'"=&;]*=)
    [^\s'"&;]+""",
    re.VERBOSE | re.IGNORECASE,
)


def mask_secrets(value: Any) -> Any:
    """Values with the credentials inside URIs replaced by stars.

    Parameters
    ----------
    value : object
        A text, or mappings and lists of texts, to any depth; anything else is returned as it is.
    """
    if isinstance(value, str):
        return _QUERY.sub(rf"\1{STARS}", _USER.sub(STARS, value))
    if isinstance(value, Mapping):
        return {key: mask_secrets(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mask_secrets(item) for item in value]
    return value
