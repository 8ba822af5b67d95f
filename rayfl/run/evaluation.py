"""What a run is worth: test metrics of its models, and the quality of its label decisions against
the truth.

Only the experiment knows the truth; no method and no phase can reach it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.config.schema import Config
from rayfl.errors import PhaseError, broken
from rayfl.estimate import (
    adjusted_rand_index,
    average_known,
    measure_correlation,
    measure_repair,
    measure_selection,
)
from rayfl.federation.scenario import Scenario
from rayfl.federation.split import Role
from rayfl.fleet.base import STAMPED_SET, TEST_SET, BaseFleet, Errand
from rayfl.learn import metrics
from rayfl.protocol import (
    SERVER,
    Client,
    ClientId,
    Images,
    Model,
    Out,
    Ref,
    Report,
    Shard,
    State,
    Vector,
)
from rayfl.run.hostility import compare_hostile, measure_success

if TYPE_CHECKING:
    from rayfl.learn.batch_order import Rows
    from rayfl.learn.learner import Learner

TOP, MANY_CLASSES = 5, 20
"""The right class among so many first answers is a metric where there are many classes."""
OWN = ""
"""The name of the method's own answer among the models that are tested."""
FURTHER = ("accuracy", "loss", "macro_f1")
"""What is told of the others."""
Parts = Sequence[tuple[int, int]]
PART = 1024
"""Test images of one task, rounded up to whole batches: parts, and so the order of sums, never
depend on the actors."""


def evaluate_part(
    client: Client,
    *,
    w: Vector | tuple[Vector, ...],
    test: Shard,
    start: int,
    stop: int,
    classes: int,
    name: str = TEST_SET,
) -> Out:
    """Confusion matrix and summed loss on a part of the test set, of a model or an ensemble."""
    from rayfl.learn.fit import compute_losses

    rows = find_part(client.learner, test, start, stop, name)
    truth = test.y[rows]  # type: ignore[index]
    logits = answer_images(client, w, test.x[rows])
    confusion = metrics.count_confusions(truth, logits.argmax(axis=1), classes)
    return Out(
        {
            "confusion": confusion.astype(np.int32),
            "loss": float(compute_losses(logits, truth).sum()),
            "among": metrics.count_among_first(logits, truth, TOP),
        }
    )


def examine_part(client: Client, *, test: Shard, classes: int, train: Shard, **own: Any) -> Out:
    """A part of the test set, or the samples of one client, whose rows say which."""
    if "rows" in own:
        return measure_losses(client, train=train, **own)
    return evaluate_part(client, test=test, classes=classes, **own)


def measure_losses(
    client: Client,
    *,
    w: Vector | tuple[Vector, ...],
    train: Shard,
    rows: NDArray[np.int64],
    y: NDArray[np.int64],
) -> Out:
    """The loss of each of a client's samples; which labels are right is not known here."""
    from rayfl.learn.fit import compute_losses

    losses = compute_losses(answer_images(client, w, train.x[rows]), y)
    return Out({"losses": losses.astype(np.float32)})


def find_part(learner: Learner, test: Shard, start: int, stop: int, name: str) -> Rows:
    """The test images of a part: of a network that uses its batch's statistics, images from all
    over the set, because a part of the files may hold one class."""
    from rayfl.learn.batch_order import order_by_content, uses_batch_statistics

    if not uses_batch_statistics(learner.shape_of().net.eval()):
        return slice(start, stop)
    order = learner.keep(f"order of the images of {name}", lambda: order_by_content(test.x))
    return order[start:stop]


def answer_images(client: Client, w: Vector | tuple[Vector, ...], x: Images) -> Vector:
    """Logits of a model; of several, the logarithm of their mean probabilities."""
    from rayfl.estimate.probabilities import softmax
    from rayfl.learn.fit import compute_outputs

    if not isinstance(w, tuple):
        return compute_outputs(client.learner, w, x)
    shares = [softmax(compute_outputs(client.learner, one, x)) for one in w]
    # A probability of 0 is one that float64 cannot tell from it.
    mean = np.maximum(np.mean(shares, axis=0), np.finfo(np.float64).tiny)
    logits: Vector = np.log(mean).astype(np.float32)
    return logits


def identify_model(model: Model) -> object:
    """What two references to the same weights have in common."""
    refs = model if isinstance(model, tuple) else (model,)
    return tuple((id(ref.handle), ref.key) for ref in refs)


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


@dataclass(frozen=True)
class Examination:
    """One evaluation, prepared: which part of the test set each task of the server asks which model
    about.

    Attributes
    ----------
    inputs : mapping
        Of each task: the weights, and from where to where.
    models : mapping
        By name ("" for the method's own answer): which model a client has, None for all, by a
        number of the model.
    tasks : mapping
        The tasks that ask about a model, in the order of the parts.
    clusters : mapping
        The method's cluster of each client, where it has clusters.
    training : mapping
        Of each client, what the losses of its samples are measured with; empty where nobody asks.
    """

    inputs: Mapping[ClientId, Mapping[str, Any]]
    models: Mapping[str, Mapping[ClientId | None, int]]
    tasks: Mapping[int, list[ClientId]]
    clusters: Mapping[ClientId, int]
    training: Mapping[ClientId, Mapping[str, Any]] = field(default_factory=dict)
    stamped: Mapping[int, list[ClientId]] = field(default_factory=dict)
    """Of each model of the method's own answer, the tasks that ask about images with a trigger."""


class Judge:
    """Evaluates models and label decisions of one run."""

    def __init__(self, config: Config, scenario: Scenario, fleet: BaseFleet) -> None:
        self.method = config.method
        self.scenario = scenario
        self.fleet = fleet
        self.classes = len(scenario.classes)
        # Without the truth nobody can tell right labels from wrong ones.
        self.training = config.evaluation.training_losses and scenario.true is not None
        batch = config.evaluation.batch_size
        step = batch * -(-PART // batch)
        self.parts = split_images(fleet.sets[TEST_SET], step)
        self.stamped = split_images(fleet.sets.get(STAMPED_SET, 0), step)
        self.showing = {"test": fleet.held_set(STAMPED_SET), "name": STAMPED_SET}
        self.aim = None if config.hostile is None else config.hostile.aim

    # -- the test set ------------------------------------------------------------------------------

    def prepare(self, state: State) -> Examination:
        """What is to be asked to test the models of a state."""
        wanted: dict[str, dict[ClientId | None, Model]] = {OWN: dict(self.models(state))}
        for owner in wanted[OWN]:
            for name, model in self.method.further_models(state, self.fleet, owner).items():
                for part in model if isinstance(model, tuple) else (model,):
                    self._refuse_no_reference(part, "further_models", owner)
                wanted.setdefault(name, {})[owner] = model
        # Clients of one cluster have one model, which is tested once.
        numbers: dict[object, int] = {}
        inputs: dict[ClientId, Mapping[str, Any]] = {}
        tasks: dict[int, list[ClientId]] = {}
        chosen: dict[str, dict[ClientId | None, int]] = {name: {} for name in wanted}
        for name, models in wanted.items():
            for owner, model in models.items():
                number = numbers.setdefault(identify_model(model), len(numbers))
                chosen[name][owner] = number
                if number not in tasks:
                    tasks[number] = self._plan_tasks(model, inputs, self.parts, {})
        stamped = {
            chosen[OWN][owner]: self._plan_tasks(model, inputs, self.stamped, self.showing)
            for owner, model in wanted[OWN].items()
            if self.stamped
        }
        training = self._plan_training(wanted[OWN]) if self.training else {}
        clusters = self.method.clusters(state)
        return Examination(inputs, chosen, tasks, clusters, training, stamped)

    def _plan_training(
        self, models: Mapping[ClientId | None, Model]
    ) -> dict[ClientId, Mapping[str, Any]]:
        """Each client's samples, to be asked of its model or of the one of all."""
        planned: dict[ClientId, Mapping[str, Any]] = {}
        for owner in self.fleet.clients:
            rows = self.scenario.shard(owner)
            model = models[owner] if owner in models else models[None]
            planned[owner] = {"w": model, "rows": rows, "y": self.scenario.given[rows]}
        return planned

    def _plan_tasks(
        self,
        model: Model,
        inputs: dict[ClientId, Mapping[str, Any]],
        parts: Parts,
        showing: Mapping[str, Any],
    ) -> list[ClientId]:
        """Tasks of the server that test one model, put among the inputs."""
        tasks = []
        for start, stop in parts:
            task = SERVER - len(inputs)
            inputs[task] = {"w": model, "start": start, "stop": stop, **showing}
            tasks.append(task)
        return tasks

    def begin(
        self, examination: Examination, when_done: Callable[[Mapping[ClientId, Report], float], Any]
    ) -> Errand:
        """Have it carried out while the method goes on; `when_done` is given the reports, and the
        seconds that they took."""
        test = self.fleet.held_set("test")
        if not examination.training:
            return self.fleet.start_errand(
                evaluate_part, examination.inputs, when_done, test=test, classes=self.classes
            )
        # The server's own tasks: a client's number would be a visit.
        first = SERVER - len(examination.inputs)
        more = {first - at: inputs for at, inputs in enumerate(examination.training.values())}
        return self.fleet.start_errand(
            examine_part,
            {**examination.inputs, **more},
            when_done,
            test=test,
            classes=self.classes,
            train=self.fleet.held_set("train"),
        )

    def decide(self, examination: Examination, reports: Mapping[ClientId, Report]) -> Verdict:
        """The verdict: sums of the parts, in the order of the parts whoever was first."""
        tested = {
            number: add_parts([reports[task] for task in tasks])
            for number, tasks in examination.tasks.items()
        }
        verdicts = {}
        for name, models in examination.models.items():
            judged = {client: tested[number] for client, number in models.items()}
            verdicts[name] = self._judge_models(judged)
        own = verdicts.pop(OWN)
        found = {
            **own.metrics,
            **self._clustering(examination.clusters),
            **self._training_losses(examination, reports),
            **self._success(examination, reports),
        }
        for name, verdict in verdicts.items():
            for metric in FURTHER:
                found[f"test/{name}/{metric}"] = verdict.metrics[f"test/{metric}"]
        return Verdict(found, own.confusion)

    def _judge_models(self, judged: Mapping[ClientId | None, Tested]) -> Verdict:
        """The one model of all, or every client's own."""
        if self.method.personal:
            return self._personal(judged)
        whole = judged[None]
        return Verdict(self._global_metrics(whole), whole.confusion)

    def models(self, state: State) -> dict[ClientId | None, Ref]:
        """The model of each client where they differ, else the one of all."""
        method = self.method
        owners = self.fleet.clients if method.personal else [None]
        models = {client: method.model(state, self.fleet, client) for client in owners}
        for client, model in models.items():
            self._refuse_no_reference(model, "model", client)
        return models

    def _refuse_no_reference(self, model: object, verb: str, client: ClientId | None) -> None:
        if not isinstance(model, Ref):
            whose = "" if client is None else f" (client {client})"
            rule = f"{type(self.method).__name__}.{verb} gives references to weights{whose}"
            remedy = "Means are references; fleet.put(array) makes one of an array."
            raise PhaseError(broken(rule, type(model).__name__, remedy))

    def _global_metrics(self, tested: Tested) -> dict[str, float]:
        found = dict(metrics.summarise_confusion(tested.confusion, tested.loss))
        if self.classes >= MANY_CLASSES:
            found[f"test/top{TOP}_accuracy"] = tested.among
        recalls = metrics.measure_recalls(tested.confusion)
        for name, recall in zip(self.scenario.classes, recalls, strict=True):
            found[f"test/recall/{name}"] = recall
        return found

    def _personal(self, judged: Mapping[ClientId | None, Tested]) -> Verdict:
        """A client's score is its model's accuracy on test images of the classes that it is meant
        to learn."""
        tasks = self.scenario.tasks
        scores = []
        for client, tested in judged.items():
            classes = None if tasks is None or client is None else tasks[client]
            scores.append(metrics.measure_accuracy(tested.confusion, classes))
        confusion = add_counts([tested.confusion for tested in judged.values()])
        own = {
            "test/accuracy": float(np.mean(scores)),
            "test/worst_client": float(np.min(scores)),
            "test/loss": float(np.mean([tested.loss for tested in judged.values()])),
            "test/macro_f1": metrics.measure_macro_f1(confusion),
        }
        return Verdict(own, confusion)

    def _training_losses(
        self, examination: Examination, reports: Mapping[ClientId, Report]
    ) -> dict[str, float]:
        """Mean losses over all samples of all clients whose labels are right, and wrong."""
        if not examination.training:
            return {}
        assert self.scenario.correct is not None
        first = SERVER - len(examination.inputs)
        held = [inputs["rows"] for inputs in examination.training.values()]
        losses = [reports[first - at]["losses"] for at in range(len(held))]
        right = self.scenario.correct[np.concatenate(held)]
        of_all = np.concatenate(losses).astype(np.float64)
        parts = {"train/loss_right": of_all[right], "train/loss_wrong": of_all[~right]}
        return {name: float(part.mean()) for name, part in parts.items() if len(part)}

    def _success(
        self, examination: Examination, reports: Mapping[ClientId, Report]
    ) -> dict[str, float]:
        """How often the trigger of a backdoor works, where there is one."""
        if self.aim is None or not examination.stamped:
            return {}
        asked = examination.stamped.values()
        found = [add_parts([reports[task] for task in tasks]) for tasks in asked]
        return measure_success([tested.confusion for tested in found], self.aim)

    def _clustering(self, found: Mapping[ClientId, int]) -> dict[str, float]:
        """Agreement of a method's clusters with the true tasks, where there are both."""
        if not found or self.scenario.tasks is None:
            return {}
        clients = sorted(found)
        clusters = [found[client] for client in clients]
        tasks = [self.scenario.tasks[client] for client in clients]
        known = sorted(set(tasks))
        index = adjusted_rand_index(clusters, [known.index(task) for task in tasks])
        return {"clusters/adjusted_rand": index, "clusters/count": float(len(set(clusters)))}

    # -- against the truth -------------------------------------------------------------------------

    def label_metrics(self, news: Mapping[ClientId, Mapping[str, Ref]]) -> dict[str, float]:
        """Precision and recall of kept samples, and what relabelling did, for the clients whose
        decisions changed."""
        if self.scenario.true is None:
            return {}
        kept, labels = self._fetch(news, "kept"), self._fetch(news, "y")
        return {**self._selection(kept), **self._repair(labels)}

    def _fetch(
        self, news: Mapping[ClientId, Mapping[str, Ref]], key: str
    ) -> dict[ClientId, NDArray[Any]]:
        return {
            client: self.fleet.get(entries[key])
            for client, entries in news.items()
            if key in entries
        }

    def estimate_metrics(
        self,
        estimates: Mapping[str, Mapping[ClientId, float]],
        answers: Mapping[str, Mapping[ClientId, NDArray[Any]]],
    ) -> dict[str, float]:
        """How what a method believes of clients goes (Pearson) with their true share of wrong
        labels, and with how often their models are right on a named set."""
        found: dict[str, float] = {}
        if self.scenario.attack is not None:
            for name, values in estimates.items():
                found |= compare_hostile(name, values, self.scenario.attack)
        realised = self.scenario.realised if estimates else None
        if realised is None or self.scenario.true is None:
            return found
        for name, values in estimates.items():
            believed = list(values.values())
            found[f"{name}/noise_correlation"] = measure_correlation(
                believed, realised[list(values)]
            )
            for held, labels in answers.items():
                # Images of another dataset have no right answer.
                if held == "public" and self.scenario.public is not None:
                    continue
                truth = self.scenario.true[self.scenario.indices(Role[held.upper()])]
                asked = [client for client in values if client in labels]
                right = [float((labels[client] == truth).mean()) for client in asked]
                if len(right) == len(believed):
                    found[f"{name}/accuracy_correlation"] = measure_correlation(believed, right)
        return found

    def _selection(self, kept: Mapping[ClientId, NDArray[np.bool_]]) -> dict[str, float]:
        """Averages over clients; a client's mask may have a row an epoch."""
        precisions, recalls, shares = [], [], []
        for client, mask in sorted(kept.items()):
            given, true = self._labels(client)
            for row in np.atleast_2d(mask):
                found = measure_selection(row, given, true)
                # Who keeps nothing has nothing right.
                precisions.append(found.precision if row.any() else 0.0)
                recalls.append(found.recall)
                shares.append(row.mean())
        if not shares:
            return {}
        return {
            "labels/precision": average_known(precisions).mean,
            "labels/recall": average_known(recalls).mean,
            "labels/kept": float(np.mean(shares)),
        }

    def _repair(self, labels: Mapping[ClientId, NDArray[np.int64]]) -> dict[str, float]:
        if not labels:
            return {}
        clients = sorted(labels)
        pairs = [self._labels(client) for client in clients]
        given = np.concatenate([pair[0] for pair in pairs])
        true = np.concatenate([pair[1] for pair in pairs])
        now = np.concatenate([labels[client] for client in clients])
        repair = measure_repair(given, now, true)
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


def add_parts(reports: Sequence[Report]) -> Tested:
    """A model on the whole test set, from its parts."""
    confusion = add_counts([report["confusion"] for report in reports])
    images = max(int(confusion.sum()), 1)
    loss = sum(report["loss"] for report in reports) / images
    among = sum(report["among"] for report in reports) / images
    return Tested(confusion, loss, among)


def split_images(images: int, step: int) -> Parts:
    """From where to where the parts of a set go."""
    return [(start, min(start + step, images)) for start in range(0, images, step)]


def add_counts(parts: Sequence[NDArray[np.signedinteger[Any]]]) -> NDArray[np.int64]:
    """The sum of equally shaped counts."""
    summed: NDArray[np.int64] = np.stack(parts).sum(axis=0, dtype=np.int64)
    return summed
