"""How each promise is tried: a function that returns a remark, or says what differed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rayfl.config.schema import Config
from rayfl.errors import StorageError
from rayfl.protocol import REPORT_LIMIT, ClientId, Vector
from rayfl.run.engine import Outcome
from rayfl.testing.bench import OTHER_SEED, SHORT, Bench
from rayfl.testing.findings import BrokenPromise, Untried, find_difference, require_equal
from rayfl.testing.places import copied_weights, stop_after
from rayfl.testing.toy import CUMULATIVE, LARGE, NORMALISED, TOY, odd_federation

Models = Mapping[ClientId | None, Vector]

REPORT_SHARE = 16
"""A toy has some hundred samples: its reports must leave room for sixteen times as many."""

ROUNDING = 0.05
"""Of the way that the model has gone: how far a stacked run may end from one that is not."""


# -- in this process -------------------------------------------------------------------------------


def examine_run(bench: Bench) -> str:
    try:
        outcome = bench.reference
    except Untried as refused:
        # Elsewhere a refusal is good manners; here it means that there is nothing to check.
        raise BrokenPromise(f"{refused} Give a CONFIG that suits it.") from refused
    _require_finite(outcome)
    return f"{outcome.rounds} rounds, sha256 {outcome.sha256[:12]}"


def examine_training(bench: Bench) -> str:
    """Whether the model moved, and whether it tells the classes apart."""
    learned = bench.learned
    if _largest_step(bench.first_models, bench.reference.models) == 0:
        raise BrokenPromise("the last weights are the first ones, number by number")
    accuracy = learned.history[-1]["metrics"]["test/accuracy"]
    floor = bench.candidate.floor
    if not accuracy >= floor:
        raise BrokenPromise(
            f"test accuracy {accuracy:.3f} after {learned.rounds} rounds; the floor is {floor:g}"
        )
    return f"test accuracy {accuracy:.3f} after {learned.rounds} rounds"


def examine_repetition(bench: Bench) -> str:
    if bench.withstands:
        return _name_bits(bench.reference)
    return require_equal(bench.reference, bench.run(bench.config_of()))


def examine_global_streams(bench: Bench) -> str:
    """Other numbers in the global streams must give the same bits."""
    if bench.withstands:
        return _name_bits(bench.reference)
    found = bench.run(bench.config_of(), "stirring", streams=OTHER_SEED)
    return require_equal(bench.reference, found)


def examine_inputs(bench: Bench) -> str:
    _ = bench.reference
    written = bench.watched.written
    if written:
        others = f" and {len(written) - 1} more" if len(written) > 1 else ""
        raise BrokenPromise(f"written to: {written[0]}{others}")
    return ""


def examine_reports(bench: Bench) -> str:
    _ = bench.reference
    largest = bench.watched.largest_report
    limit = REPORT_LIMIT // REPORT_SHARE if bench.settings["data"] == TOY["data"] else REPORT_LIMIT
    if largest > limit:
        raise BrokenPromise(f"a report of {largest:,} bytes; the limit here is {limit:,}")
    return f"largest {largest:,} bytes"


def examine_order(bench: Bench) -> str:
    if bench.withstands:
        return _name_bits(bench.reference)
    return require_equal(bench.reference, bench.run(bench.config_of(), "reversed"))


def examine_late_evaluation(bench: Bench) -> str:
    if bench.withstands:
        return _name_bits(bench.reference)
    return require_equal(bench.reference, bench.run(bench.config_of(), "late"))


def examine_resumption(bench: Bench) -> str:
    """Stop after every round and go on from what was written: one round a session."""
    output = bench.make_folder()
    rounds = bench.config_of(output=output).training.rounds
    for last in range(1, rounds):
        # Of its own for every session, so that the method cannot remember anything either.
        session = bench.config_of(output=output)
        try:
            first = stop_after(session, last)
        except StorageError as error:
            raise BrokenPromise(f"in the session of round {last}: {error}") from error
        # A checkpoint that cannot be read is passed over for the one before it.
        if first < last:
            raise BrokenPromise(
                f"what was saved after round {last - 1} could not be read: round {first} was "
                "played again"
            )
    last_session = bench.config_of(output=output)
    return require_equal(bench.reference, bench.run(last_session))


def examine_stacking(bench: Bench) -> str:
    """Many clients in lockstep end where single ones do, but for rounding."""
    alone = bench.run(bench.config_of(training={"stack": "never"}), rounds=SHORT)
    stacked = bench.run(bench.config_of(training={"stack": "always"}), rounds=SHORT)
    if alone.sha256 == stacked.sha256:
        return "nothing was stacked"
    way = _largest_step(bench.first_models, alone.models)
    apart = _largest_step(alone.models, stacked.models)
    if apart > ROUNDING * way:
        raise BrokenPromise(
            f"after {alone.rounds} rounds the models are {apart / way:.1%} apart of the way gone; "
            f"rounding makes less than {ROUNDING:.0%}"
        )
    return f"{apart / way:.0e} of the way apart"


def examine_large_network(bench: Bench) -> str:
    """Above 2^18 numbers a place gives weights away without a copy: nobody may notice."""
    config = bench.variant_of(LARGE)
    with copied_weights():
        copied = bench.run(config, rounds=SHORT)
    return require_equal(copied, bench.large)


def examine_coordinator(bench: Bench) -> str:
    """What the coordinator holds at once is less than the models of a round's clients."""
    largest = max(vector.nbytes for vector in bench.large.models.values())
    held, cohort = bench.receiving.most_held, bench.receiving.cohort
    if held >= cohort * largest:
        raise BrokenPromise(
            f"{held:,} bytes of reports and fetched values at once, as many as {cohort} models "
            f"of {largest:,}"
        )
    return f"{held:,} bytes; a model has {largest:,}"


def examine_running_statistics(bench: Bench) -> str:
    return _compare_orders(bench, bench.variant_of(NORMALISED))


def examine_cumulative_statistics(bench: Bench) -> str:
    return _compare_orders(bench, bench.variant_of(CUMULATIVE))


def examine_odd_federation(bench: Bench) -> str:
    own_data = bench.settings["data"] != TOY["data"]
    toy = bench.toy_settings if own_data else bench.settings
    if toy["partition"] != TOY["partition"]:
        raise Untried("its configuration has a partition of its own")
    config = bench.variant_of(odd_federation(toy["clients"]), toy)
    outcome = bench.run(config)
    _require_finite(outcome)
    return require_equal(outcome, bench.run(config, "reversed"))


# -- on Ray ----------------------------------------------------------------------------------------


def examine_one_actor(bench: Bench) -> str:
    return require_equal(bench.reference, _run_on_actors(bench, bench.config_of(), 1))


def examine_three_actors(bench: Bench) -> str:
    """The federation, and briefly a large network and one with running statistics."""
    remark = require_equal(bench.reference, _run_on_actors(bench, bench.config_of(), 3))
    for name, variant in (("large network", LARGE), ("batchnorm", NORMALISED)):
        try:
            config = bench.variant_of(variant)
            usual = bench.run(config, rounds=SHORT)
        except Untried:
            continue
        difference = find_difference(usual, _run_on_actors(bench, config, 3, SHORT))
        if difference is not None:
            raise BrokenPromise(f"{name}: {difference}")
    return remark


def examine_killed_actor(bench: Bench) -> str:
    from rayfl.testing.actors import KillingFleet

    if bench.actors is None:
        raise Untried("needs Ray")
    outcome = bench.run(bench.config_of(), bench.actors.fleet_maker(3, KillingFleet))
    if not getattr(bench.latest, "killed", 0):
        raise Untried("no map of several clients in the second round")
    return require_equal(bench.reference, outcome)


# -- shared ----------------------------------------------------------------------------------------


def _compare_orders(bench: Bench, config: Config) -> str:
    """The same bits with clients in reverse."""
    usual = bench.run(config, rounds=SHORT)
    return require_equal(usual, bench.run(config, "reversed", rounds=SHORT))


def _run_on_actors(bench: Bench, config: Config, actors: int, rounds: int | None = None) -> Outcome:
    if bench.actors is None:
        raise Untried("needs Ray")
    return bench.run(config, bench.actors.fleet_maker(actors), rounds=rounds)


def _name_bits(outcome: Outcome) -> str:
    return f"sha256 {outcome.sha256[:12]}"


def _require_finite(outcome: Outcome) -> None:
    for client, vector in outcome.models.items():
        if not np.isfinite(vector).all():
            whose = "the model" if client is None else f"client {client}'s model"
            raise BrokenPromise(f"{whose} is not finite after {outcome.rounds} rounds")


def _largest_step(before: Models, after: Models) -> float:
    """How far the model that went farthest is from where it was."""
    return max(float(np.linalg.norm(after[client] - before[client])) for client in after)
