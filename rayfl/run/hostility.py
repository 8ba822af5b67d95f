"""What hostile clients make of a federation's arrays, and how often their trigger works."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rayfl.config.schema import Config
from rayfl.federation.hostile import Attack
from rayfl.federation.scenario import Scenario
from rayfl.fleet.base import STAMPED_SET, TEST_SET
from rayfl.fleet.executor import Holdings
from rayfl.fleet.tampering import Tampering
from rayfl.protocol import ClientId, Shard


def let_in_hostile(holdings: Holdings, config: Config, scenario: Scenario) -> Holdings:
    """A federation's arrays with its hostile clients in it.

    Parameters
    ----------
    holdings
        The honest arrays, which are left as they are.
    config
        What kind of hostility there is.
    scenario
        Who is hostile, and which rows are poisoned.
    """
    hostile, attack = config.hostile, scenario.attack
    if hostile is None or attack is None:
        return holdings
    if hostile.tampers:
        clients = frozenset(attack.clients.tolist())
        seed = config.seeds_for("training")
        holdings = replace(holdings, tampering=Tampering(clients, hostile.change, seed))
    if hostile.aim is None:
        return holdings
    x = holdings.x.copy()
    stamped = x[attack.rows]
    hostile.stamp(stamped)
    x[attack.rows] = stamped
    others = pick_others(holdings.sets[TEST_SET], hostile.aim)
    hostile.stamp(others.x)
    sets = {**holdings.sets, STAMPED_SET: others}
    prints = {**holdings.fingerprints, STAMPED_SET: "stamped"}
    if "train" in sets:
        sets["train"] = replace(sets["train"], x=x)
        # Features of other pixels must not be taken for these.
        prints["train"] = f"{prints['train']} {hostile!r} {describe_rows(attack)}"
    return replace(holdings, x=x, sets=sets, fingerprints=prints)


def pick_others(test: Shard, aim: int) -> Shard:
    """A copy of the test images of all classes but the one aimed at."""
    assert test.y is not None
    others = np.flatnonzero(test.y != aim)
    return Shard(test.x[others], test.y[others])


def describe_rows(attack: Attack) -> str:
    """The poisoned rows, short."""
    return hashlib.sha256(attack.rows.astype("<i8").tobytes()).hexdigest()[:16]


def measure_success(confusions: Sequence[NDArray[np.int64]], aim: int) -> dict[str, float]:
    """The mean share, over the models, of images with the trigger that are taken for the class
    aimed at.

    Parameters
    ----------
    confusions
        Of every model, on images of other classes: rows are true classes.
    aim
        The class.
    """
    shares = [counts[:, aim].sum() / max(int(counts.sum()), 1) for counts in confusions]
    return {"test/backdoor_success": float(np.mean(shares))}


def compare_hostile(
    name: str, values: Mapping[ClientId, float], attack: Attack
) -> dict[str, float]:
    """What a method believes of hostile clients and of honest ones, on average; nothing of those
    of whom it says nothing.

    Parameters
    ----------
    name
        What it calls the belief.
    values
        By client.
    attack
        Who is hostile.
    """
    hostile = set(attack.clients.tolist())
    groups = {
        "hostile": [values[client] for client in values if client in hostile],
        "honest": [values[client] for client in values if client not in hostile],
    }
    return {f"{name}/{who}": float(np.mean(of)) for who, of in groups.items() if of}
