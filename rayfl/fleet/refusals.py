"""How an author's slips in a call of a phase are told: the rule, what was found, what to do."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from rayfl.component import show_value
from rayfl.errors import ConfigError, PhaseError, broken
from rayfl.protocol import ClientId, Phase

READ_ONLY = ". What a phase is given is read-only: copy it before you change it, np.array(w)"


def read_ids(clients: Iterable[ClientId]) -> list[ClientId]:
    """Plain integers, which reports and states are kept under: numpy's would be other keys.

    Parameters
    ----------
    clients
        As a method names them.
    """
    named = list(clients)
    try:
        return list(map(operator.index, named))
    except TypeError:
        stranger = next(name for name in named if not hasattr(name, "__index__"))
        rule = "clients are named by their numbers"
        remedy = "fleet.clients and fleet.sample(t) have them."
        raise ConfigError(broken(rule, show_value(stranger), remedy)) from None


def refuse_misfit_inputs(phase: Phase, given: Mapping[str, Any], where: str) -> None:
    """Refuse inputs that a phase does not take, or lacks. Asked only when its call has failed.

    Parameters
    ----------
    phase
        What was called.
    given
        Its inputs, by name.
    where
        On whom, and when.
    """
    signature = inspect.signature(phase)
    try:
        signature.bind(None, **given)
    except TypeError:
        name = getattr(phase, "__qualname__", str(phase))
        taken = ", ".join(list(signature.parameters)[1:]) or "none"
        remedy = "Inputs go by name, and so does an update that is examined."
        got = f"{', '.join(given) or 'none'} ({where})"
        raise PhaseError(broken(f"{name} takes the inputs {taken}", got, remedy)) from None


def explain_error(error: BaseException, text: str) -> str:
    """The traceback of a phase that raised, with what its last line does not say.

    Parameters
    ----------
    error
        What it raised.
    text
        Its traceback.
    """
    hidden = isinstance(error, ValueError) and "read-only" in str(error)
    return text.rstrip() + (READ_ONLY if hidden else "")
