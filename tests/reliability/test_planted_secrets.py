"""Five thousand secrets are planted, and none of them is found."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayfl.config.files import read_config
from rayfl.config.schema import Config, load_config, validate_config
from rayfl.errors import RayflError
from rayfl.federation.scenario import Scenario, open_federation
from rayfl.run.artifacts import track_run
from rayfl.run.checkpoint import CheckpointStore, refuse_bad_uri
from rayfl.run.directory import begin_directory
from rayfl.secrets import describe_error, is_secret_name, mask_secrets
from rayfl.tracking.journal import Journal
from rayfl.tracking.store import refuse_bad_uri as refuse_bad_store
from tests.reliability.drills import RAYFL, ROOT, SETTINGS
from tests.reliability.planted_secrets import SPOILS, Planter, settings_of

PLANTED = 5000
INLINE = {**SETTINGS, "fleet": "inline", "method": "fedavg", "training": {"rounds": 2}}


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return open_federation(Config(clients=4), 0)[1]


def gather_said(folder: Path, planter: Planter, scenario: Scenario) -> str:
    """All that is written and said about one configuration full of secrets."""
    settings = settings_of(planter)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(settings))
    said = [write_run(load_config(path), folder / "run", scenario)]
    for spoil in SPOILS.values():
        override = spoil(settings, planter)
        with pytest.raises(RayflError) as refusal:
            validate_config(read_config(path, [override]), override)
        said += [str(refusal.value), repr(refusal.value)]
    for uri in (settings["checkpoint"]["uri"], settings["tracking"]["uri"]):
        said += refuse_places(uri)
    return "\n".join(said)


def write_run(config: Config, directory: Path, scenario: Scenario) -> str:
    """What a run writes before its first round, and what is tracked of it."""
    directory.mkdir()
    begin_directory(config, directory, scenario)
    with track_run(config, directory, scenario, (8, 8, 1)) as tracker:
        tracker.tags({"uri": str(config.checkpoint.uri), "password": "x"})
    files = [path for path in directory.rglob("*") if path.is_file()]
    return "\n".join([*map(str, files), *(path.read_text() for path in files)])


def refuse_places(uri: str) -> list[str]:
    """What is said of a URI that nothing can be written to."""
    said = []
    for attempt in (refuse_bad_uri, refuse_bad_store):
        try:
            attempt(uri)
        except RayflError as refusal:
            said += [str(refusal), repr(refusal.__cause__)]
    return said


@pytest.mark.slow
def test_of_five_thousand_secrets_none_is_found(
    tmp_path: Path,
    scenario: Scenario,
    caplog: pytest.LogCaptureFixture,
    capfd: Any,
    record_property: Callable[[str, object], None],
) -> None:
    planted = number = 0
    while planted < PLANTED:
        planter = Planter(f"1/{number}")
        folder = tmp_path / str(number)
        folder.mkdir()
        said = gather_said(folder, planter, scenario) + caplog.text + "".join(capfd.readouterr())
        found = [core for core in planter.cores if core in said]
        assert not found, [line[:300] for line in said.splitlines() if found[0] in line]
        assert "***" in said
        planted += planter.planted
        number += 1
    record_property("tried", planted)


@pytest.mark.parametrize("name", ["password", "X-Amz-Signature", "apiKey", "AUTH", "access_key"])
def test_names_of_secrets_are_known_in_any_case(name: str) -> None:
    for spelt in (name, name.lower(), name.upper()):
        assert is_secret_name(spelt)
        assert mask_secrets({spelt: ["x", {"a": 3}]}) == {spelt: ["***", {"a": "***"}]}
        assert mask_secrets(f"{spelt}=x") == f"{spelt}=***"


def list_names(tree: Any) -> Iterator[str]:
    for name, inner in tree.items() if isinstance(tree, dict) else ():
        yield name
        yield from list_names(inner)


def test_no_setting_of_a_run_passes_for_a_secret() -> None:
    for path in sorted((ROOT / "configs").glob("methods/*.yaml")):
        tree = load_config(path).model_dump(mode="json")
        assert not list(filter(is_secret_name, list_names(tree)))


def test_masking_twice_changes_nothing_more() -> None:
    planter = Planter("twice")
    for _ in range(300):
        text = planter.text()
        assert mask_secrets(mask_secrets(text)) == mask_secrets(text)


def test_parts_of_a_uri_that_a_library_took_apart_are_hidden() -> None:
    uri = "http://me:hunter2/pass@word@host:5000/x?token=abc%2Fdef"
    said = "nonnumeric port: 'hunter2' at pass@word or abc/def\nmore"
    assert describe_error(ValueError(said), uri) == "nonnumeric port: '***' at ***@*** or ***"
    assert describe_error(ValueError()) == "ValueError"


def test_what_is_cut_short_has_no_secrets_left() -> None:
    long = f"s3://user:{'x' * 30}hunter2{'y' * 200}@bucket/x"
    with pytest.raises(RayflError, match=r"s3://\*\*\*@bucket") as refusal:
        validate_config({"clients": long, "training": [long]})
    assert "xxx" not in str(refusal.value)


def test_paths_are_kept_as_they_are_for_files_to_be_found(tmp_path: Path) -> None:
    place = str(tmp_path / "token=abc" / "a:b@c")
    journal = Journal(tmp_path)
    journal.append("artifact", path=place, folder="")
    assert next(journal.entries())["path"] == place


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIA:hunter2/x@b/x?region=e",
        "s3://b/x?secret_key=hunter2&region=e",
        "bogus://me:hunter2@h",
    ],
)
def test_checkpoints_of_a_bad_uri_are_refused_without_it(uri: str) -> None:
    with pytest.raises(RayflError, match="checkpoints need a writable place") as refusal:
        CheckpointStore(uri)
    assert "hunter2" not in f"{refusal.value}{refusal.value.__cause__}"


# -- real runs -------------------------------------------------------------------------------------


def run_rayfl(desk: Path, settings: dict[str, Any], *words: str, **variables: str) -> str:
    """All that a command printed."""
    config = desk / "run.yaml"
    config.write_text(yaml.safe_dump({**settings, "output": str(desk / "out")}))
    done = subprocess.run(
        [str(RAYFL), "run", str(config), *words],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    (desk / "run.yaml").unlink()
    return f"{done.stdout}{done.stderr}\nexit code {done.returncode}"


def find_cores(folder: Path, said: str, planter: Planter) -> list[str]:
    """Where a secret is: in what was printed, or in the bytes of a file."""
    found = [f"printed: {core}" for core in planter.cores if core in said]
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        found += [f"{path}: {core}" for core in planter.cores if core.encode() in content]
    return found


@pytest.mark.long
def test_a_tracked_run_leaves_no_secret_anywhere(tmp_path: Path) -> None:
    planter = Planter("tracked")
    tracking = settings_of(planter)["tracking"]
    tracking |= {"enabled": True, "uri": None}
    words = [
        f"tracking.tags.{name}={planter.secret(odd='/@._-')}" for name in ("token", "Password")
    ]
    variables = {"MLFLOW_TRACKING_PASSWORD": planter.secret()}
    said = run_rayfl(tmp_path, {**INLINE, "tracking": tracking}, *words, **variables)
    assert "exit code 0" in said, said
    assert (tmp_path / "out" / "mlflow.db").exists()
    assert find_cores(tmp_path, said, planter) == []
    assert "***" in next(tmp_path.rglob("journal.jsonl")).read_text()


@pytest.mark.long
def test_an_address_in_the_environment_leaves_no_secret(tmp_path: Path) -> None:
    planter = Planter("environment")
    uri = f"http://me:{planter.secret(odd='._-')}@127.0.0.1:9"
    said = run_rayfl(tmp_path, {**INLINE, "tracking": {"enabled": True}}, MLFLOW_TRACKING_URI=uri)
    assert "http://***@127.0.0.1:9 does not answer" in said
    assert find_cores(tmp_path, said, planter) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "word", ["checkpoint.uri=s3://AKIA:{}@b/x?region=e", "tracking.uri=http://me:{}@host"]
)
def test_a_bad_uri_is_refused_before_anything_is_written(tmp_path: Path, word: str) -> None:
    planter = Planter(word)
    override = word.format(f"{planter.secret(odd='')}/{planter.secret(odd='')}")
    said = run_rayfl(tmp_path, {**INLINE, "tracking": {"enabled": True}}, override)
    assert "exit code 5" in said, said
    assert "percent-encoded" in said
    assert find_cores(tmp_path, said, planter) == []
    assert not (tmp_path / "out").exists()


TELLING = """
import sys
from rayfl.fleet.on_ray.connection import connect_ray
with connect_ray("local"):
    from ray._private.state import state
    print([job["Entrypoint"] for job in state.job_table()])
"""


@pytest.mark.slow
def test_ray_is_told_no_secret_of_the_command_line() -> None:
    """What Ray knows of its drivers is on its dashboard, and in what it tells of jobs."""
    planter = Planter("ray")
    word = f"tracking.tags.password={planter.secret(odd='/._-')}"
    told = subprocess.run(
        [sys.executable, "-c", TELLING, word, "a=b"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "tracking.tags.password=***" in told.stdout
    assert "a=b" in told.stdout
    assert not [core for core in planter.cores if core in told.stdout + told.stderr]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "rayfl")
