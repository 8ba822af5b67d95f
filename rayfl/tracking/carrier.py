"""From a journal to MLflow: everything once, in order, and again to a store that has lost it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfl.locks import take_lock
from rayfl.tracking.experiment_view import arrange_experiment
from rayfl.tracking.inputs import make_inputs
from rayfl.tracking.journal import Entry, Journal, read_note
from rayfl.tracking.logged_model import log_model
from rayfl.tracking.store import artifact_root, open_client

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

log = logging.getLogger("rayfl")

METRICS_OF_A_BATCH = 1000
PARAMS_OF_A_BATCH = 100
PATIENCE_SECONDS = 30.0
"""How long another process, `rayfl sync` say, may carry the same journal before this one gives
up."""
PARENT = "mlflow.parentRunId"
DAMAGED = "damaged"


class Carrier:
    """Carries one journal to MLflow.

    Parameters
    ----------
    journal : Journal
        What is carried.
    uri : str
        The store that it is carried to.
    thorough : bool
        Read a sqlite store from end to end, to know that it is whole.
    """

    def __init__(self, journal: Journal, uri: str, thorough: bool = False) -> None:
        self.journal = journal
        self.uri = uri
        self.thorough = thorough
        self._client: MlflowClient | None = None
        self._known = False

    @property
    def client(self) -> MlflowClient:
        if self._client is None:
            self._client = open_client(self.uri, self.thorough)
        return self._client

    @property
    def run_id(self) -> str:
        return str(self.journal.noted()["run_id"])

    def carry(self) -> int:
        """Carry everything that is not yet there; how many entries that were. Raises what MLflow
        raises."""
        lock = self.journal.directory / "tracking.lock"
        with take_lock(lock, f"the tracking of {self.journal.directory}", PATIENCE_SECONDS):
            self._begin_again_where_lost()
            return self._carry_rest()

    def delete_run(self) -> None:
        """Take back the run, if there is one already. Raises what MLflow raises."""
        if "run_id" in self.journal.noted():
            self.client.delete_run(self.run_id)

    def _carry_rest(self) -> int:
        done = self.journal.noted().get("carried", 0)
        carried = 0
        lines = list(self.journal.lines(done))
        if lines:
            # A loss of power must not take lines away that are noted as carried: those that are
            # written in their place would never be.
            self.journal.settle()
        for kind, group in groupby(lines, key=_kind_of):
            batch = list(group)
            if kind == DAMAGED:
                self._say_damaged(len(batch), done)
            else:
                getattr(self, f"_carry_{kind}")(batch)
                carried += len(batch)
            done += len(batch)
            if "run_id" in self.journal.noted():
                self.journal.write_note(carried=done)
        return carried

    def _say_damaged(self, count: int, line: int) -> None:
        log.warning(
            "tracking: %d damaged lines of %s are left out, from line %d on",
            count,
            self.journal.path,
            line + 1,
        )

    # -- the run in MLflow ---------------------------------------------------------------------

    def _begin_again_where_lost(self) -> None:
        """What was carried to a store that is lost, or to another one, is carried again."""
        note = self.journal.noted()
        if self._known or "run_id" not in note:
            return
        if self._find_run(note["run_id"]) is None:
            former = [*note.get("former", []), note["run_id"]]
            self.journal.write_note(run_id=None, carried=None, former=former, model_id=None)
        self._known = True

    def _find_run(self, run_id: str) -> Run | None:
        from mlflow.exceptions import MlflowException

        try:
            return self.client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

    def _carry_start(self, batch: Sequence[Entry]) -> None:
        for entry in batch:
            if "run_id" in self.journal.noted():
                self.client.update_run(self.run_id, status="RUNNING")
                continue
            experiment = self._experiment(entry["experiment"])
            run = self._run_without_note(experiment, entry) or self.client.create_run(
                experiment,
                start_time=entry["time"],
                run_name=entry["run_name"],
                tags=self._tags_of(entry),
            )
            self.journal.write_note(run_id=run.info.run_id, carried=0)
            self._known = True
            self._log_params(entry["params"])

    def _run_without_note(self, experiment: str, entry: Entry) -> Run | None:
        """The run of an entry where what was noted of it is lost: of this name, time and tags."""
        # Carried at once, an entry cannot have a run; most are, and the store is not asked.
        if self.journal.fresh:
            return None
        moment = f"attributes.start_time = {entry['time']}"
        wanted = {key: value for key, value in self._tags_of(entry).items() if key != PARENT}
        for run in self.client.search_runs([experiment], moment):
            if run.info.run_name == entry["run_name"] and wanted.items() <= run.data.tags.items():
                return run
        return None

    def _tags_of(self, entry: Entry) -> dict[str, str]:
        tags = {key: str(value) for key, value in entry["tags"].items()}
        if PARENT in tags:
            tags[PARENT] = self._parent_of(tags[PARENT])
        return tags

    def _parent_of(self, run_id: str) -> str:
        """The run that another is listed below; its new name, where the store was made anew."""
        output = self.journal.directory.parent.parent
        for note in output.glob("*/*/tracking.json"):
            noted = read_note(note)
            if run_id in noted.get("former", []) and "run_id" in noted:
                return str(noted["run_id"])
        return run_id

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self.client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        place = artifact_root(self.uri)
        try:
            made = str(self.client.create_experiment(name, artifact_location=place))
        except MlflowException:  # another run made it a moment ago
            return str(self.client.get_experiment_by_name(name).experiment_id)
        with suppress(MlflowException):  # only how it looks
            arrange_experiment(self.client, made)
        return made

    # -- entries -------------------------------------------------------------------------------

    def _log_params(self, params: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        items = [Param(key, str(value)[:6000]) for key, value in params.items()]
        for batch in _split_items(items, PARAMS_OF_A_BATCH):
            self.client.log_batch(self.run_id, params=batch)

    def _carry_metrics(self, batch: Sequence[Entry]) -> None:
        from mlflow.entities import Metric

        metrics = []
        for entry in batch:
            for name, value in entry["values"].items():
                metrics.append(Metric(name, value, entry["time"], entry["step"]))
        for part in _split_items(metrics, METRICS_OF_A_BATCH):
            self.client.log_batch(self.run_id, metrics=part)

    # Both are numbers of a step; only the journal tells rounds from the rest.
    _carry_values = _carry_metrics

    def _carry_datasets(self, batch: Sequence[Entry]) -> None:
        from mlflow.exceptions import MlflowException

        for entry in batch:
            inputs = make_inputs(entry["datasets"])
            try:
                self.client.log_inputs(self.run_id, inputs)
            except MlflowException:
                # MLflow looks for a dataset, and then adds it: another run on the same data, of the
                # same moment, may have come between. It is found now.
                self.client.log_inputs(self.run_id, inputs)

    def _carry_tags(self, batch: Sequence[Entry]) -> None:
        for entry in batch:
            for key, value in entry["tags"].items():
                self.client.set_tag(self.run_id, key, value)

    def _carry_artifact(self, batch: Sequence[Entry]) -> None:
        for entry in batch:
            if self._is_there(entry["path"]):
                self.client.log_artifact(self.run_id, entry["path"], entry["folder"] or None)

    def _carry_model(self, batch: Sequence[Entry]) -> None:
        for entry in batch:
            if self._is_there(entry["path"]):
                model_id = log_model(self.client, self.run_id, entry, self.journal.entries())
                self.journal.write_note(model_id=model_id)

    def _is_there(self, path: str) -> bool:
        """A file that somebody has deleted since keeps nothing else from being carried."""
        if Path(path).exists():
            return True
        log.warning("tracking: %s is gone, and left out", path)
        return False

    def _carry_status(self, batch: Sequence[Entry]) -> None:
        last = batch[-1]
        self.client.set_terminated(self.run_id, last["status"], end_time=last["time"])


def sync_journals(output: Path, uri: str) -> dict[str, int]:
    """Carry what earlier runs could not, and what a store has lost.

    Parameters
    ----------
    output : Path
        The output folder, below which journals lie.
    uri : str
        The store.

    Returns
    -------
    dict
        Entries carried, by run directory. Raises what MLflow raises.
    """
    carried = {}
    thorough = True
    # Those that others are nested below come first.
    for path in sorted(output.glob("*/*/journal.jsonl"), reverse=True):
        count = Carrier(Journal(path.parent), uri, thorough).carry()
        thorough = False  # once is enough
        if count:
            carried[path.parent.name] = count
    return carried


def _kind_of(entry: Entry | None) -> str:
    return DAMAGED if entry is None else str(entry["kind"])


def _split_items(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
