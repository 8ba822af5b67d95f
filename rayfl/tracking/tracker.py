"""MLflow, off the critical path and never fatal.

Everything that is to be tracked goes first into a journal on disk, a line each. A thread carries
the journal to the tracking server and notes how far it came. A dead server stops the thread, not
the run: the rest of the journal is carried over when the server is back, or later by `rayfl sync`.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfl.config.schema import mask
from rayfl.errors import StorageError
from rayfl.tracking.view import address, arrange

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("rayfl")

RETRY_SECONDS = 5.0
BATCH_SECONDS = 0.5
METRICS_OF_A_BATCH = 1000
PARAMS_OF_A_BATCH = 100


def default_uri(output: Path) -> str:
    """The sqlite store below the output folder."""
    return f"sqlite:///{output / 'mlflow.db'}"


class Journal:
    """What is to be tracked: `journal.jsonl`, with `tracking.json` beside it for how far it was
    carried and where."""

    def __init__(self, directory: Path) -> None:
        self.path, self.note = directory / "journal.jsonl", directory / "tracking.json"
        directory.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        self.last_round = max(
            (entry["step"] for entry in self.entries() if entry["kind"] == "metrics"), default=0
        )

    def append(self, kind: str, **content: Any) -> None:
        line = json.dumps({"kind": kind, "time": int(time.time() * 1000), **content})
        whole = self.path.stat().st_size
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            with suppress(OSError):  # half a line would spoil the next one
                os.truncate(self.path, whole)
            remedy = "What is in it is kept. Free some space, then --resume the run."
            raise StorageError(
                f"the journal of a run must be writable; got {self.path} ({error}). {remedy}"
            ) from error

    def mend(self) -> None:
        """Cut off a last line that a crash or a full disk left unfinished: it would spoil the next
        one."""
        os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)

    def entries(self, start: int = 0) -> Iterator[dict[str, Any]]:
        """The entries from a line on; a last line that was cut short by a crash is not one."""
        with self.path.open(encoding="utf-8") as file:
            for number, line in enumerate(file):
                if number >= start and line.endswith("\n"):
                    yield json.loads(line)

    def noted(self) -> dict[str, Any]:
        """`{"run_id": ..., "carried": lines}`, empty before the first contact."""
        return dict(json.loads(self.note.read_text())) if self.note.exists() else {}

    def write_note(self, **facts: Any) -> None:
        part = self.note.with_suffix(".part")
        part.write_text(json.dumps({**self.noted(), **facts}))
        os.replace(part, self.note)


class Carrier:
    """Carries one journal to MLflow."""

    def __init__(self, journal: Journal, uri: str) -> None:
        self.journal, self.uri = journal, uri
        self._client: MlflowClient | None = None

    @property
    def client(self) -> MlflowClient:
        if self._client is None:
            self._client = quiet_client(self.uri)
        return self._client

    def carry(self) -> int:
        """Carry everything that is not yet there; how many entries that were. Raises what MLflow
        raises."""
        done = self.journal.noted().get("carried", 0)
        entries = list(self.journal.entries(done))
        for kind, group in groupby(entries, key=lambda entry: str(entry["kind"])):
            batch = list(group)
            getattr(self, f"_carry_{kind}")(batch)
            done += len(batch)
            self.journal.write_note(carried=done)
        return len(entries)

    @property
    def run_id(self) -> str:
        return str(self.journal.noted()["run_id"])

    def _carry_start(self, batch: list[dict[str, Any]]) -> None:
        for entry in batch:
            if "run_id" in self.journal.noted():
                self.client.update_run(self.run_id, status="RUNNING")
                continue
            run = self.client.create_run(
                self._experiment(entry["experiment"]),
                start_time=entry["time"],
                run_name=entry["run_name"],
                tags={key: str(value) for key, value in entry["tags"].items()},
            )
            self.journal.write_note(run_id=run.info.run_id)
            self._log_params(entry["params"])

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self.client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        try:
            made = str(
                self.client.create_experiment(name, artifact_location=artifact_root(self.uri))
            )
            arrange(self.client, made)
            return made
        except MlflowException:  # another run made it a moment ago
            return str(self.client.get_experiment_by_name(name).experiment_id)

    def _log_params(self, params: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        items = [Param(key, str(value)[:6000]) for key, value in params.items()]
        for start in range(0, len(items), PARAMS_OF_A_BATCH):
            self.client.log_batch(self.run_id, params=items[start : start + PARAMS_OF_A_BATCH])

    def _carry_metrics(self, batch: list[dict[str, Any]]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, entry["time"], entry["step"])
            for entry in batch
            for name, value in entry["values"].items()
        ]
        for start in range(0, len(metrics), METRICS_OF_A_BATCH):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + METRICS_OF_A_BATCH])

    def _carry_tags(self, batch: list[dict[str, Any]]) -> None:
        for entry in batch:
            for key, value in entry["tags"].items():
                self.client.set_tag(self.run_id, key, value)

    def _carry_artifact(self, batch: list[dict[str, Any]]) -> None:
        for entry in batch:
            self.client.log_artifact(self.run_id, entry["path"], entry["folder"] or None)

    def _carry_model(self, batch: list[dict[str, Any]]) -> None:
        for entry in batch:
            self.client.log_artifacts(self.run_id, entry["path"], "model")

    def _carry_status(self, batch: list[dict[str, Any]]) -> None:
        self.client.set_terminated(self.run_id, batch[-1]["status"], end_time=batch[-1]["time"])


class Tracker:
    """A journal with a thread that carries it while the run goes on."""

    def __init__(self, directory: Path, uri: str, enabled: bool = True) -> None:
        self.journal, self.uri, self.enabled = Journal(directory), uri, enabled
        self._carrier = Carrier(self.journal, uri)
        self._wake, self._closing = threading.Event(), threading.Event()
        self._failed = False
        self.journal.mend()
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        if enabled:
            self._thread.start()

    @property
    def run_id(self) -> str | None:
        """The MLflow run, once there is one."""
        run_id = self.journal.noted().get("run_id")
        return None if run_id is None else str(run_id)

    def start(
        self, experiment: str, run_name: str, tags: Mapping[str, str], params: Mapping[str, Any]
    ) -> None:
        self._add(
            "start",
            experiment=experiment,
            run_name=run_name,
            tags=dict(mask(tags)),
            params=dict(mask(params)),
        )

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """One round's metrics; a round that the journal has already (a resumed run's) is not
        written again."""
        if step > self.journal.last_round:
            self.journal.last_round = step
            self._add("metrics", step=step, values=dict(values))

    def tags(self, tags: Mapping[str, str]) -> None:
        self._add("tags", tags=dict(mask(tags)))

    def artifact(self, path: Path, folder: str = "") -> None:
        self._add("artifact", path=str(path), folder=folder)

    def model(self, path: Path) -> None:
        """A saved MLflow model, to be logged with the run."""
        self._add("model", path=str(path))

    def finish(self, status: str, patience: float = 60.0) -> None:
        """The run's end; waits until the journal is carried, unless the server is dead."""
        try:
            self._add("status", status=status)
        except StorageError as error:
            log.warning("tracking: how the run ended is not recorded: %s", error)
        self._closing.set()
        self._wake.set()
        if self.enabled:
            self._thread.join(timeout=0.2 if self._failed else patience)
            if self._thread.is_alive() or self._failed:
                log.warning(
                    "tracking: not everything reached %s; `rayfl sync` will carry the rest",
                    mask(self.uri),
                )

    def _add(self, kind: str, **content: Any) -> None:
        self.journal.append(kind, **content)
        self._wake.set()

    def _work(self) -> None:
        """Carry, wait, carry; said once when the server fails, once when it is back."""
        while True:
            closing = self._closing.is_set()
            self._wake.clear()
            try:
                self._carrier.carry()
            except Exception as error:
                self._say_failed(error)
                if closing or self._closing.wait(RETRY_SECONDS):
                    return
                continue
            if self._failed:
                log.warning("tracking: %s is back, nothing was lost", mask(self.uri))
                self._failed = False
            if closing:
                return
            self._wake.wait()
            self._closing.wait(BATCH_SECONDS)

    def _say_failed(self, error: Exception) -> None:
        if not self._failed:
            short = (
                str(mask(str(error))).splitlines()[0][:200] if str(error) else type(error).__name__
            )
            log.warning(
                "tracking: %s does not answer (%s); kept on disk meanwhile", mask(self.uri), short
            )
        self._failed = True


def quiet_client(uri: str) -> MlflowClient:
    """A client that gives up on a dead server in seconds, not minutes, and does not chat."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    # What it prints of a finished run is the URI, with the password that is in it.
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    for name in ("alembic", "mlflow", "urllib3"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if uri.startswith("sqlite:///"):
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    from mlflow import MlflowClient

    for name in ("alembic", "mlflow", "urllib3"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return MlflowClient(tracking_uri=uri)


def addresses(uri: str) -> dict[str, str]:
    """The part of the UI's address that opens each experiment with the columns that tell runs
    apart."""
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        return {}  # nothing was tracked yet, and looking would make an empty store
    found = quiet_client(uri).search_experiments()
    return {
        experiment.name: address(experiment.experiment_id)
        for experiment in found
        if experiment.name != "Default"
    }


def artifact_root(uri: str) -> str | None:
    """Artifacts of a sqlite store lie beside it; a server knows its own place."""
    return (
        Path(uri.removeprefix("sqlite:///")).with_name("artifacts").as_uri()
        if uri.startswith("sqlite:")
        else None
    )


def save_model(model: Any, signature: Any, folder: Path) -> None:
    """Write a network in MLflow's form; requirements are named, not guessed by importing
    everything."""
    import inspect

    import mlflow

    shutil.rmtree(folder, ignore_errors=True)
    save = mlflow.pytorch.save_model
    # A traced graph would lose training mode; older versions of MLflow know no other form and no
    # such argument.
    form = (
        {"serialization_format": "pickle"}
        if "serialization_format" in inspect.signature(save).parameters
        else {}
    )
    save(model, path=str(folder), signature=signature, pip_requirements=["rayfl", "torch"], **form)


def sync(output: Path, uri: str) -> dict[str, int]:
    """Carry what earlier runs could not: entries carried, by run directory. Raises what MLflow
    raises."""
    carried = {}
    # Those that others are nested below come first.
    for journal in sorted(output.glob("*/*/journal.jsonl"), reverse=True):
        count = Carrier(Journal(journal.parent), uri).carry()
        if count:
            carried[journal.parent.name] = count
    return carried
