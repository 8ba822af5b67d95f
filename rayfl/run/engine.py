"""The rounds of one run: method, evaluation, measures against the truth, checkpoints.

The engine runs wherever the coordinator is, in an actor or in this process, and knows neither Ray
nor MLflow."""

from __future__ import annotations

import hashlib
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfl.bits import hold_bits
from rayfl.component import show_value
from rayfl.config.schema import Config
from rayfl.errors import PhaseError, RayflError, StorageError, broken, is_interruption
from rayfl.federation.scenario import Scenario
from rayfl.fleet.base import BaseFleet, Errand
from rayfl.fleet.executor import count_bytes
from rayfl.protocol import ClientId, NobodyLeft, Ref, Report, Vector
from rayfl.run.assembly import narrow_scenario
from rayfl.run.checkpoint import CheckpointStore, Snapshot
from rayfl.run.codec import Marked, check_state
from rayfl.run.environment import library_versions
from rayfl.run.evaluation import Examination, Judge, Verdict, identify_model
from rayfl.run.features import share_features
from rayfl.run.signals import Interrupted
from rayfl.run.standing import measure_decisions

log = logging.getLogger("rayfl")

Record = dict[str, Any]
Emit = Callable[[Record], object]


@dataclass
class Outcome:
    """What a run ends with."""

    rounds: int
    history: list[Record]
    models: dict[ClientId | None, Vector]
    sha256: str
    verdict: Verdict | None
    left: dict[str, NDArray[Any]]


@dataclass
class Reached:
    """The run after its last whole round: everything that a checkpoint needs."""

    round: int
    state: Any
    table: dict[ClientId, dict[str, Ref]]
    history: list[Record] = field(default_factory=list)
    left: dict[str, NDArray[Any]] = field(default_factory=dict)


@dataclass
class Draft:
    """A round that has been trained and may still be under evaluation."""

    round: int
    state: Any
    table: dict[ClientId, dict[str, Ref]]
    left: dict[str, NDArray[Any]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    clock: dict[str, float] = field(default_factory=dict)
    examination: Examination | None = None
    errand: Errand = field(default_factory=Errand)


class Engine:
    """One run on one fleet.

    Parameters
    ----------
    config : Config
    scenario : Scenario
        The whole truth; `scenario` of the engine has the labels that the method may see.
    checkpoint_uri : str
    meta : mapping
        Whose the checkpoints are, besides the hashes of configuration and scenario.
    shape : tuple of int
        Of an image: height, width, channels.
    features : Path
        Where features of frozen encoders are kept.
    """

    def __init__(
        self,
        config: Config,
        scenario: Scenario,
        checkpoint_uri: str,
        meta: Mapping[str, Any],
        shape: tuple[int, int, int],
        features: Path,
    ) -> None:
        self.config = config
        self.method = config.method
        self.scenario = narrow_scenario(config.method, scenario)
        self.uri = checkpoint_uri
        self.shape = shape
        self.features = features
        self.meta = {
            **meta,
            "digest": config.digest,
            "scenario": scenario.sha256,
            "versions": {**library_versions(), "threads": str(config.threads)},
        }
        self.reached: Reached | None = None
        # Made where the engine runs: it travels there before.
        self.emit: Emit
        self.lock: threading.Lock
        self.fleet: BaseFleet
        self.judge: Judge
        self.store: CheckpointStore
        self._open: Draft
        self._modules = list_modules(self.method)
        self._verdict: Verdict | None = None
        self._saved_round = -1
        self._saved_at = -math.inf
        self._began = 0.0
        self._telling = 0.0
        self._lost: set[str] = set()

    def run(self, fleet: BaseFleet, emit: Emit) -> Outcome:
        """Resume or begin, then go on to the last round. Interrupted, it leaves a checkpoint."""
        hold_bits([self.config.bits])
        self.fleet = fleet
        self.emit = emit
        self.lock = threading.Lock()
        self.store = CheckpointStore(self.uri)
        self.fleet.absences.remember(self.store.absences())
        self.judge = Judge(self.config, self.scenario, fleet)
        with self.store.only_writer():
            try:
                return self._all_rounds()
            except (Interrupted, KeyboardInterrupt):
                self.save()
                raise

    def _all_rounds(self) -> Outcome:
        dataset = self.scenario.dataset.sha256
        share_features(self.method, self.fleet, dataset, self.shape, self.features, self._note)
        reached = self._resumed() or self._begun()
        self.reached = reached
        for record in reached.history:
            self.emit(record)
        clock = reached.history[-1]["clock"] if reached.history else {}
        self._began = time.perf_counter() - clock.get("time/elapsed_s", 0.0)
        draft = Draft(reached.round, reached.state, reached.table)
        while draft.round < self.config.training.rounds:
            try:
                draft = self._round(draft)
            except RayflError:
                # The round before is whole but for its evaluation: what the run reached must not
                # hang on who is first.
                draft.errand.wait()
                raise
        draft.errand.wait()
        if self._saved_round != reached.round:
            self.save()
        return self._outcome(reached)

    def save(self) -> int:
        """Write a checkpoint of the last whole round, from whichever thread asks; the round."""
        reached = self.reached
        if reached is None:
            return -1
        with self.lock:
            if self._saved_round == reached.round:
                return self._saved_round
            state = {"method": reached.state, "left": reached.left}
            meta = {**self.meta, "modules": sorted(self._modules)}
            snapshot = Snapshot(reached.round, state, reached.table, reached.history, meta)
            self.store.write(snapshot, self.fleet.get, self._mark)
            self._saved_round = reached.round
            self._saved_at = time.monotonic()
            return self._saved_round

    def _note(self, text: str) -> None:
        self.emit({"note": text})

    # -- one round ---------------------------------------------------------------------------------

    def _round(self, before: Draft) -> Draft:
        """One transaction: either all effects of a round stand, or none. Its evaluation may still
        go on."""
        fleet, t = self.fleet, before.round
        started = time.perf_counter()
        fleet.round = t
        try:
            state = self._method_round(before.state, t)
        except NobodyLeft as void:
            log.warning("%s; the model stays as it was", void)
            state = before.state
            fleet.table = dict(before.table)
        if fleet.absences.changed:
            self.store.note_absences(fleet.absences.decided)
            fleet.absences.changed = False
        draft = Draft(t + 1, state, dict(fleet.table))
        now = time.perf_counter()
        # The second is what a run took up to here, over all its sessions: for figures against time.
        draft.clock = {
            "time/train_s": now - started,
            "time/elapsed_s": now - self._began,
            **fleet.clock.take(),
        }
        draft.metrics = self._metrics(before, draft)
        # The round before must be closed first: histories, checkpoints and what is left are in
        # order.
        before.errand.wait()
        draft.left = dict(fleet.left)
        check_state(draft.left, path="what the method left")
        self._open = draft
        is_last = draft.round == self.config.training.rounds
        if is_last or draft.round % self.config.evaluation.every == 0:
            draft.examination = self.judge.prepare(state)
            draft.errand = self.judge.begin(draft.examination, self._examined)
        else:
            self._close(draft, {}, 0.0)
        return draft

    def _metrics(self, before: Draft, draft: Draft) -> dict[str, float]:
        """What is known of a round before it is evaluated."""
        fleet = self.fleet
        # What was stored before the first round is news in it.
        news = find_changed({} if before.round == 0 else before.table, draft.table)
        return {
            **check_logged(fleet.take_logged(), before.round),
            **self._costs(),
            **count_clients("diverged", fleet.take_diverged()),
            **count_clients("absurd", fleet.take_absurd()),
            **count_clients("left_out", fleet.absences.take()),
            **self.judge.label_metrics(news),
            **self.judge.estimate_metrics(fleet.take_estimates(), fleet.take_answers()),
        }

    def _examined(self, reports: Mapping[ClientId, Report], seconds: float) -> None:
        """The evaluation of the round that is open has ended."""
        draft = self._open
        assert draft.examination is not None
        self._verdict = self.judge.decide(draft.examination, reports)
        self._close(draft, self._verdict.metrics, seconds)

    def _close(self, draft: Draft, tested: Mapping[str, float], seconds: float) -> None:
        """The round is whole: it counts, is told of, and may be saved."""
        record = {
            "round": draft.round,
            "metrics": plain_metrics({**draft.metrics, **tested}),
            "clock": {
                **draft.clock,
                "time/evaluate_s": seconds,
                "time/track_s": self._telling,
            },
        }
        self._say_lost(record)
        reached = self.reached
        assert reached is not None
        with self.lock:
            reached.round = draft.round
            reached.state = draft.state
            reached.table = draft.table
            reached.left = draft.left
            reached.history.append(record)
        started = time.perf_counter()
        self.emit(record)
        self._checkpoint_if_due(reached)
        # Known too late for its own record: that of the next round has it.
        self._telling = time.perf_counter() - started

    def _say_lost(self, record: Record) -> None:
        """Warn, once, of a loss that is no longer finite."""
        lost = find_lost(record["metrics"])
        for name in sorted(lost - self._lost):
            value = record["metrics"][name]
            log.warning("round %d: %s is %s; the model has diverged", record["round"], name, value)
        self._lost = lost

    def _method_round(self, state: Any, t: int) -> Any:
        """The method's round; what it raises itself is named, with its traceback."""
        try:
            state = self.method.round(state, self.fleet, t)
        except RayflError:
            raise
        except BaseException as error:
            if is_interruption(error) or (isinstance(error, Exception) and self.fleet.lost(error)):
                raise
            where = f"{type(self.method).__name__}.round raised at the coordinator in round {t}"
            raise PhaseError(f"{where}:\n{traceback.format_exc().rstrip()}") from error
        if state is None:
            rule = f"{type(self.method).__name__}.round returns the state of the next round"
            raise PhaseError(broken(rule, f"None in round {t}", "Return replace(state, ...)."))
        # Here, in the round that made it, and not at the first checkpoint or at a resume.
        check_state(state, _is_ref, self._modules)
        return state

    def _costs(self) -> dict[str, float]:
        taken = self.fleet.costs.take()
        up, down, participants = (taken.pop(name) for name in ("up", "down", "participants"))
        return {
            **{f"cost/{name}": float(value) for name, value in taken.items()},
            "cost/up_mb": up / 1e6,
            "cost/down_mb": down / 1e6,
            "clients/participants": float(participants),
        }

    def _checkpoint_if_due(self, reached: Reached) -> None:
        rules = self.config.checkpoint
        due = rules.every and reached.round % rules.every == 0
        if due and time.monotonic() - self._saved_at >= rules.min_seconds:
            self.save()

    # -- beginning and resuming --------------------------------------------------------------------

    def _begun(self) -> Reached:
        self.fleet.round = -1
        self.method.check(self.fleet)
        state = self.method.init(self.fleet, self.fleet.initial())
        # Whatever `init` puts into a state was imported with the method, and will be again.
        self._modules |= check_state(state, _is_ref)
        self.fleet.costs.take()
        return Reached(0, state, dict(self.fleet.table), left=dict(self.fleet.left))

    def _resumed(self) -> Reached | None:
        snapshot = self.store.newest(self._restore)
        if snapshot is None:
            return None
        self._saved_round = snapshot.round
        self._saved_at = time.monotonic()
        self._modules |= self._known_modules(snapshot.meta)
        self.fleet.table = {client: dict(entries) for client, entries in snapshot.clients.items()}
        self.fleet.left = dict(snapshot.state["left"])
        log.info("resumed after round %d", snapshot.round)
        self._note(f"resumed after round {snapshot.round}")
        return Reached(
            snapshot.round,
            snapshot.state["method"],
            dict(self.fleet.table),
            snapshot.history,
            dict(self.fleet.left),
        )

    def _restore(self, manifest: Mapping[str, Any]) -> Snapshot:
        meta = manifest["meta"]
        for name, what in (("digest", "configuration"), ("scenario", "scenario")):
            if meta[name] != self.meta[name]:
                rule = f"a checkpoint belongs to this run's {what} ({self.meta[name][:12]})"
                raise StorageError(broken(rule, meta[name][:12]))
        if meta["versions"] != self.meta["versions"]:
            log.warning(
                "library versions changed since the checkpoint: bits may differ (%s)",
                meta["versions"],
            )
        modules = self._modules | self._known_modules(meta)
        state, history = self.store.state(manifest, modules, self.fleet.put)
        clients = {}
        for name, entries in manifest["clients"].items():
            client = self._known_client(int(name))
            clients[client] = {
                key: self._stored(client, key, named) for key, named in entries.items()
            }
        return Snapshot(manifest["round"], state, clients, history, meta)

    def _known_client(self, client: int) -> ClientId:
        # Negative ones are the server's tasks, which may have states too.
        if client < len(self.fleet.sizes):
            return client
        rule = f"a checkpoint has the states of clients below {len(self.fleet.sizes)}"
        raise StorageError(broken(rule, client))

    @staticmethod
    def _known_modules(meta: Mapping[str, Any]) -> set[str]:
        """Modules of dataclasses that `init` put into the state. They have been imported with the
        method; a file must not choose what is imported."""
        return {name for name in meta.get("modules", ()) if name in sys.modules}

    def _stored(self, client: ClientId, key: str, named: tuple[str, str]) -> Ref:
        def put(value: Any) -> Ref:
            ref = self.fleet.put({key: value})
            return Ref(ref.handle, key, count_bytes(value))

        ref: Ref = self.store.entry(client, key, named, put)
        return ref

    def _mark(self, value: Any) -> Any:
        return Marked(self.fleet.get(value)) if isinstance(value, Ref) else value

    # -- ending ------------------------------------------------------------------------------------

    def _outcome(self, reached: Reached) -> Outcome:
        models = self.judge.models(reached.state)
        # Clients of one cluster share one copy.
        distinct = {identify_model(ref): ref for ref in models.values()}
        fetched = {which: np.array(self.fleet.get(ref)) for which, ref in distinct.items()}
        vectors = {client: fetched[identify_model(ref)] for client, ref in models.items()}
        digest = hashlib.sha256()
        for client in sorted(vectors, key=lambda client: -1 if client is None else client):
            digest.update(f"{client}".encode() + vectors[client].astype("<f4").tobytes())
        decided = measure_decisions(self.fleet, reached.table, self.scenario)
        left = {**self.fleet.left, **decided}
        sha256 = digest.hexdigest()
        return Outcome(reached.round, reached.history, vectors, sha256, self._verdict, left)


def _is_ref(value: Any) -> bool:
    return isinstance(value, Ref)


def list_modules(method: object) -> set[str]:
    """The modules of a method and of what its settings hold: a host's states are states too."""
    parts = [method, *vars(method).values()]
    return {cls.__module__ for part in parts for cls in type(part).__mro__} - {"builtins"}


def find_changed(
    before: Mapping[ClientId, Mapping[str, Ref]], after: Mapping[ClientId, Mapping[str, Ref]]
) -> dict[ClientId, dict[str, Ref]]:
    """The entries of the state table that a round wrote."""
    changed: dict[ClientId, dict[str, Ref]] = {}
    for client, entries in after.items():
        known = before.get(client, {})
        if entries is known:
            continue
        news = {key: ref for key, ref in entries.items() if known.get(key) is not ref}
        if news:
            changed[client] = news
    return changed


def count_clients(what: str, clients: Sequence[ClientId]) -> dict[str, float]:
    """How many clients something befell, and whom."""
    named = {f"clients/{what}/{client}": 1.0 for client in clients}
    return {f"clients/{what}": float(len(clients)), **named}


def check_logged(logged: Mapping[str, Any], t: int) -> dict[str, float]:
    """Refuse what a method logged and is no number."""
    numbers = {}
    for name, value in logged.items():
        try:
            if isinstance(value, (str, bytes)) or np.ndim(value):
                raise TypeError
            numbers[name] = float(value)
        except (TypeError, ValueError):
            rule = f"fleet.log takes one number for each name (round {t})"
            what = f"{name}={show_value(value)}, which is a {type(value).__name__}"
            raise PhaseError(broken(rule, what, "Log a float of it.")) from None
    return numbers


def plain_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Python floats. A measure that has no value this round is absent; a loss always has one, and
    if it is not finite, that is what there is to know."""
    return {
        name: float(value) for name, value in metrics.items() if np.isfinite(value) or is_loss(name)
    }


def is_loss(name: str) -> bool:
    """Whether a metric is a loss, by the last part of its name."""
    return "loss" in name.rpartition("/")[2]


def find_lost(metrics: Mapping[str, float]) -> set[str]:
    """The losses that are not finite."""
    return {name for name, value in metrics.items() if not math.isfinite(value)}
