"""The verbs of the server, streams and refusals, on every fleet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rayfl.errors import ConfigError, DataError, PhaseError, RayflError
from rayfl.fleet.base import BaseFleet
from rayfl.fleet.inline import InlineFleet
from rayfl.learn.resident import Resident
from rayfl.protocol import REPORT_LIMIT, SERVER, Algorithm, NobodyLeft
from tests.fleet import phases
from tests.fleet.toys import CLIENTS, SIZES, holdings, network, spec

NAN = float("nan")


def test_reports_above_a_megabyte_are_refused(fleet: BaseFleet) -> None:
    assert len(fleet.map(phases.too_much, [0], size=REPORT_LIMIT)) == 1
    match = r"a report stays under 1 MB; got 1,048,577 bytes\. Put weights into update and what"
    with pytest.raises(PhaseError, match=match):
        fleet.map(phases.too_much, [0], size=REPORT_LIMIT + 1)


def test_a_refused_report_leaves_no_state(fleet: BaseFleet) -> None:
    with pytest.raises(PhaseError, match="a report stays under 1 MB"):
        fleet.map(phases.too_much_and_state, [0])
    assert fleet.table == {}


@pytest.mark.parametrize(("client", "who"), [(3, "client 3"), (SERVER, "the server")])
def test_a_phase_that_raises_names_client_and_round(
    fleet: BaseFleet, client: int, who: str
) -> None:
    fleet.round = 12
    with pytest.raises(PhaseError, match=f"a phase raised on {who} in round 12") as raised:
        fleet.map(phases.fail, [client], on=client)
    text = str(raised.value)
    assert "Traceback" in text
    assert "phases.py" in text
    assert text.endswith("ZeroDivisionError: what went wrong here")


def test_what_a_person_can_mend_surfaces_as_itself(fleet: BaseFleet) -> None:
    with pytest.raises(DataError, match=r"^images are square; got 3x4\. Crop them\.$"):
        fleet.map(phases.refuse, [0])


def test_a_phase_returns_an_out(fleet: BaseFleet) -> None:
    with pytest.raises(
        PhaseError, match=r"a phase returns an Out\(report, update, state\); got dict"
    ):
        fleet.map(phases.no_out, [0])


# -- named sets, the server, examinations ----------------------------------------------------------


def test_named_sets_reach_a_phase_by_name(fleet: BaseFleet) -> None:
    assert fleet.map(phases.look_at, [0], held=fleet.data("public"))[0] == {"n": 5, "labels": None}
    assert fleet.costs.down == 0


def test_unknown_sets_are_refused(fleet: BaseFleet) -> None:
    rule = r"this federation has the named sets public; got 'labelled'\. Set split\.labelled\."
    for verb in (fleet.data, fleet.size):
        with pytest.raises(ConfigError, match=rule):
            verb("labelled")


def test_the_test_set_is_the_experiments_alone(fleet: BaseFleet) -> None:
    rule = r"a method sees what a real federation has; got the set 'test'\. Test images are the exp"
    for verb in (fleet.data, fleet.size):
        with pytest.raises(ConfigError, match=rule):
            verb("test")
    test = fleet.map(phases.look_at, [0], held=fleet.held_set("test"))[0]
    assert test == {"n": 4, "labels": holdings().y[:4].tolist()}


def test_what_a_method_may_ask_of_a_federation(fleet: BaseFleet) -> None:
    assert fleet.size("public") == 5
    assert [fleet.size(client) for client in range(6)] == list(SIZES)
    assert (fleet.classes, fleet.cohort) == (3, 3)
    many = InlineFleet(spec(cohort=99), holdings())
    # Those who own nothing take part in no round.
    assert many.cohort == len(many.sample(0)) == len(CLIENTS)
    many.close()
    for client, report in fleet.map(phases.count_classes, CLIENTS).items():
        held = holdings()
        expected = np.bincount(held.y[held.rows(client)], minlength=3)
        assert report == {"classes": 3, "counts": expected.tolist()}


def test_serve_gives_the_servers_report_and_updates(fleet: BaseFleet) -> None:
    served = fleet.serve(phases.leave, models={SERVER: [4.0, 5.0]})
    assert fleet.get(served["w"]).tolist() == [4.0, 5.0]
    assert served.report == {"n": 0}
    assert fleet.table[SERVER].keys() == {"seen"}
    named = fleet.serve(phases.pair, size=2)
    assert list(named.updates) == ["dw", "dc"]
    assert fleet.get(named["dc"]).tolist() == [1.0, 1.0]
    with pytest.raises(ConfigError, match=r"the server's phase left are dw, dc; got 'w'"):
        _ = named["w"]
    with pytest.raises(ConfigError, match=r"the server's phase left are none; got 'w'"):
        _ = fleet.serve(phases.describe)["w"]


def test_linear_combinations_are_computed_in_double(fleet: BaseFleet) -> None:
    one, other = (fleet.put(np.array(values, np.float32)) for values in ([1e8, 3.0], [1.0, 0.5]))
    found = fleet.get(fleet.combine((1.0, one), (2.0, other), (-1.0, one)))
    assert found.tolist() == [2.0, 1.0]
    assert found.dtype == np.float32
    got = fleet.map(phases.leave, [0, 3], models={0: [4.0, 1.0], 3: [2.0, 2.0]})
    moved = fleet.combine((0.5, got.ref(0)), (0.5, got.ref(3)))
    assert fleet.get(moved).tolist() == [3.0, 1.5]
    # The server's own work costs no client anything.
    assert (fleet.costs.participants, fleet.costs.down) == (2, 0)


def test_first_weights_are_numbered(fleet: BaseFleet) -> None:
    found = [fleet.get(fleet.initial(i)).copy() for i in (0, 1, 2, 1)]
    assert np.array_equal(found[1], found[3])
    assert len({weights.tobytes() for weights in found}) == 3
    for i, weights in enumerate(found[:3]):
        expected = Resident(network(i), torch.device("cpu")).dump()
        assert np.array_equal(weights, expected)
    assert np.array_equal(fleet.get(fleet.initial()), found[0])


# -- chains ----------------------------------------------------------------------------------------


def test_a_chain_hands_on_from_client_to_client(fleet: BaseFleet) -> None:
    w = fleet.put(np.array([1.0, 0.0], np.float32))
    got = fleet.chain(phases.double, [4, 0, 3], w)
    # ((2 w + 4) 2 + 0) 2 + 3
    assert fleet.get(got.last).tolist() == [27.0, 19.0]
    assert list(got) == [0, 3, 4]
    assert [fleet.get(got.ref(client)).tolist() for client in (4, 0)] == [[6.0, 4.0], [12.0, 8.0]]
    assert fleet.get(fleet.table[3]["began"]).tolist() == [12.0, 8.0]


def test_a_chain_is_one_map_after_another(fleet: BaseFleet) -> None:
    w = fleet.put(np.linspace(-1, 1, 15, dtype=np.float32))
    got = fleet.chain(phases.train, [5, 0, 3, 4], w)
    chained = {client: fleet.get(got.ref(client)).tobytes() for client in got}
    last = fleet.get(got.last).tobytes()
    costs = fleet.costs.take()
    fleet.round = 0
    reports = {}
    for client in (5, 0, 3, 4):
        one = fleet.map(phases.train, [client], w=w)
        w = one.ref(client)
        reports[client] = one[client]
        assert fleet.get(w).tobytes() == chained[client]
    assert fleet.get(w).tobytes() == last
    assert dict(got) == {client: reports[client] for client in sorted(reports)}
    one_by_one = fleet.costs.take()
    for name in ("participants", "up", "down", "forward", "backward"):
        assert costs[name] == one_by_one[name]


def test_a_link_that_diverges_is_passed_over(fleet: BaseFleet) -> None:
    w = fleet.put(np.array([1.0], np.float32))
    got = fleet.chain(phases.double, [4, 0, 3], w, bad=[0])
    assert fleet.get(got.last).tolist() == [(2 + 4) * 2 + 3]
    assert got.diverged == (0,)
    assert list(got) == [3, 4]
    assert 0 not in fleet.table
    assert fleet.get(fleet.chain(phases.double, [4, 3], w, bad=[3]).last).tolist() == [6.0]


def test_links_may_have_inputs_of_their_own(fleet: BaseFleet) -> None:
    w = fleet.put(np.array([1.0], np.float32))
    got = fleet.chain(phases.double, [3, 0], w, each={0: {"bad": [0]}})
    assert got.diverged == (0,)
    assert fleet.get(got.last).tolist() == [5.0]


def test_a_chain_visits_each_client_once(fleet: BaseFleet) -> None:
    with pytest.raises(ConfigError, match=r"a chain visits each client once; got \[0, 3, 0\]"):
        fleet.chain(phases.double, [0, 3, 0], fleet.put(np.ones(1, np.float32)))


def test_only_a_chain_has_a_last_one(fleet: BaseFleet) -> None:
    got = fleet.map(phases.leave, [0], models={0: [1.0]})
    with pytest.raises(ConfigError, match="`last` is asked of a chain; got the replies of a map"):
        _ = got.last


def test_a_chain_of_nobody_has_no_last_one(fleet: BaseFleet) -> None:
    got = fleet.chain(phases.double, [], fleet.put(np.ones(1, np.float32)))
    with pytest.raises(ConfigError, match="asked of a chain; got one without a client"):
        _ = got.last


def test_a_chain_that_wholly_diverges_leaves_nobody(fleet: BaseFleet) -> None:
    with pytest.raises(NobodyLeft, match="every one of 2 updates diverged"):
        fleet.chain(phases.double, [0, 3], fleet.put(np.ones(1, np.float32)), bad=[0, 3])


# -- examinations ----------------------------------------------------------------------------------


def test_examine_visits_every_update_as_the_server(fleet: BaseFleet) -> None:
    got = fleet.map(phases.leave, [3, 0, 5], models={0: [1.0], 3: [-3.0], 5: [5.0]})
    fleet.costs.take()
    seen = got.examine(phases.norm, offset=fleet.put(np.array(0.5)))
    assert {client: report["norm"] for client, report in seen.items()} == {0: 1.5, 3: 3.5, 5: 5.5}
    assert {report["id"] for report in seen.values()} == {SERVER}
    assert len({report["draw"] for report in seen.values()}) == 3
    assert fleet.costs.participants == fleet.costs.down == fleet.costs.up == 0


def test_an_examination_sees_no_clients_images(fleet: BaseFleet) -> None:
    """It used to see client 0's: the server owns none."""
    got = fleet.map(phases.pair, [0, 1, 3], size=2)
    served = fleet.map(phases.pair, [SERVER], size=2)
    for replies in (got, served, got | served):
        for report in replies.examine(phases.weigh).values():
            assert report["images"] == 0
    with pytest.raises(PhaseError, match="takes the inputs w; got dw, dc"):
        got.examine(phases.read_labels)
    models = fleet.map(phases.leave, [0], models={0: [1.0]})
    assert models.examine(phases.read_labels)[0] == {"y": []}


def test_updates_are_examined_under_their_names(fleet: BaseFleet) -> None:
    got = fleet.map(phases.pair, [1, 3], size=2)
    seen = got.examine(phases.weigh)
    assert {client: (r["dw"], r["dc"]) for client, r in seen.items()} == {1: (2, -2), 3: (6, -6)}


def test_some_updates_are_examined_with_inputs_of_their_own(fleet: BaseFleet) -> None:
    got = fleet.map(phases.pair, CLIENTS, size=2)
    seen = got.examine(phases.weigh, [3, 1], {3: {"factor": 10.0}}, factor=2.0)
    assert {client: report["dw"] for client, report in seen.items()} == {1: 4.0, 3: 60.0}
    each = {3: {"factor": fleet.put(np.array(7.0))}}
    assert got.examine(phases.weigh, [3], each)[3]["dw"] == 42.0
    with pytest.raises(ConfigError, match="clients that replied are examined; got client 2"):
        got.examine(phases.weigh, [1, 2])


def test_who_left_nothing_is_not_examined(fleet: BaseFleet) -> None:
    """As clients of FedCR that took no step."""
    models = {0: [1.0], 3: [2.0]}
    got = fleet.map(phases.leave, [0, 3], models=models) | fleet.map(phases.describe, [1, 4])
    assert list(got.examine(phases.norm)) == [0, 3]
    with pytest.raises(ConfigError, match="updates are examined; got client 4, which left none"):
        got.examine(phases.norm, [0, 4])


def test_examinations_have_streams_of_their_own(fleet: BaseFleet) -> None:
    """Neither the clients' nor the server's, nor those of the examination before."""
    got = fleet.map(phases.leave, [0, 3, SERVER], models={0: [1.0], 3: [2.0], SERVER: [3.0]})
    first = got.examine(phases.norm)
    second = got.examine(phases.norm)
    fleet.round = 0
    visits = fleet.map(phases.norm, [0, 3, SERVER], w=np.zeros(1, np.float32))
    drawn = [report["draw"] for seen in (first, second, visits) for report in seen.values()]
    assert len(set(drawn)) == len(drawn)
    fleet.round = 0
    got = fleet.map(phases.leave, [0, 3, SERVER], models={0: [1.0], 3: [2.0], SERVER: [3.0]})
    # Whose else is examined does not count.
    assert got.examine(phases.norm, [3])[3] == first[3]
    assert got.examine(phases.norm)[3] == second[3]


def test_an_examination_that_raises_names_the_client(fleet: BaseFleet) -> None:
    got = fleet.map(phases.leave, [3], models={3: [1.0]})
    with pytest.raises(PhaseError, match=r"(?s)a phase raised on client 3 in round 0.*str"):
        got.examine(phases.norm, offset="one")
    with pytest.raises(PhaseError, match=r"inputs w, offset; got no, w \(client 3, round 0\)"):
        got.examine(phases.norm, no=1)


def test_a_cohort_that_was_drawn_ahead_is_the_same(fleet: BaseFleet) -> None:
    drawn = [fleet.sample(t) for t in range(6)]
    for fleet.round in range(5):
        assert fleet.sample(fleet.round) == drawn[fleet.round]
        fleet.draw_ahead()
        assert fleet.sample(fleet.round + 1, among=[3]) == [3]
        assert fleet.sample(fleet.round + 1) == drawn[fleet.round + 1]


# -- what a phase may not leave --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "match"),
    [
        (np.zeros(4, np.int64), r"int64 of shape \(4,\) \(client 0\)"),
        (np.zeros((5, 1), np.int64), r"int64 of shape \(5, 1\)"),
        (np.zeros(5, np.float32), r"float32 of shape \(5,\)"),
        (np.ones(5, np.bool_), r"bool of shape \(5,\)"),
        (np.array([0, 1, 2, 3, 0]), r"0 to 3 \(client 0\)"),
        (np.array([0, 1, -1, 2, 0]), r"-1 to 2 \(client 0\)"),
    ],
    ids=["length", "shape", "floats", "mask", "high", "low"],
)
def test_labels_that_a_client_cannot_have_are_refused(fleet: BaseFleet, y: Any, match: str) -> None:
    rule = r"state\['y'\] is one integer label below 3 for each of 5 samples; got "
    with pytest.raises(RayflError, match=rule + match):
        fleet.map(phases.hold, [0], y=y)
    assert fleet.table == {}


@pytest.mark.parametrize(
    ("kept", "match"),
    [
        (np.ones(4, np.bool_), r"bool of shape \(4,\)"),
        (np.ones(5, np.int64), r"int64 of shape \(5,\)"),
        (np.ones((5, 2), np.bool_), r"bool of shape \(5, 2\)"),
    ],
    ids=["length", "integers", "transposed"],
)
def test_masks_that_a_client_cannot_have_are_refused(
    fleet: BaseFleet, kept: Any, match: str
) -> None:
    rule = r"state\['kept'\] is a mask of 5 samples, or a row of them an epoch; got "
    with pytest.raises(RayflError, match=rule + match):
        fleet.map(phases.hold, [0], kept=kept)
    assert fleet.table == {}


def test_labels_and_masks_that_fit_are_kept(fleet: BaseFleet) -> None:
    fleet.map(phases.hold, [0], y=np.array([2, 1, 0, 0, 1], np.int32), kept=np.ones(5, np.bool_))
    assert fleet.map(phases.own_labels, [0])[0]["y"] == [2, 1, 0, 0, 1]
    assert fleet.map(phases.train, [0], w=fleet.initial())[0]["steps"] == 3
    fleet.map(phases.hold, [0], kept=np.zeros((3, 5), np.bool_))
    # The server's entries of these names are its own business.
    fleet.map(phases.hold, [SERVER], y=np.zeros(99), kept=np.zeros(7))
    assert fleet.get(fleet.table[SERVER]["y"]).shape == (99,)


@pytest.mark.parametrize("named", [False, True])
def test_tensors_are_no_updates(fleet: BaseFleet, named: bool) -> None:
    rule = r"the update 'w' is" if named else "an update is"
    with pytest.raises(RayflError, match=rule + r" a float32 vector of numpy's.*; got Tensor\. "):
        fleet.map(phases.leave_tensors, [0], named=named)


def test_lists_are_no_updates(fleet: BaseFleet) -> None:
    rule = r"or several by name; got list\. Take trained\.weights, or tensor\.cpu\(\)\.numpy\(\)\."
    with pytest.raises(RayflError, match=rule):
        fleet.map(phases.leave_list, [0])


def test_a_phase_that_trains_yields_a_wish(fleet: BaseFleet) -> None:
    with pytest.raises(RayflError, match=r"yields Fit\(weights, ...\); got ndarray\. Wrap the we"):
        fleet.map(phases.yield_weights, [0], w=np.zeros(15, np.float32))


def test_features_go_with_their_images(here: BaseFleet) -> None:
    features = {"train": np.ones((20, 2), np.float32), "public": np.ones((5, 2), np.float32)}
    here.share_features("enc", features)
    assert here.map(phases.swap_images, [0], carefully=True)[0] == {"features": 0, "images": 1}
    rule = r"a row for each of its images \(1\); got 5 rows of 'enc'\. Use client\.on\(images\)"
    with pytest.raises(RayflError, match=rule):
        here.map(phases.swap_images, [0], carefully=False)


# -- costs and what a method leaves ----------------------------------------------------------------


def test_costs_are_bytes_each_way_and_sample_passes(fleet: BaseFleet) -> None:
    fleet.map(phases.train_a_bit, [0, 3], w=fleet.put(np.zeros(10, np.float32)))
    # Down: ten floats each. Up: ten floats and one reported float each; whole numbers and `_hint`
    # are free.
    expected = {"participants": 2, "down": 80, "up": 88, "forward": 24, "backward": 12}
    assert fleet.costs.take() == {**expected, "server_forward": 0, "server_backward": 0}
    assert fleet.costs.participants == 0
    assert fleet.clock.take()["time/busy_s"] > 0
    assert set(fleet.clock.take().values()) == {0.0}


def test_passes_are_counted_by_the_networks(fleet: BaseFleet) -> None:
    w = fleet.initial()
    fleet.map(phases.pass_through, [0, 3], w=w)
    # Five and seven images, forward twice and back once.
    assert (fleet.costs.forward, fleet.costs.backward) == (24, 12)
    fleet.costs.take()
    fleet.map(phases.train, [0, 3], w=w)
    assert (fleet.costs.forward, fleet.costs.backward) == (12, 12)
    fleet.costs.take()
    server = fleet.serve(phases.pass_through_set, w=w, held=fleet.data("public"))
    assert server.report == {}
    assert (fleet.costs.forward, fleet.costs.backward) == (0, 0)
    assert (fleet.costs.server_forward, fleet.costs.server_backward) == (10, 5)


def test_a_client_that_is_visited_twice_takes_part_once(fleet: BaseFleet) -> None:
    for _ in range(3):
        fleet.map(phases.describe, [0, 3])
    fleet.map(phases.describe, [5])
    assert fleet.costs.participants == 3


def test_own_inputs_and_references_to_neighbours_cost_their_size(fleet: BaseFleet) -> None:
    fleet.map(phases.remember, [1], value=1.0)
    fleet.costs.take()
    each: dict[int, dict[str, Any]] = {0: {"peer": fleet.state(1, "v")}, 3: {"peer": np.ones(5)}}
    fleet.map(phases.read_peer, [0, 3], each=each, value=1.0)
    assert fleet.costs.down == 24 + 40


def test_the_servers_work_is_counted_apart(fleet: BaseFleet) -> None:
    fleet.map(phases.train_a_bit, [SERVER], w=np.zeros(3, np.float32))
    assert (fleet.costs.participants, fleet.costs.down, fleet.costs.up) == (0, 0, 0)


def test_what_a_method_logs_estimates_and_leaves(fleet: BaseFleet) -> None:
    fleet.log(rounds=1.0)
    fleet.log(rounds=2.0, drift=0.5)
    fleet.estimate("reliability", {3: 1, 0: np.float32(0.5)})
    matrix = np.eye(2)
    fleet.leave("similarity", matrix)
    matrix[:] = 0
    assert fleet.take_logged() == {"rounds": 2.0, "drift": 0.5}
    assert fleet.take_logged() == {}
    assert fleet.take_estimates() == {"reliability": {0: 0.5, 3: 1.0}}
    assert fleet.take_estimates() == {}
    assert np.array_equal(fleet.left["similarity"], np.eye(2))


def test_features_reach_their_owners(here: BaseFleet) -> None:
    features = {
        name: np.arange(3.0 * n, dtype=np.float32).reshape(n, 3)
        for name, n in (("train", 20), ("public", 5))
    }
    here.share_features("enc", features)
    for client, report in here.map(
        phases.read_features, [0, 3], public=here.data("public")
    ).items():
        assert report["own"] == features["train"][holdings().rows(client)].tolist()
        assert report["public"] == features["public"].tolist()


@pytest.mark.parametrize("verb", ["init", "round", "model"])
def test_an_algorithm_must_say_its_three_verbs(verb: str) -> None:
    with pytest.raises(NotImplementedError, match=r"^$"):
        getattr(Algorithm(), verb)(*[None] * {"init": 2, "round": 3, "model": 2}[verb])


def test_an_algorithm_asks_for_nothing_by_default(here: BaseFleet) -> None:
    plain = Algorithm()
    assert not plain.encoders()
    assert not plain.clusters(None)
    assert not plain.further_models(None, here)
    assert plain.check(here) is None  # type: ignore[func-returns-value]


def test_updates_of_a_void_round_are_freed(fleet: BaseFleet) -> None:
    with pytest.raises(NobodyLeft, match="diverged"):
        fleet.map(phases.leave, CLIENTS, models={client: [NAN] for client in CLIENTS})
    for report in fleet.map(phases.held_updates, CLIENTS).values():
        assert report["held"] == []
