"""Federations of data with names and sites: who owns what, what splits leave, labels of tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from rayfl.algorithms.fedavg import FedAvg
from rayfl.component import component
from rayfl.errors import ConfigError, DataError
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.plan import FederationPlan
from rayfl.federation.scenario import Scenario, build_scenario, open_federation
from rayfl.federation.split import Role
from rayfl.run.assembly import narrow_scenario
from tests.federation.own_images import paint, write_table
from tests.federation.toys import SYMMETRIC, build_toy

CLASSES = ("cat", "cow", "dog")


@component
class Clinics:
    """Images whose pixel is their number in the training set, of as many sites as there are sizes;
    `file3.png` is row 3, and `test3.png` a test image."""

    sizes: tuple[int, ...] = (40, 20, 10)
    truth: bool = False

    def load(self, root: Path) -> Dataset:
        site = np.repeat(np.arange(len(self.sizes)), self.sizes)
        site = np.random.default_rng(1).permutation(site)
        y = np.random.default_rng(2).permutation(np.arange(len(site)) % 3)
        truth = (y + (np.arange(len(y)) % 4 == 0)) % 3 if self.truth else None
        x = (np.arange(len(y)) % 256).astype(np.uint8).reshape(-1, 1, 1, 1)
        train = Images(x, y, site, np.array([f"file{i}.png" for i in range(len(y))]), truth)
        test = replace(train.take(np.arange(5)), names=np.array([f"test{i}.png" for i in range(5)]))
        sites = tuple(f"site{s}" for s in range(len(self.sizes)))
        return Dataset("clinics", train, test, CLASSES, sites)


@component
class Nameless:
    """The same without names."""

    def load(self, root: Path) -> Dataset:
        found = Clinics().load(root)
        train = replace(found.train, names=None, groups=None)
        return Dataset("nameless", train, train, CLASSES)


def build(seed: int = 0, **written: Any) -> Scenario:
    plan = FederationPlan.model_validate({"data": Clinics(), "clients": 3, **written})
    return build_scenario(plan, plan.data.load(Path()), seed)


def site_of_rows(sizes: Sequence[int] = (40, 20, 10)) -> NDArray[np.int64]:
    groups = Clinics(sizes=tuple(sizes)).load(Path()).train.groups
    assert groups is not None
    return groups


# -- partition: sites ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_each_site_is_the_client_of_its_name(seed: int) -> None:
    scenario = build(seed, partition="sites")
    assert scenario.client_names == ("site0", "site1", "site2")
    assert (scenario.owner == site_of_rows()).all()
    assert [scenario.name_client(k) for k in range(3)] == ["site0", "site1", "site2"]


def test_another_number_of_clients_is_refused_with_the_sites() -> None:
    with pytest.raises(
        ConfigError,
        match=r"a client of each site \(site0, site1, site2\); got clients: 10. Write clients: 3",
    ):
        build(partition="sites", clients=10)


def test_data_without_sites_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs data whose sites have names; got none"):
        build_toy(partition="sites")


def test_groups_still_deal_whole_sites() -> None:
    owner = build(partition="groups", clients=2).owner
    for site in range(3):
        assert len(np.unique(owner[site_of_rows() == site])) == 1


# -- splits ----------------------------------------------------------------------------------------

AMOUNTS = st.one_of(
    st.none(),
    st.floats(0, 0.15).map(lambda share: {"fraction": share}),
    st.integers(1, 12).map(lambda total: {"total": total}),
)


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=7).map(lambda s: [*s, 100]),
    public=AMOUNTS,
    validation=AMOUNTS,
    labelled=AMOUNTS,
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_no_sample_is_lost_or_in_two_places_and_no_site_goes_empty(
    sizes: list[int], public: Any, validation: Any, labelled: Any, seed: int
) -> None:
    split = {"public": public, "validation": validation, "labelled": labelled}
    data = Clinics(sizes=tuple(sizes))
    scenario = build(seed, data=data, clients=len(sizes), partition="sites", split=split)
    sites = site_of_rows(sizes)
    held = scenario.owner >= 0
    assert (scenario.owner[held] == sites[held]).all()
    assert scenario.sizes().min() >= 1
    owners = [*range(len(sizes)), *Role]
    rows = np.concatenate([scenario.indices(owner) for owner in owners])
    assert sorted(rows.tolist()) == list(range(sum(sizes)))
    assert not len(scenario.indices(Role.UNUSED))


def test_a_public_set_takes_of_each_site_and_class_in_proportion() -> None:
    sizes = (300, 90, 30)
    for seed in range(5):
        data = Clinics(sizes=sizes)
        scenario = build(seed, data=data, partition="sites", split={"public": 0.2})
        public = scenario.indices(Role.PUBLIC)
        taken = np.bincount(site_of_rows(sizes)[public], minlength=3)
        assert taken.sum() == 84
        assert np.abs(taken - [60, 18, 6]).max() <= 3


def test_a_larger_public_set_contains_the_smaller_one() -> None:
    small = build(split={"public": 0.1}, partition="sites").indices(Role.PUBLIC)
    large = build(split={"public": 0.3}, partition="sites").indices(Role.PUBLIC)
    assert set(small.tolist()) < set(large.tolist())


@pytest.mark.parametrize("cap", [{"train_samples": 0.2}, {"client_samples": 0.2}])
def test_a_scaled_down_federation_keeps_every_site(cap: dict[str, float]) -> None:
    for seed in range(5):
        data = Clinics(sizes=(80, 20, 1))
        assert build(seed, data=data, partition="sites", split=cap).sizes().min() >= 1


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("key", ["file", "id"])
def test_a_table_tells_the_servers_sets(tmp_path: Path, suffix: str, key: str) -> None:
    told = {3: "public", 8: "public", 4: "validation", 0: "labelled", 9: "unused", 7: "clients"}
    rows = [
        {key: f"file{row}.png" if key == "file" else row, "set": name} for row, name in told.items()
    ]
    if key == "file":
        # A list of all images has the test images, too.
        rows.append({"file": "test2.png", "set": "public"})
    table = write_table(tmp_path / f"sets{suffix}", rows)
    scenario = build(partition="sites", split={"table": table})
    assert scenario.indices(Role.PUBLIC).tolist() == [3, 8]
    assert scenario.indices(Role.VALIDATION).tolist() == [4]
    assert scenario.indices(Role.LABELLED).tolist() == [0]
    assert scenario.indices(Role.UNUSED).tolist() == [9]
    assert scenario.sizes().sum() == 65


def test_what_a_table_of_sets_leaves_is_cut_as_usual(tmp_path: Path) -> None:
    table = write_table(tmp_path / "sets.csv", [{"id": i, "set": "unused"} for i in range(10)])
    scenario = build(partition="sites", split={"table": table, "public": {"total": 12}})
    assert scenario.indices(Role.UNUSED).tolist() == list(range(10))
    assert len(scenario.indices(Role.PUBLIC)) == 12
    assert scenario.indices(Role.PUBLIC).min() >= 10


@pytest.mark.parametrize(
    ("rows", "split", "rule"),
    [
        ([{"file": "file1.png", "set": "server"}], {}, r"'set' is one of public, .* got 'server'"),
        ([{"file": "fil1.png", "set": "public"}], {}, r"every file is an image of the dataset"),
        ([{"file": "file1.png"}], {}, r"a column 'set'; got columns file"),
        ([{"name": "file1.png", "set": "public"}], {}, r"a column 'file' or 'id' says which"),
        ([{"id": 70, "set": "public"}], {}, r"'id' lies in \[0, 70\); got 70"),
        (
            [{"file": "file1.png", "set": "public"}] * 2,
            {},
            r"every file occurs once; got 'file1\.png'",
        ),
        ([{"id": 1, "set": "public"}], {"public": 0.1}, r"split\.public is told by split\.table"),
    ],
)
def test_tables_of_sets_that_do_not_fit_are_refused(
    tmp_path: Path, rows: list[dict[str, Any]], split: dict[str, Any], rule: str
) -> None:
    table = write_table(tmp_path / "sets.csv", rows)
    with pytest.raises((DataError, ConfigError), match=rule):
        build(split={"table": table, **split})


# -- partition: explicit ---------------------------------------------------------------------------


@pytest.mark.parametrize("split", [{}, {"public": 0.2, "validation": 0.1}])
@pytest.mark.parametrize("key", ["file", "id"])
def test_owners_by_name_outlive_every_split(
    tmp_path: Path, key: str, split: dict[str, float]
) -> None:
    rows = [{key: f"file{i}.png" if key == "file" else i, "client": i % 3} for i in range(60)]
    if key == "file":
        rows.append({"file": "test0.png", "client": 1})
    table = write_table(tmp_path / "owners.csv", rows)
    scenario = build(partition={"name": "explicit", "file": table}, split=split)
    held = np.flatnonzero(scenario.owner >= 0)
    assert len(held) >= 40
    assert (scenario.owner[held] == held % 3).all()
    assert held.max() < 60
    assert scenario.client_names is None


def test_clients_of_a_table_may_have_names(tmp_path: Path) -> None:
    names = ["oslo", "rome", "bern"]
    rows = [{"id": i, "client": names[i % 3] if i % 5 else "-1"} for i in range(70)]
    table = write_table(tmp_path / "owners.parquet", rows)
    partition = {"name": "explicit", "file": table}
    scenario = build(partition=partition)
    assert scenario.client_names == ("bern", "oslo", "rome")
    for i in range(70):
        owner = scenario.owner[i]
        assert (scenario.name_client(owner) if owner >= 0 else "-1") == rows[i]["client"]
    with pytest.raises(ConfigError, match=r"3 clients have names; got clients: 4\. Write"):
        build(partition=partition, clients=4)


def test_owners_by_pool_index_count_as_before(tmp_path: Path) -> None:
    table = write_table(tmp_path / "owners.csv", [{"client": i % 3} for i in range(70)])
    assert (build(partition={"name": "explicit", "file": table}).owner == np.arange(70) % 3).all()


# -- labels ----------------------------------------------------------------------------------------


def own_folder(folder: Path) -> dict[str, Any]:
    """Ten images in each of two sites and classes; the data of a plan."""
    for place in ("cat/north", "cat/south", "dog/north", "dog/south"):
        for i in range(10):
            paint(folder / place / f"{i}.png", 10 * i)
    return {"name": "folder", "path": str(folder), "sites": "parent"}


def test_labels_of_data_with_sites_are_given(tmp_path: Path) -> None:
    data = own_folder(tmp_path)
    assert FederationPlan(data=data).labels == "given"
    assert FederationPlan(data={**data, "sites": None}).labels == "true"
    assert FederationPlan(data=data, labels="true").labels == "true"
    assert FederationPlan().labels == "true"
    _, scenario = open_federation(FederationPlan(data=data, partition="sites", clients=2), 0)
    assert scenario.true is None
    assert scenario.name_samples(np.array([0]))[0].startswith("cat/north/")


def test_a_truth_of_the_data_is_for_the_evaluation() -> None:
    data = Clinics(truth=True)
    scenario = build(data=data, labels="given", partition="sites")
    truth = data.load(Path()).train
    assert scenario.true is not None
    assert (scenario.given == truth.y).all()
    assert (scenario.true == truth.truth).all()
    assert np.isnan(scenario.nominal).all()
    assert scenario.noise_rate() == pytest.approx(18 / 70)
    with pytest.raises(ConfigError, match="labels: true takes the labels of the data for the"):
        build(data=data, labels="true")


def label_rows(key: str, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Everybody is a dog, by name or by row."""
    return [{key: f"file{i}.png" if key == "file" else i, "label": "dog"} for i in rows]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("key", ["file", "id"])
def test_labels_of_a_table_take_the_place_of_given_ones(
    tmp_path: Path, key: str, suffix: str
) -> None:
    rows = label_rows(key, range(70))
    rows[5]["label"] = "cow"
    # What an audit knows beside is left alone.
    table = write_table(tmp_path / f"labels{suffix}", [{**row, "score": 0.5} for row in rows])
    plain = build(noise=SYMMETRIC, partition="sites")
    found = build(noise=SYMMETRIC, partition="sites", labels={"table": table, "over": "true"})
    assert found.given.tolist() == [1 if i == 5 else 2 for i in range(70)]
    assert (found.owner == plain.owner).all()
    assert plain.true is not None
    assert found.true is not None
    assert (found.true == plain.true).all()
    assert np.isnan(found.nominal).all()
    assert found.sha256 != plain.sha256


@pytest.mark.parametrize("name", ["labels.csv", "labels.parquet"])
def test_a_folder_stands_for_the_table_in_it(tmp_path: Path, name: str) -> None:
    write_table(tmp_path / name, label_rows("file", range(70)))
    assert (build(labels=str(tmp_path)).given == 2).all()
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match=r"has labels\.parquet or labels\.csv; got neither"):
        build(labels=empty)
    with pytest.raises(DataError, match=r"empty/x is a table, or a folder .* got nothing there"):
        build(labels=empty / "x")


def test_labels_may_be_the_numbers_of_classes(tmp_path: Path) -> None:
    rows = [{"id": i, "label": i % 3} for i in range(70)]
    table = write_table(tmp_path / "labels.parquet", rows)
    assert (build(labels=table).given == np.arange(70) % 3).all()


def test_server_sets_and_test_images_need_no_label(tmp_path: Path) -> None:
    split = {"public": 0.2}
    plain = build(split=split)
    held = np.flatnonzero(plain.owner >= 0)
    rows = [*label_rows("file", held.tolist()), {"file": "test1.png", "label": "cat"}]
    table = write_table(tmp_path / "labels.csv", rows)
    found = build(split=split, labels=table)
    public = found.indices(Role.PUBLIC)
    assert (found.given[held] == 2).all()
    assert (found.given[public] == plain.given[public]).all()


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        (label_rows("file", range(69)), r"a label for every sample .*\(70\); .* 'file69\.png'"),
        (label_rows("file", [*range(70), 3]), r"every file occurs once; got 'file3\.png'"),
        (label_rows("id", [*range(70), 3]), r"every id occurs once; got '3'"),
        (label_rows("file", range(71)), r"every file is an image of the dataset; got 1 that are"),
        (
            [*label_rows("file", range(69)), {"file": "file69.png", "label": "dgo"}],
            r"'label' has the 3 classes of the data; got 'dgo' in row 69\. Did you mean 'dog'",
        ),
        ([{"id": i, "label": 3} for i in range(70)], r"has the 3 classes of the data; got '3'"),
        ([{"id": 1.5, "label": 1}], r"'id' holds whole numbers; got 1\.5"),
    ],
)
def test_tables_of_labels_that_do_not_fit_are_refused(
    tmp_path: Path, rows: list[dict[str, Any]], rule: str
) -> None:
    table = write_table(tmp_path / "labels.csv", rows)
    with pytest.raises(DataError, match=rule):
        build(labels=table)


def test_data_without_names_are_labelled_by_row(tmp_path: Path) -> None:
    by_file = write_table(tmp_path / "file.csv", label_rows("file", range(70)))
    by_id = write_table(tmp_path / "id.csv", label_rows("id", range(70)))
    assert (build(data=Nameless(), labels=by_id).given == 2).all()
    with pytest.raises(DataError, match=r"needs data whose images have names.*by 'id'"):
        build(data=Nameless(), labels=by_file)


def test_a_saved_scenario_takes_labels_of_a_table(tmp_path: Path) -> None:
    saved = build(noise=SYMMETRIC, partition="sites")
    saved.save(tmp_path / "s")
    before = {file: file.read_bytes() for file in (tmp_path / "s").iterdir()}
    table = write_table(tmp_path / "labels.csv", label_rows("file", range(70)))
    plan = FederationPlan.model_validate({"scenario": tmp_path / "s", "labels": table})
    _, found = open_federation(plan, 0)
    assert (found.owner == saved.owner).all()
    assert (found.given == 2).all()
    assert found.true is not None
    assert {file: file.read_bytes() for file in (tmp_path / "s").iterdir()} == before


def test_a_word_that_is_no_path_is_no_table() -> None:
    with pytest.raises(ValidationError, match="labels"):
        FederationPlan.model_validate({"labels": "givne"})


# -- names -----------------------------------------------------------------------------------------


def test_names_and_sites_outlive_the_disk(tmp_path: Path) -> None:
    scenario = build(partition="sites", split={"public": 0.2})
    scenario.save(tmp_path / "s")
    found = Scenario.load(tmp_path / "s")
    rows = np.arange(70)
    assert found.name_samples(rows) == [f"file{i}.png" for i in rows]
    assert found.name_sites(rows) == [f"site{s}" for s in site_of_rows()]
    assert found.client_names == scenario.client_names
    assert found.sha256 == scenario.sha256


def test_names_are_in_no_hash_and_go_to_no_place() -> None:
    scenario = build(partition="sites")
    bare = replace(scenario, names=None, client_names=None)
    assert bare.sha256 == scenario.sha256
    assert narrow_scenario(FedAvg(), scenario).names is None
    assert bare.name_samples(np.array([4, 2])) == ["4", "2"]
    assert bare.name_sites(np.array([4])) is None
    assert bare.name_client(1) == "1"


def test_an_artefact_without_names_is_what_it_was(tmp_path: Path) -> None:
    build_toy().save(tmp_path / "s")
    assert sorted(file.name for file in (tmp_path / "s").iterdir()) == [
        "clients.parquet",
        "samples.parquet",
        "scenario.json",
    ]
    assert "names" not in (tmp_path / "s" / "scenario.json").read_text()


def test_names_that_were_changed_are_found_out(tmp_path: Path) -> None:
    build(partition="sites").save(tmp_path / "one")
    build(partition="sites", data=Clinics(sizes=(30, 30, 10))).save(tmp_path / "two")
    (tmp_path / "two" / "names.parquet").replace(tmp_path / "one" / "names.parquet")
    with pytest.raises(DataError, match=r"names\.parquet must hash to .* It was changed"):
        Scenario.load(tmp_path / "one")


def test_a_scenario_saved_before_a_setting_was_known_is_adopted(tmp_path: Path) -> None:
    """Its plan has no word of it, which is no contradiction."""
    data = own_folder(tmp_path / "data")
    del data["sites"]
    plan = FederationPlan(data=data, clients=2)
    _, scenario = open_federation(plan, 0)
    scenario.save(tmp_path / "s")
    header = json.loads((tmp_path / "s" / "scenario.json").read_text())
    for key in ("sites", "truth", "damaged"):
        del header["plan"]["data"][key]
    del header["plan"]["split"]["table"]
    (tmp_path / "s" / "scenario.json").write_text(json.dumps(header))
    adopted = FederationPlan.model_validate({"scenario": tmp_path / "s"})
    assert open_federation(adopted, 0)[1].sha256 == scenario.sha256


ROLES = ("public", "validation", "labelled", "clients", "unused")


@given(
    told=st.dictionaries(st.integers(0, 69), st.sampled_from(ROLES), min_size=1, max_size=50),
    owners=st.dictionaries(st.integers(0, 69), st.integers(-1, 2), max_size=70),
    share=st.none() | st.floats(0, 0.1),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_random_tables_put_every_sample_into_one_place(
    tmp_path_factory: pytest.TempPathFactory,
    told: dict[int, str],
    owners: dict[int, int],
    share: float | None,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("tables")
    sets = [{"file": f"file{row}.png", "set": name} for row, name in told.items()]
    clients = [{"id": row, "client": owner} for row, owner in owners.items()] or [
        {"id": 0, "client": 0}
    ]
    split: dict[str, Any] = {"table": write_table(folder / "sets.csv", sets)}
    if "public" not in told.values():
        split["public"] = share
    table = write_table(folder / "owners.csv", clients)
    scenario = build(seed, split=split, partition={"name": "explicit", "file": table})
    rows = np.concatenate([scenario.indices(owner) for owner in (*range(3), *Role)])
    assert sorted(rows.tolist()) == list(range(70))
    for row, name in told.items():
        if name in ("public", "validation", "labelled"):
            assert scenario.owner[row] == Role[name.upper()]
        elif name == "unused":
            assert scenario.owner[row] == Role.UNUSED
    for row in np.flatnonzero(scenario.owner >= 0).tolist():
        assert scenario.owner[row] == owners.get(row, 0)
