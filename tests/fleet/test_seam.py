"""What the seam promises, held to by both fleets."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from rayfl.errors import ConfigError, PhaseError, RayflError
from rayfl.fleet.base import BaseFleet
from rayfl.fleet.inline import InlineFleet
from rayfl.protocol import SERVER, NobodyLeft
from tests.fleet import phases
from tests.fleet.toys import CLIENTS, SIZES, holdings, spec

NAN, INF = float("nan"), float("inf")


class Bounds(NamedTuple):
    low: float
    high: float


# -- what arrives ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "what", ["x", "y", "shared", "own", "nested", "public", "state", "nested state", "peer"]
)
@pytest.mark.parametrize("size", [3, 50_000])
def test_writing_to_what_arrives_raises(fleet: BaseFleet, what: str, size: int) -> None:
    fleet.map(phases.remember, CLIENTS, value=1.0)
    with pytest.raises(PhaseError, match="read-only"):
        fleet.map(
            phases.scribble,
            [0],
            each={0: {"own": np.ones(size), "peer": fleet.state(1, "v")}},
            what=what,
            shared=fleet.put(np.ones(size)),
            nested={"deep": [np.ones(size)]},
            public=fleet.data("public"),
        )


def test_changing_a_list_of_the_state_changes_nothing(fleet: BaseFleet) -> None:
    fleet.map(phases.remember, [0], value=1.0)
    for _ in range(2):
        assert fleet.map(phases.append_to_log, [0])[0]["log"] == [1.0, 99.0]


def test_the_callers_arrays_stay_writable(fleet: BaseFleet) -> None:
    mine = np.ones(3)
    fleet.map(phases.pass_on, [0], values={"list": [mine], "one": mine})
    assert mine.flags.writeable


def test_clients_get_their_own_samples(fleet: BaseFleet) -> None:
    held = holdings()
    for client, report in fleet.map(phases.describe, CLIENTS).items():
        rows = held.order[held.offsets[client] : held.offsets[client + 1]]
        assert report["n"] == SIZES[client] == fleet.size(client)
        assert report["x"] == held.x[rows].tolist()
        assert report["y"] == held.y[rows].tolist()


def test_only_owners_are_clients_and_the_server_owns_nothing(fleet: BaseFleet) -> None:
    assert tuple(fleet.clients) == CLIENTS
    assert fleet.size(SERVER) == 0
    assert fleet.shape == (2, 2, 1)
    assert fleet.map(phases.describe, [SERVER])[SERVER]["n"] == 0


def test_references_are_looked_up_wherever_they_stand(fleet: BaseFleet) -> None:
    one, two = fleet.put(np.full(3, 2.0)), fleet.put({"a": np.full(2, 10.0)})
    got = fleet.map(phases.pass_on, [0], values={"list": [one, np.ones(1)], "one": one})
    assert got[0] == {"total": 13.0, "kind": "list"}
    got = fleet.map(phases.pass_on, [0], each={0: {"values": {"list": (one,), "one": one}}})
    assert got[0] == {"total": 12.0, "kind": "tuple"}
    assert fleet.get(two)["a"].tolist() == [10.0, 10.0]


def test_named_tuples_arrive_as_they_are(fleet: BaseFleet) -> None:
    got = fleet.map(phases.spread_of, [0], split=Bounds(fleet.put(np.array(1.0)), np.array(2.0)))  # type: ignore[arg-type]
    assert got[0] == {"kind": "Bounds", "low": 1.0, "high": 2.0}


@pytest.mark.parametrize(
    "wrap", [lambda array: array, lambda array: {"w": [array]}], ids=["array", "nested"]
)
def test_put_stores_a_value_as_it_is_now(fleet: BaseFleet, wrap: Any) -> None:
    array = np.arange(4.0)
    ref = fleet.put(wrap(array))
    array[:] = -1
    found = fleet.get(ref)
    found = found["w"][0] if isinstance(found, dict) else found
    assert found.tolist() == [0, 1, 2, 3]
    assert ref.nbytes == array.nbytes
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1


def test_unlabelled_clients_say_so() -> None:
    fleet = InlineFleet(spec(), holdings(client_labels=False))
    rule = r"labels are read where the method may see them; got client 3, whose labels are out of"
    with pytest.raises(RayflError, match=rule + ".*clients have none under client_labels = False"):
        fleet.map(phases.own_labels, [3])


def test_relabelled_clients_believe_their_new_labels(fleet: BaseFleet) -> None:
    fleet.map(phases.relabel, [3], label=2)
    got = fleet.map(phases.own_labels, [3, 4])
    assert got[3]["y"] == [2] * SIZES[3]
    assert got[4]["y"] == fleet.map(phases.describe, [4])[4]["y"] != [2] * SIZES[4]


def test_strangers_are_refused(fleet: BaseFleet) -> None:
    with pytest.raises(ConfigError, match="clients have ids below 6; got 6"):
        fleet.map(phases.describe, [0, 6])


# -- randomness ------------------------------------------------------------------------------------


def test_draws_depend_on_seed_round_and_client_alone(fleet: BaseFleet) -> None:
    """The global streams of numpy and Python included."""
    together = dict(fleet.map(phases.draw, [*CLIENTS, SERVER, SERVER - 1]))
    fleet.round = 0
    alone = {client: fleet.map(phases.draw, [client])[client] for client in reversed(together)}
    assert alone == together
    fleet.round = 1
    later = fleet.map(phases.draw, CLIENTS)
    for stream in ("stream", "torch", "numpy", "Python"):
        drawn = [str(report[stream]) for report in (*together.values(), *later.values())]
        assert len(set(drawn)) == len(drawn)


def test_every_visit_of_a_round_draws_other_numbers(fleet: BaseFleet) -> None:
    visits = [dict(fleet.map(phases.draw, CLIENTS)) for _ in range(3)]
    for stream in ("stream", "torch", "numpy", "Python"):
        drawn = [str(report[stream]) for visit in visits for report in visit.values()]
        assert len(set(drawn)) == len(drawn)
    fleet.round = 0
    # Whoever else was visited in between does not count.
    assert fleet.map(phases.draw, [3])[3] == visits[0][3]
    fleet.map(phases.draw, [0])
    assert fleet.map(phases.draw, [3])[3] == visits[1][3]


def test_the_first_visits_stream_is_philox_of_seed_round_and_client(here: BaseFleet) -> None:
    """The key in two words, from the beginning: as it was before visits were counted."""
    seed = here.spec.streams.seed
    for here.round in (0, 4):
        for client, report in here.map(phases.draw, [*CLIENTS, SERVER]).items():
            words = np.array([seed, ((here.round + 1) << 32) + client + (1 << 31)], np.uint64)
            stream = np.random.Generator(np.random.Philox(key=words))
            # A visit begins with the seed of the global streams.
            stream.integers(1 << 62)
            assert report["stream"] == stream.random(3).tolist()


def test_errands_are_no_visits(here: BaseFleet) -> None:
    """What goes on beside a round must not change its streams."""
    drawn = here.map(phases.draw, [0])[0]
    here.round = 0
    here.start_errand(phases.draw, {0: {}}, lambda reports, seconds: None)
    assert here.map(phases.draw, [0])[0] == drawn


def test_draws_are_the_same_in_every_place(here: BaseFleet, on_ray: BaseFleet) -> None:
    assert dict(on_ray.map(phases.draw, CLIENTS)) == dict(here.map(phases.draw, CLIENTS))


def test_another_seed_draws_otherwise(here: BaseFleet) -> None:
    other = InlineFleet(spec(seed=8), holdings())
    assert other.map(phases.draw, [0])[0] != here.map(phases.draw, [0])[0]


def test_coordinators_draws_depend_on_round_and_purpose(fleet: BaseFleet) -> None:
    first = fleet.rng(1, "neighbours").random(2).tolist()
    assert fleet.rng(1, "neighbours").random(2).tolist() == first
    assert (
        fleet.rng(2, "neighbours").random(2).tolist()
        != first
        != fleet.rng(1, "probe").random(2).tolist()
    )


def test_cohorts_are_fixed_sorted_and_uniform(fleet: BaseFleet) -> None:
    cohorts = [fleet.sample(t) for t in range(500)]
    assert cohorts == [fleet.sample(t) for t in range(500)]
    assert all(cohort == sorted(set(cohort)) and len(cohort) == 3 for cohort in cohorts)
    counts = np.bincount(np.concatenate(cohorts), minlength=6)
    assert counts[2] == 0
    # 500 draws of 3 out of 5: 300 each, standard deviation 11.
    assert np.all(np.abs(counts[list(CLIENTS)] - 300) < 45)


def test_cohorts_keep_to_those_allowed(fleet: BaseFleet) -> None:
    assert fleet.sample(0, among=[5, 1]) == [1, 5]
    assert fleet.sample(0, among=[4, 4, 4]) == [4]
    with pytest.raises(
        ConfigError, match="a round needs at least one client to draw from; got none in round 3"
    ):
        fleet.sample(3, among=[])


def test_two_draws_among_some_differ_and_the_cohort_of_a_round_does_not(fleet: BaseFleet) -> None:
    cohorts = []
    draws: list[list[list[int]]] = []
    for t in range(40):
        fleet.round = t
        before = fleet.sample(t)
        draws.append([fleet.sample(t, among=CLIENTS) for _ in range(3)])
        assert fleet.sample(t) == before
        cohorts.append(before)
    # Of ten possible cohorts, one in ten pairs is the same by chance.
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert sum(drawn[one] == drawn[other] for drawn in draws) < 15
    # The first is today's, and the whole fleet's cohort.
    assert [drawn[0] for drawn in draws] == cohorts
    for t in (7, 30):
        fleet.round = t
        assert [fleet.sample(t, among=CLIENTS) for _ in range(3)] == draws[t]


# -- effects ---------------------------------------------------------------------------------------


def test_state_is_a_snapshot_and_changes_after_the_whole_map(fleet: BaseFleet) -> None:
    assert fleet.state(0, "v") is None
    fleet.map(phases.remember, CLIENTS, value=1.0)
    before = fleet.state(0, "v")
    each = {client: {"peer": fleet.state((client + 1) % 2, "v")} for client in (0, 1)}
    got = fleet.map(phases.read_peer, [0, 1], each=each, value=2.0)
    assert [report["peer"] for report in got.values()] == [[1.0] * 3] * 2
    assert fleet.get(before).tolist() == [1.0] * 3  # type: ignore[arg-type]
    after = fleet.map(phases.remember, [0, 1, 3], value=3.0)
    assert [report["before"] for report in after.values()] == [[2.0] * 3, [2.0] * 3, [1.0] * 3]


def test_keys_that_a_phase_does_not_write_stay(fleet: BaseFleet) -> None:
    fleet.map(phases.relabel, [0], label=1)
    fleet.map(phases.remember, [0], value=4.0)
    assert set(fleet.table[0]) == {"y", "v", "tree", "log"}
    assert fleet.get(fleet.table[0]["y"]).tolist() == [1] * SIZES[0]


def test_state_knows_its_size(fleet: BaseFleet) -> None:
    fleet.map(phases.remember, [0], value=1.0)
    assert {key: ref.nbytes for key, ref in fleet.table[0].items()} == {
        "v": 24,
        "tree": 16,
        "log": 4,
    }


def test_a_map_that_fails_leaves_no_state(fleet: BaseFleet) -> None:
    with pytest.raises(PhaseError, match="client 5"):
        fleet.map(phases.fail, CLIENTS, on=5)
    assert fleet.table == {}


def test_replies_come_by_ascending_client(fleet: BaseFleet) -> None:
    assert list(fleet.map(phases.describe, [5, 0, 3, 0])) == [0, 3, 5]
    assert len(fleet.map(phases.describe, [])) == 0


# -- means -----------------------------------------------------------------------------------------


def test_means_have_the_same_bits_in_every_place(here: BaseFleet, on_ray: BaseFleet) -> None:
    weights = {client: 0.1 * SIZES[client] for client in CLIENTS}
    found = {
        fleet: fleet.get(fleet.map(phases.update, CLIENTS).mean(weights))
        for fleet in (here, on_ray)
    }
    assert found[here].tobytes() == found[on_ray].tobytes()
    assert found[here].dtype == np.float32


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        ({}, r"weights of a mean have a positive sum; got 0 over 0"),
        ({0: 0.0, 1: 0.0}, r"weights of a mean have a positive sum; got 0.0 over 2"),
        (
            {0: 1.0, 1: -0.5},
            r"weights of a mean are finite and not negative; got -0.5 \(client 1\)",
        ),
        ({0: NAN}, r"finite and not negative; got nan \(client 0\)"),
        ({3: INF}, r"finite and not negative; got inf \(client 3\)"),
        ({0: 1e308, 1: 1e308}, r"weights of a mean have a finite sum; got inf"),
        ({0: 1.0, 2: 1.0}, r"mean takes clients that replied; got client 2"),
    ],
    ids=["empty", "zero", "negative", "nan", "inf", "overflow", "stranger"],
)
def test_means_refuse_weights_that_make_none(
    fleet: BaseFleet, weights: dict[int, float], match: str
) -> None:
    got = fleet.map(phases.update, CLIENTS)
    with pytest.raises(ConfigError, match=match):
        got.mean(weights)


@pytest.mark.parametrize("scale", [2.0**-1000, 2.0**-40, 1.0, 2.0**900])
def test_scale_of_the_weights_by_a_power_of_two_changes_no_bit(
    here: BaseFleet, scale: float
) -> None:
    got = here.map(phases.update, CLIENTS)
    weights = {client: 0.3 + client for client in CLIENTS}
    plain = here.get(got.mean(weights))
    scaled = here.get(got.mean({client: weight * scale for client, weight in weights.items()}))
    assert scaled.tobytes() == plain.tobytes()


def test_clients_of_weight_zero_count_nothing(fleet: BaseFleet) -> None:
    models = {0: [1.0, 2.0], 1: [3.0, 4.0], 3: [1e30, -1e30]}
    got = fleet.map(phases.leave, [0, 1, 3], models=models)
    assert fleet.get(got.mean({0: 1.0, 1: 1.0, 3: 0.0})).tolist() == [2.0, 3.0]
    assert fleet.get(got.mean({1: 0.7})).tolist() == [3.0, 4.0]


def test_named_updates_are_averaged_by_name(fleet: BaseFleet) -> None:
    got = fleet.map(phases.pair, [1, 3])
    assert fleet.get(got.mean({1: 1.0, 3: 1.0}, "dw")).tolist() == [2.0] * 4
    assert fleet.get(got.mean({1: 1.0, 3: 1.0}, "dc")).tolist() == [-2.0] * 4
    assert fleet.get(got.ref(3, "dw")).tolist() == [3.0] * 4
    rule = r"client 1 left dw, dc; a mean says which is meant; got 'w'\. Name the update: mean\("
    with pytest.raises(ConfigError, match=rule):
        got.mean({1: 1.0, 3: 1.0})
    with pytest.raises(ConfigError, match=r"client 3 left dw, dc.*got 'dx'"):
        got.ref(3, "dx")


def test_names_of_joined_updates_are_those_of_whom_the_mean_is(fleet: BaseFleet) -> None:
    """Whoever else is in the join may have left an update of another name."""
    models = {3: [1.0], 4: [3.0]}
    served = fleet.map(phases.leave_named, [SERVER, 0], name="sums")
    joined = served | fleet.map(phases.leave, [3, 4], models=models)
    assert fleet.get(joined.mean({3: 1.0, 4: 1.0})).tolist() == [2.0]
    assert fleet.get(joined.mean({SERVER: 3.0, 0: 1.0})).tolist() == [-0.75, -0.75]
    with pytest.raises(ConfigError, match=r"client 4 left w; a mean says which is meant; got 'sum"):
        joined.mean({0: 1.0, 4: 1.0})


def test_who_left_nothing_has_no_mean(fleet: BaseFleet) -> None:
    got = fleet.map(phases.describe, [0, 1])
    with pytest.raises(ConfigError, match=r"client 0 left no update; a mean says which is meant"):
        got.mean({0: 1.0})


def test_a_reference_to_one_update(fleet: BaseFleet) -> None:
    got = fleet.map(phases.leave, [0, 3], models={0: [1.0, 2.0], 3: [0.1, -5.0]})
    for client, model in ((0, [1.0, 2.0]), (3, [0.1, -5.0])):
        ref = got.ref(client)
        assert fleet.get(ref).tolist() == np.array(model, np.float32).tolist()
        assert ref.nbytes == 8
    seen = fleet.map(phases.norm, [5], each={5: {"w": got.ref(3)}})
    assert seen[5]["norm"] == pytest.approx(5.1)
    with pytest.raises(ConfigError, match="mean takes clients that replied; got client 5"):
        got.ref(5)


def test_one_mean_goes_over_two_maps(fleet: BaseFleet) -> None:
    """To the bit what it would be over one map; the server's own update may be among them."""
    drawn = np.random.default_rng(0).normal(size=(5, 100)).astype(np.float32)
    models = {client: drawn[i].tolist() for i, client in enumerate((0, 1, 3, 4, SERVER))}
    weights = {client: 0.3 + abs(client) for client in models}
    whole = fleet.map(phases.leave, models, models=models)
    expected = fleet.get(whole.mean(weights)).tobytes()
    for first in ([0, 1, 3, 4], [1], [SERVER, 4]):
        rest = [client for client in models if client not in first]
        one = fleet.map(phases.leave, first, models=models)
        other = fleet.map(phases.leave, rest, models=models)
        joined = one | other
        assert list(joined) == sorted(models)
        assert dict(joined) == dict(whole)
        assert fleet.get(joined.mean(weights)).tobytes() == expected
        assert fleet.get(joined.ref(first[0])).tolist() == fleet.get(one.ref(first[0])).tolist()
        # The updates stay as long as the join does.
        del one, other
        assert fleet.get(joined.mean(weights)).tobytes() == expected


def test_updates_of_joined_maps_are_examined(fleet: BaseFleet) -> None:
    models = {0: [1.0], 3: [-3.0], 5: [5.0]}
    joined = fleet.map(phases.leave, [3], models=models) | fleet.map(
        phases.leave, [0, 5], models=models
    )
    seen = joined.examine(phases.norm)
    assert {client: report["norm"] for client, report in seen.items()} == {0: 1.0, 3: 3.0, 5: 5.0}


def test_nobody_may_be_in_both_maps(fleet: BaseFleet) -> None:
    one = fleet.map(phases.leave, [0, 1], models={0: [1.0], 1: [2.0]})
    other = fleet.map(phases.leave, [1, 3], models={1: [1.0], 3: [2.0]})
    with pytest.raises(ConfigError, match="joined over different clients; got client 1 in both"):
        one | other


def test_joined_maps_name_all_who_diverged(fleet: BaseFleet) -> None:
    one = fleet.map(phases.leave, [0, 1], models={0: [1.0], 1: [NAN]})
    other = fleet.map(phases.leave, [3, 4], models={3: [INF], 4: [2.0]})
    joined = one | other
    assert joined.diverged == (1, 3)
    assert list(joined) == [0, 4]
    with pytest.raises(ConfigError, match=r"got client 3\. Its update is not finite, and so it is"):
        joined.mean({0: 1.0, 3: 1.0})


def test_several_means_of_one_map(fleet: BaseFleet) -> None:
    got = fleet.map(phases.leave, [0, 1, 3], models={0: [1.0], 1: [3.0], 3: [8.0]})
    means = [got.mean({0: 1.0, 1: 1.0}), got.mean({3: 1.0})]
    assert [fleet.get(ref).tolist() for ref in means] == [[2.0], [8.0]]
    assert [ref.nbytes for ref in means] == [4, 4]


def test_a_mean_is_read_only_and_lasts(fleet: BaseFleet) -> None:
    got = fleet.map(phases.leave, [0, 1], models={0: [1.0], 1: [3.0]})
    ref = got.mean({0: 1.0, 1: 1.0})
    del got
    fleet.map(phases.describe, CLIENTS)
    found = fleet.get(ref)
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 5
    assert found.tolist() == [2.0]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_updates_that_are_not_finite_are_left_out_and_named(fleet: BaseFleet, bad: float) -> None:
    models = {0: [1.0, 1.0], 1: [bad, 2.0], 3: [3.0, 5.0]}
    got = fleet.map(phases.leave, [0, 1, 3], models=models)
    assert list(got) == [0, 3]
    assert got.diverged == (1,)
    assert set(fleet.table) == {0, 3}
    assert fleet.get(got.mean(dict.fromkeys(got, 1.0))).tolist() == [2.0, 3.0]
    with pytest.raises(ConfigError, match="mean takes clients that replied; got client 1"):
        got.mean({0: 1.0, 1: 1.0})
    assert fleet.take_diverged() == [1]
    assert fleet.take_diverged() == []


def test_one_diverged_vector_of_several_is_enough(here: BaseFleet) -> None:
    here.map(phases.pair, [1, 3])
    models = {0: [1.0], 1: [NAN]}
    assert list(here.map(phases.leave, [0, 1], models=models)) == [0]


def test_if_all_diverge_nobody_is_left(fleet: BaseFleet) -> None:
    fleet.round = 4
    with pytest.raises(NobodyLeft, match="round 4: every one of 2 updates diverged"):
        fleet.map(phases.leave, [0, 1], models={0: [NAN], 1: [INF]})
    assert fleet.take_diverged() == [0, 1]
    assert fleet.table == {}


# -- lifetimes -------------------------------------------------------------------------------------


def test_updates_are_freed_with_their_replies(fleet: BaseFleet) -> None:
    got = fleet.map(phases.update, CLIENTS)
    held = [
        key for report in fleet.map(phases.held_updates, CLIENTS).values() for key in report["held"]
    ]
    assert {client for _, client in held} == set(CLIENTS)
    assert len(got) == len(CLIENTS)
    del got
    for report in fleet.map(phases.held_updates, CLIENTS).values():
        assert report["held"] == []


@pytest.mark.parametrize("on", CLIENTS)
def test_updates_of_a_map_that_failed_are_freed(fleet: BaseFleet, on: int) -> None:
    with pytest.raises(PhaseError, match="what went wrong here"):
        fleet.map(phases.fail_after_updates, CLIENTS, on=on)
    for report in fleet.map(phases.held_updates, CLIENTS).values():
        assert report["held"] == []
