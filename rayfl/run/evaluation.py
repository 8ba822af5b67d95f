"""What a run is worth: test metrics of its models, and the quality of its label decisions against
the truth.

Only the experiment knows the truth; no method and no phase can reach it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfl.config.schema import Config
from rayfl.estimate import (
    adjusted_rand_index,
    label_precision,
    label_recall,
    mean_of_known,
    pearson,
    repair_quality,
)
from rayfl.federation.scenario import Scenario
from rayfl.federation.split import Role
from rayfl.fleet.base import BaseFleet, Errand
from rayfl.learn import metrics
from rayfl.protocol import (
    SERVER,
    Algorithm,
    Client,
    ClientId,
    Out,
    Ref,
    Report,
    Shard,
    State,
    Vector,
)

TOP, MANY_CLASSES = 5, 20
"""The right class among so many first answers is a metric where there are many classes."""
PART = 1024
"""Test images of one task, rounded up to whole batches: parts, and so the order of sums, never
depend on the actors."""


def evaluate_part(
    client: Client, *, w: Vector, test: Shard, start: int, stop: int, classes: int
) -> Out:
    """Confusion matrix and summed loss on a part of the test set."""
    from rayfl.learn.fit import outputs, sample_losses

    truth = test.y[start:stop]  # type: ignore[index]
    logits = outputs(client.learner, w, test.x[start:stop])
    confusion = metrics.confusion_matrix(truth, logits.argmax(axis=1), classes)
    return Out(
        {
            "confusion": confusion.astype(np.int32),
            "loss": float(sample_losses(logits, truth).sum()),
            "among": metrics.among_first(logits, truth, TOP),
        }
    )


@dataclass(frozen=True)
class Tested:
    """One model on the test set: confusion matrix, mean loss, and how often the right class is
    among the first few."""

    confusion: NDArray[np.int64]
    loss: float
    among: float


@dataclass(frozen=True)
class Verdict:
    """One evaluation: metrics, and the confusion matrix over all models."""

    metrics: Mapping[str, float]
    confusion: NDArray[np.int64]


class Judge:
    """Evaluates models and label decisions of one run."""

    def __init__(self, config: Config, scenario: Scenario, fleet: BaseFleet) -> None:
        self.scenario, self.fleet = scenario, fleet
        self.classes = len(scenario.classes)
        self.last: Verdict | None = None
        batch = config.evaluation.batch_size
        step = batch * -(-PART // batch)
        self.parts = [
            (start, min(start + step, fleet.sets["test"]))
            for start in range(0, fleet.sets["test"], step)
        ]

    def begin(
        self, method: Algorithm, state: State, then: Callable[[Verdict, float], object]
    ) -> Errand:
        """Have the models tested while the method goes on; `then` is given the verdict, and what it
        took."""
        models = self.models(method, state)
        distinct = {id(ref.handle): ref for ref in models.values()}
        tasks = [(which, part) for which in distinct for part in self.parts]
        each = {
            SERVER - i: {"w": distinct[which], "start": start, "stop": stop}
            for i, (which, (start, stop)) in enumerate(tasks)
        }
        groups, clusters = (
            {client: id(ref.handle) for client, ref in models.items()},
            method.clusters(state),
        )

        def decide(reports: Mapping[ClientId, Report], seconds: float) -> None:
            """Sums of the parts, in the order of the parts whoever was first."""
            answers = {
                which: [reports[SERVER - i] for i, task in enumerate(tasks) if task[0] == which]
                for which in distinct
            }
            judged = {which: summed(parts) for which, parts in answers.items()}
            self.last = self._verdict(
                method, {client: judged[which] for client, which in groups.items()}, clusters
            )
            then(self.last, seconds)

        test = self.fleet.held_set("test")
        return self.fleet.start_errand(evaluate_part, each, decide, test=test, classes=self.classes)

    def evaluate(self, method: Algorithm, state: State) -> Verdict:
        """Test metrics of the global model, or of every client's own averaged over clients, now."""
        self.begin(method, state, lambda *_: None).wait()
        assert self.last is not None
        return self.last

    def _verdict(
        self,
        method: Algorithm,
        judged: Mapping[ClientId | None, Tested],
        clusters: Mapping[ClientId, int],
    ) -> Verdict:
        if not method.personal:
            return Verdict(self._global_metrics(judged[None]), judged[None].confusion)
        verdict = self._personal(judged)
        return Verdict({**verdict.metrics, **self._clustering(clusters)}, verdict.confusion)

    def models(self, method: Algorithm, state: State) -> dict[ClientId | None, Ref]:
        """The model of each client where they differ, else the one of all."""
        if not method.personal:
            return {None: method.model(state, self.fleet)}
        return {client: method.model(state, self.fleet, client) for client in self.fleet.clients}

    def _global_metrics(self, tested: Tested) -> dict[str, float]:
        confusion = tested.confusion
        per_class = {
            f"test/recall/{name}": r
            for name, r in zip(self.scenario.classes, metrics.recalls(confusion), strict=True)
        }
        top = {f"test/top{TOP}_accuracy": tested.among} if self.classes >= MANY_CLASSES else {}
        return {**metrics.report(confusion, tested.loss), **top, **per_class}

    def _personal(self, judged: Mapping[ClientId | None, Tested]) -> Verdict:
        """A client's score is its model's accuracy on test images of the classes that it is meant
        to learn."""
        tasks = self.scenario.tasks
        scores = [
            metrics.accuracy(
                tested.confusion, None if tasks is None or client is None else tasks[client]
            )
            for client, tested in judged.items()
        ]
        confusion = total([tested.confusion for tested in judged.values()])
        loss = float(np.mean([tested.loss for tested in judged.values()]))
        own = {
            "test/accuracy": float(np.mean(scores)),
            "test/worst_client": float(np.min(scores)),
            "test/loss": loss,
        }
        return Verdict({**own, "test/macro_f1": metrics.macro_f1(confusion)}, confusion)

    def _clustering(self, found: Mapping[ClientId, int]) -> dict[str, float]:
        """Agreement of a method's clusters with the true tasks, where there are both."""
        if not found or self.scenario.tasks is None:
            return {}
        clients = sorted(found)
        tasks = [self.scenario.tasks[client] for client in clients]
        index = adjusted_rand_index(
            [found[client] for client in clients], [sorted(set(tasks)).index(t) for t in tasks]
        )
        return {"clusters/adjusted_rand": index, "clusters/count": float(len(set(found.values())))}

    # -- against the truth -------------------------------------------------------------------------------------

    def label_metrics(self, news: Mapping[ClientId, Mapping[str, Ref]]) -> dict[str, float]:
        """Precision and recall of kept samples, and what relabelling did, for the clients whose
        decisions changed."""
        if self.scenario.true is None:
            return {}
        kept = {
            client: self.fleet.get(entries["kept"])
            for client, entries in news.items()
            if "kept" in entries
        }
        labels = {
            client: self.fleet.get(entries["y"])
            for client, entries in news.items()
            if "y" in entries
        }
        return {**self._selection(kept), **self._repair(labels)}

    def estimate_metrics(
        self,
        estimates: Mapping[str, Mapping[ClientId, float]],
        answers: Mapping[str, Mapping[ClientId, NDArray[Any]]],
    ) -> dict[str, float]:
        """How what a method believes of clients goes (Pearson) with their true share of wrong
        labels, and with how often their models are right on a named set."""
        realised = self.scenario.realised if estimates else None
        if realised is None or self.scenario.true is None:
            return {}
        found = {}
        for name, values in estimates.items():
            believed = list(values.values())
            found[f"{name}/noise_correlation"] = pearson(believed, realised[list(values)])
            for held, labels in answers.items():
                truth = self.scenario.true[self.scenario.indices(Role[held.upper()])]
                right = [
                    float((labels[client] == truth).mean()) for client in values if client in labels
                ]
                if len(right) == len(believed):
                    found[f"{name}/accuracy_correlation"] = pearson(believed, right)
        return found

    def _selection(self, kept: Mapping[ClientId, NDArray[np.bool_]]) -> dict[str, float]:
        """Averages over clients; a client's mask may have a row an epoch."""
        pairs = [
            (client, row) for client, mask in sorted(kept.items()) for row in np.atleast_2d(mask)
        ]
        if not pairs:
            return {}
        precision = mean_of_known(
            [label_precision(row, *self._labels(client), empty=0.0) for client, row in pairs]
        )
        recall = mean_of_known([label_recall(row, *self._labels(client)) for client, row in pairs])
        share = float(np.mean([row.mean() for _, row in pairs]))
        return {
            "labels/precision": precision.mean,
            "labels/recall": recall.mean,
            "labels/kept": share,
        }

    def _repair(self, labels: Mapping[ClientId, NDArray[np.int64]]) -> dict[str, float]:
        if not labels:
            return {}
        clients = sorted(labels)
        given, true = (
            np.concatenate(parts)
            for parts in zip(*(self._labels(client) for client in clients), strict=True)
        )
        repair = repair_quality(given, np.concatenate([labels[client] for client in clients]), true)
        return {
            "labels/corrected": repair.corrected,
            "labels/correction_accuracy": repair.accuracy,
            "labels/right_before": repair.right_before,
            "labels/right_after": repair.right_after,
        }

    def _labels(self, client: ClientId) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        assert self.scenario.true is not None
        rows = self.scenario.shard(client)
        return self.scenario.given[rows], self.scenario.true[rows]


def summed(reports: Sequence[Report]) -> Tested:
    """A model on the whole test set, from its parts."""
    confusion = total([report["confusion"] for report in reports])
    images = max(int(confusion.sum()), 1)
    loss, among = (sum(report[name] for report in reports) / images for name in ("loss", "among"))
    return Tested(confusion, loss, among)


def total(parts: Sequence[NDArray[np.signedinteger[Any]]]) -> NDArray[np.int64]:
    """The sum of equally shaped counts."""
    summed: NDArray[np.int64] = np.stack(parts).sum(axis=0, dtype=np.int64)
    return summed
