"""What a Ray of our own is started with: it listens to this machine alone, and to whoever has its
token. And what a connection to another one needs that the shell does not say."""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from rayfl.errors import ResourceError, broken
from rayfl.fleet.on_ray.answering import LOOPBACK, keeps_to_loopback
from rayfl.secrets import mask_secrets

log = logging.getLogger("rayfl")

EVERY_INTERFACE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's name for whether its processes listen to other machines; its own default on Linux: yes."""
AUTH_MODE = "RAY_AUTH_MODE"
AUTH_TOKEN = "RAY_AUTH_TOKEN"
AUTH_TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
FASTER_START = {
    # Its first try to reach the store, which it has just started, comes too early; the second one,
    # in a second.
    "RAY_raylet_client_connect_timeout_milliseconds": "20",
    "RAY_raylet_client_num_connect_attempts": "500",
}


def is_own(address: str | None) -> bool:
    """Whether a Ray of our own is to be started, not one that is there to be joined."""
    return (address or os.environ.get("RAY_ADDRESS") or "local") == "local"


@contextmanager
def own_settings() -> Iterator[None]:
    """The environment of a Ray of our own, from before its start to after its end.

    What a user has set stays as it is."""
    wanted = {**FASTER_START, EVERY_INTERFACE: "0", **(_known_token() or _fresh_token())}
    with _added_to_environment(wanted), _processes_of_their_own_session():
        yield


@contextmanager
def cluster_settings(address: str) -> Iterator[None]:
    """The environment of a connection to a Ray that is there: the shell's, but for a head that
    listens to this machine alone, of which its address says enough."""
    # Elsewhere a token that nobody asked for would hide that a cluster's doors are open.
    alone = keeps_to_loopback(address)
    with _added_to_environment({EVERY_INTERFACE: "0", **_known_token()} if alone else {}):
        yield


@contextmanager
def _added_to_environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Processes that Ray starts inherit the environment; this one may have imported Ray before,
    which reads some of it only then, so that it is told again."""
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    constants: Any = import_module("ray._private.ray_constants")
    before = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    if EVERY_INTERFACE in added:
        constants.ENABLE_RAY_CLUSTER = False
    _read_environment_again()
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
        constants.ENABLE_RAY_CLUSTER = before
        _read_environment_again()


@contextmanager
def _processes_of_their_own_session() -> Iterator[None]:
    """A signal to our group, of a terminal's or of `timeout`, is for us alone: Ray's processes are
    needed for the last checkpoint. On Linux they end with us all the same, however we end."""
    services: Any = import_module("ray._private.services")
    before = getattr(services, "ConsolePopen", None)
    if before is None or sys.platform != "linux":
        yield
        return
    services.ConsolePopen = partial(before, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = before


def hide_command_line() -> None:
    """Take credentials out of this process's title.

    Ray notes the command line of whoever connects to it: on the disk, on its dashboard, and in what
    it tells of its jobs."""
    shown = [str(mask_secrets(word)) for word in sys.orig_argv]
    if shown == sys.orig_argv:
        return
    with suppress(ImportError, AttributeError):
        raylet: Any = import_module("ray._raylet")
        raylet.setproctitle(shlex.join(shown))


def refuse_other_machines() -> None:
    """A Ray of our own that came to listen to other machines, though nobody asked for it, is not
    used."""
    import ray

    host = str(ray.util.get_node_ip_address())
    if host.startswith(LOOPBACK) or os.environ.get(EVERY_INTERFACE) != "0":
        return
    rule = "a Ray of our own listens to this machine alone"
    remedy = f"This version of Ray ({ray.__version__}) does not: use another one, or --address."
    raise ResourceError(broken(rule, f"one at {host}", remedy))


def warn_of_old_ray() -> None:
    """Say so where this version of Ray cannot ask for a token, though nobody has waived it."""
    import ray

    if asks_for_token() or os.environ.get(AUTH_MODE, "token").lower() != "token":
        return
    log.warning(
        "Ray %s knows no tokens (2.52 and newer do): whoever has an account on this machine "
        "can run code in this run",
        ray.__version__,
    )


def warn_of_open_door(place: str) -> None:
    """Say so where whoever reaches a cluster may run code on it."""
    import ray

    hosts = [str(node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"]]
    if asks_for_token() or all(host.startswith(LOOPBACK) for host in hosts):
        return
    log.warning(
        "%s asks nobody for a token: whoever reaches its ports can run code as you; "
        "see Security in docs/cluster.md",
        place,
    )


def asks_for_token() -> bool:
    """Whether this process speaks to Ray with a token, which Ray knows since 2.52."""
    with suppress(ImportError, AttributeError):
        raylet: Any = import_module("ray._raylet")
        mode = raylet.get_authentication_mode()
        return bool(mode != raylet.AuthenticationMode.DISABLED)
    return False


def _known_token() -> Mapping[str, str]:
    """What has Ray use the token that the user has, or none if he wants none; nothing where he has
    said neither."""
    if os.environ.get(AUTH_MODE, "token").lower() != "token":
        return {AUTH_MODE: os.environ[AUTH_MODE]}
    named = os.environ.get(AUTH_TOKEN) or os.environ.get(AUTH_TOKEN_PATH)
    there = named or (Path.home() / ".ray" / "auth_token").is_file()
    return {AUTH_MODE: "token"} if there else {}


def _fresh_token() -> Mapping[str, str]:
    """A token of this run's own: Ray would write one into the home directory; in the environment it
    ends with the run."""
    return {AUTH_MODE: "token", AUTH_TOKEN: secrets.token_hex(32)}


def _read_environment_again() -> None:
    """Ray keeps what it has read of its settings; versions before 2.52 have no token to read."""
    with suppress(ImportError, AttributeError):
        raylet: Any = import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()
