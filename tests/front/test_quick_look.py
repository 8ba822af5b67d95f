"""A first look at a configuration: it finds what validation finds, before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rayfl.config.files import read_config
from rayfl.config.shipped import kind_of, list_shipped, shipped_folder

ALL = """
import sys
from pathlib import Path
from rayfl.config.files import parse_file, read_config
from rayfl.config.quick_look import look_quickly
from rayfl.config.schema import Config
from rayfl.config.shipped import kind_of, list_shipped, shipped_folder

for name in list_shipped():
    path = shipped_folder() / f"{name}.yaml"
    if kind_of(parse_file(path)) == "run":
        look = look_quickly(read_config(path), Config, name)
        assert look.config is not None, name
        print(name, look.complete, *(f"{owner}:{','.join(needs)}" for owner, needs in look.needs))
assert "torch" not in sys.modules
"""

ONE = """
import sys
from pathlib import Path
from rayfl.config.files import apply_override, read_config
from rayfl.config.schema import Config, validate_config
from rayfl.config.quick_look import look_quickly
from rayfl.errors import RayflError

for words in sys.argv[1:]:
    settings = read_config(Path("quickstart"))
    for word in words.split(" ; "):
        settings = apply_override(settings, word)
    try:
        look_quickly(settings, Config, "here")
        quick = "nothing"
    except RayflError as error:
        quick = str(error)
    assert "torch" not in sys.modules
    print(repr(quick))
print("---")
for words in sys.argv[1:]:
    settings = read_config(Path("quickstart"))
    for word in words.split(" ; "):
        settings = apply_override(settings, word)
    try:
        validate_config(settings, "here")
        print(repr("nothing"))
    except RayflError as error:
        print(repr(str(error)))
"""

MISTAKES = [
    "method=fedpox",
    "round=5",
    "training.rounds=ten",
    "training.lr=-1",
    "training.fraction=2",
    "noise.rate=1.4",
    "method=fedprox ; method.mu=-1",
    "method=fedprox ; method.nu=1",
    "method=fedprox ; method.weighting=dawid",
    "method=fedprox ; method.weighting={name: dawid_skene, tol: -1}",
    "method=fedrn ; method.warmup=often",
    "model=mpl",
    "model.hiden=[3]",
    "partition=shard",
    "training.augment=crop_flop",
    "training.clients_per_round=50 ; training.fraction=null",
    "public_data=mnist",
]


def ran(*words: str) -> list[str]:
    """The lines that a program prints, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_it_finds_nothing_wrong_with_what_comes_with_rayfl_and_imports_no_torch() -> None:
    lines = dict(line.split(" ", 1) for line in ran(ALL))
    runs = [name for name in list_shipped() if _is_run(name)]
    assert list(lines) == runs
    # What can be wrong in nothing but its data may have Ray started while torch is imported.
    assert lines["quickstart"] == "True"
    assert lines["methods/server_sl"] == "True ServerSL:labelled"
    # FedProx has a check of its own, and FedDS a part that has one.
    assert lines["methods/fedprox"].startswith("False")
    assert "DawidSkeneWeighting:public" in lines["methods/fedds"]


def _is_run(name: str) -> bool:
    from rayfl.config.files import parse_file

    return kind_of(parse_file(shipped_folder() / f"{name}.yaml")) == "run"


def test_it_says_what_validation_says() -> None:
    lines = ran(ONE, *MISTAKES)
    half = lines.index("---")
    quick = lines[:half]
    whole = lines[half + 1 :]
    assert "'nothing'" not in quick
    for mistake, first, second in zip(MISTAKES, quick, whole, strict=True):
        assert first == second, mistake


FOREIGN = """
import sys
from pathlib import Path
from rayfl.config.files import read_config
from rayfl.config.schema import Config
from rayfl.config.quick_look import look_quickly

settings = read_config(Path(sys.argv[1]))
look = look_quickly(settings, Config, "here")
print(look.complete, type(look.config.method).__name__)
"""
MINE = '''
from rayfl.component import component
from rayfl.methods import FedAvg


@component
class Mine(FedAvg):
    """My own."""
'''


def test_a_component_of_ones_own_is_built_itself_and_nothing_is_vouched_for(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine_to_look_at.py").write_text(MINE)
    (tmp_path / "mine.yaml").write_text("base: quickstart\nmethod: mine_to_look_at:Mine")
    assert ran(FOREIGN, str(tmp_path / "mine.yaml")) == ["False Mine"]


@pytest.mark.parametrize("name", ["quickstart", "fedds"])
def test_where_torch_is_imported_there_is_no_first_look(name: str) -> None:
    import torch  # noqa: F401

    from rayfl.config.quick_look import look_quickly
    from rayfl.config.schema import Config

    assert look_quickly(read_config(Path(name)), Config, name).config is None
