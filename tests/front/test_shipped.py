"""Configurations that come with rayfl: found by name and by path, listed, copied out, refused where
they do not belong."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rayfl.config.files import read_config
from rayfl.config.shipped import find_base, find_file, kind_of, list_shipped, shipped_folder
from rayfl.study.cells import load_study
from rayfl.tuning.schema import load_sweep
from tests.front.cli import invoked, refused


@pytest.mark.parametrize(
    ("named", "kind", "found"),
    [
        ("quickstart", "run", "quickstart.yaml"),
        ("quickstart", "sweep", "sweeps/quickstart.yaml"),
        ("fedds_table4", "study", "paper/fedds_table4.yaml"),
        ("fedds_table4", "run", "paper/fedds_table4.yaml"),
        ("paper/fedds_table4", "study", "paper/fedds_table4.yaml"),
        ("configs/paper/fedds_table4.yaml", "study", "paper/fedds_table4.yaml"),
        ("configs/quickstart.yaml", "sweep", "quickstart.yaml"),
        ("fedrn", "run", "methods/fedrn.yaml"),
    ],
)
def test_a_name_and_a_path_find_what_comes_with_rayfl(
    home: Path, named: str, kind: str, found: str
) -> None:
    assert find_file(Path(named), kind) == shipped_folder() / found  # type: ignore[arg-type]


@pytest.mark.parametrize("named", ["quickstart.yaml", "../quickstart", "/quickstart", "nothing"])
def test_what_is_nowhere_stays_what_it_is(home: Path, named: str) -> None:
    assert find_file(Path(named), "run") == Path(named)


def test_a_file_of_ones_own_comes_first(home: Path) -> None:
    (home / "quickstart.yaml").write_text("clients: 3")
    assert read_config(Path("quickstart")) == {"clients": 3}


def test_a_base_may_be_one_that_comes_with_rayfl(home: Path) -> None:
    (home / "mine.yaml").write_text("base: quickstart\nclients: 3")
    settings = read_config(Path("mine.yaml"))
    assert (settings["clients"], settings["data"]) == (3, "digits")
    (home / "study.yaml").write_text(
        "title: t\nbase: quickstart\naxes: {method: {a: {title: A, set: {}}}}"
    )
    assert load_study(Path("study.yaml")).common["data"] == "digits"
    (home / "sweep.yaml").write_text("base: quickstart\nsearch: {training.lr: {grid: [0.1]}}")
    assert load_sweep(Path("sweep.yaml")).set["data"] == "digits"
    assert find_base(home, "nothing.yaml") == home / "nothing.yaml"


def test_all_are_listed_with_their_kind() -> None:
    lines = invoked("configs").splitlines()
    assert [line.split()[1] for line in lines] == list_shipped()
    assert {line.split()[0] for line in lines} == {"run", "study", "sweep"}
    assert all(len(line.split(maxsplit=2)) == 3 for line in lines), "each says what it is"


WRONG = [
    (["run", "fedds_table4"], "got a study, fedds_table4. Give it to `rayfl study fedds_table4`"),
    (["run", "configs/sweeps/asha.yaml"], "got a sweep, configs/sweeps/asha.yaml. Give it to `ra"),
    (["sweep", "configs/quickstart.yaml"], "Give it to `rayfl run configs/quickstart.yaml`"),
    (["sweep", "fedds_table4"], "Give it to `rayfl study fedds_table4`"),
    (["study", "configs/quickstart.yaml"], "`rayfl study` takes a study; got the configuration of"),
    (["study", "configs/sweeps/pbt.yaml"], "got a sweep"),
    (["run", "queue.yaml"], "got a queue, queue.yaml. Give it to `rayfl queue queue.yaml`"),
    (["run", "quickstrat"], "got 'quickstrat', which is not there. Did you mean 'quickstart'?"),
    (["study", "fedds_tabel4"], "Did you mean 'fedds_table4'?"),
    (["sweep", "xyzzy"], "`rayfl configs` lists those that come with rayfl."),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_a_file_in_the_wrong_place_is_told_where_it_belongs(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    (home / "queue.yaml").write_text("queue: [{study: configs/paper/fedds_table4.yaml}]")
    code, text = refused(capsys, *words)
    assert code == 2
    assert said in text
    assert len(text.splitlines()) == 1


def test_keys_tell_the_kinds_apart() -> None:
    kinds = {
        name: kind_of(yaml.safe_load((shipped_folder() / f"{name}.yaml").read_text()))
        for name in list_shipped()
    }
    assert {kind for name, kind in kinds.items() if name.startswith("sweeps/")} == {"sweep"}
    assert {kind for name, kind in kinds.items() if name.startswith("methods/")} == {"run"}
    assert kinds["paper/fedds_table5"] == "study"


# -- init ------------------------------------------------------------------------------------------


def test_init_copies_everything_and_what_is_copied_runs(home: Path) -> None:
    said = invoked("init", "mine")
    files = [path for path in shipped_folder().rglob("*") if path.is_file()]
    assert f"{len(files)} files in mine/configs" in said
    for path in files:
        copy = home / "mine" / "configs" / path.relative_to(shipped_folder())
        assert copy.read_bytes() == path.read_bytes()
    study = load_study(home / "mine" / "configs" / "paper" / "fedds_table5.yaml")
    assert study.printed is not None
    assert Path(study.printed.file).is_relative_to(home)


def test_init_replaces_nothing_of_ones_own(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    invoked("init")
    invoked("init")
    (home / "configs" / "quickstart.yaml").write_text("clients: 3")
    code, said = refused(capsys, "init")
    assert code == 2
    assert "nothing of yours is replaced without --force (1 files differ)" in said
    assert read_config(Path("configs/quickstart.yaml")) == {"clients": 3}
    invoked("init", "--force")
    assert read_config(Path("configs/quickstart.yaml"))["clients"] == 20


def test_init_does_not_copy_a_folder_onto_itself(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = refused(capsys, "init", str(shipped_folder().parent))
    assert code == 2
    assert "not their own" in said
