"""MLflow, off the critical path and never fatal.

Everything that is to be tracked goes first into a journal on disk, a line each. A thread carries
the journal to the tracking server and notes how far it came. A dead server stops the thread, not
the run: the rest of the journal is carried over when the server is back, or later by `rayfl sync`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayfl.errors import StorageError
from rayfl.secrets import describe_error, mask_secrets
from rayfl.tracking.carrier import Carrier
from rayfl.tracking.journal import Journal

log = logging.getLogger("rayfl")

FIRST = ("test/accuracy", "test/", "labels/")
LAST = ("test/recall/", "cost/", "clients/", "time/")
"""MLflow shows metrics in the order in which they came first, and compares runs by the first."""
RETRY_SECONDS = 5.0
BATCH_SECONDS = 0.5


class Tracker:
    """A journal with a thread that carries it while the run goes on."""

    def __init__(self, directory: Path, uri: str, enabled: bool = True) -> None:
        self.journal, self.uri, self.enabled = Journal(directory), uri, enabled
        self._carrier = Carrier(self.journal, uri)
        self._wake, self._closing = threading.Event(), threading.Event()
        self._failed = self._abandoned = False
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
            tags=dict(tags),
            params=dict(params),
        )

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """One round's metrics; a round that the journal has already (a resumed run's) is not
        written again."""
        if step > self.journal.last_round:
            self.journal.last_round = step
            self._add("metrics", step=step, values=dict(sorted(values.items(), key=_rank_metric)))

    def values(self, step: int, values: Mapping[str, float]) -> None:
        """What is of no round: of the whole run, or of the machine."""
        self._add("values", step=step, values=dict(values))

    def datasets(self, datasets: Sequence[Mapping[str, str]]) -> None:
        """What the run learns from and is tested on: `name`, `digest`, `context`, `profile`,
        `schema` and `source` each."""
        self._add("datasets", datasets=mask_secrets(list(datasets)))

    def tags(self, tags: Mapping[str, str]) -> None:
        self._add("tags", tags=dict(tags))

    def artifact(self, path: Path, folder: str = "") -> None:
        self._add("artifact", path=str(path), folder=folder)

    def model(self, path: Path, **described: Any) -> None:
        """A saved MLflow model, to be logged with the run.

        Parameters
        ----------
        path : Path
            Its folder.
        **described
            Its `name`, `params` and `tags`; the `metrics` that are of it, at a `step`, on a
            `dataset` (name and digest).
        """
        self._add("model", path=str(path), **mask_secrets(described))

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
                    mask_secrets(self.uri),
                )

    def abandon(self, patience: float = 30.0) -> None:
        """Leave no run of one that was refused before its first round."""
        self._abandoned = True
        self._closing.set()
        self._wake.set()
        try:
            if self.enabled:
                self._thread.join(timeout=patience)
                self._carrier.delete_run()
            self.journal.remove()
        except Exception as error:  # of the store; the run then stays, as one that failed
            log.debug("tracking: the run could not be taken back: %s", error)
            self.journal.append("status", status="FAILED")

    def _add(self, kind: str, **content: Any) -> None:
        self.journal.append(kind, **content)
        self._wake.set()

    def _work(self) -> None:
        """Carry, wait, carry; said once when the server fails, once when it is back."""
        while not self._abandoned:
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
                log.warning("tracking: %s is back, nothing was lost", mask_secrets(self.uri))
                self._failed = False
            if closing:
                return
            self._wake.wait()
            self._closing.wait(BATCH_SECONDS)

    def _say_failed(self, error: Exception) -> None:
        if not self._failed:
            log.warning(
                "tracking: %s does not answer (%s); kept on disk meanwhile",
                mask_secrets(self.uri),
                describe_error(error, self.uri)[:200],
            )
        self._failed = True


def _rank_metric(item: tuple[str, float]) -> int:
    """Where a metric belongs: what people look for first, what fills the page last."""
    name = item[0]
    for place, beginning in enumerate(LAST):
        if name.startswith(beginning):
            return len(FIRST) + 1 + place
    for place, beginning in enumerate(FIRST):
        if name.startswith(beginning):
            return place
    return len(FIRST)
