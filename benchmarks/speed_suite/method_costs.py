"""What every method's round takes, over what its passes should take (W6's second table).

A round makes so many sample passes, which the run itself counts, at clients and at the server.
Plain PyTorch, on the run's network, batch size and thread, says what a pass takes, before and after
each round, so that whoever else uses the machine is in both:

    f = seconds of a forward pass of one sample, without gradients
    b = seconds of a step of one sample - f  (forward, loss, backward, optimiser)
    model = f * forward + b * backward + what the named extras took

Extras are what methods compute beside networks: mixtures, LID, EM, clusterings, views of images.
They are timed where they are called. Seconds are the processor's, of this process: one actor does
everything, and waits for nobody."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from speed_suite.method_rows import FEDERATION, Row
from speed_suite.race import circumstances

KEY = "w6-methods"
COUNTS = ("forward", "backward", "server_forward", "server_backward", "down_mb", "up_mb")
CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "methods"
ROUNDS = 3
"""Of each run that count."""
BURST = 0.08
"""Seconds of plain passes between two rounds."""

EXTRAS: Mapping[str, Sequence[str]] = {
    "mixture": ("mixture:LossMixture.fit", "gaussian_mixture:GaussianMixture.fit"),
    "LID": ("lid:mean_lid",),
    "EM": ("dawid_skene:DawidSkene.fit",),
    "clustering": (
        "subspace:decompose_features",
        "subspace:similarity_matrix",
        "clustering:agglomerate",
        "label_correction:correct_labels",
        "label_correction:calibrate_correction",
    ),
    "neighbours": ("neighbour_votes:measure_disagreement",),
}
"""Functions of rayfl.estimate, by what they are called in the table."""
VIEWS = ("crop:CropFlip", "resize:ResizeCrop", "strong:Strong", "views:Contrastive", "views:Weak")
"""Augmentations of rayfl.learn.augment."""


@dataclass
class Passed:
    """Seconds of a forward pass and of all else in a step, of one sample."""

    forward: float
    backward: float


class PlainPasses:
    """A loop that a person would write, on the network, images and local settings of a run."""

    def __init__(self, fleet: Any) -> None:
        learner = fleet.spec.make_learner()
        made: nn.Module = learner.build()
        # Two networks in one have the same passes twice, and count them so.
        first: nn.Module = next(iter(getattr(made, "networks", [made])))
        # As rayfl lays them out: what is measured is not which of the two is faster.
        self.net = first.to(memory_format=torch.channels_last)
        self.batch = learner.training.batch_size
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (8 * self.batch, *fleet.shape), dtype=np.uint8)
        self.pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
        self.y = torch.from_numpy(rng.integers(0, fleet.classes, len(images)))
        rate = 1e-4
        self.optimiser: torch.optim.Optimizer = (
            torch.optim.Adam(self.net.parameters(), lr=rate)
            if learner.training.optimizer == "adam"
            else torch.optim.SGD(self.net.parameters(), lr=rate, momentum=0.5)
        )

    def measure(self) -> Passed:
        """Both kinds of passes, for a while, in turns."""
        taken = {"forward": 0.0, "step": 0.0}
        samples = 0
        while taken["step"] < BURST:
            for chosen in torch.split(torch.randperm(len(self.y)), self.batch):
                taken["forward"] += seconds_of(partial(self.pass_forward, chosen))
                taken["step"] += seconds_of(partial(self.step, chosen))
                samples += len(chosen)
        forward = taken["forward"] / samples
        return Passed(forward, taken["step"] / samples - forward)

    def take(self, chosen: Tensor) -> Tensor:
        return self.pixels[chosen].float().div_(255)

    @torch.no_grad()
    def pass_forward(self, chosen: Tensor) -> None:
        self.net.eval()
        self.net(self.take(chosen))

    def step(self, chosen: Tensor) -> None:
        self.net.train()
        self.optimiser.zero_grad()
        loss = functional.cross_entropy(self.net(self.take(chosen)), self.y[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()


def seconds_of(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


# -- one run ---------------------------------------------------------------------------------------


@dataclass
class Watched:
    """What was timed in a run: a round each, and the plain passes before, between and after."""

    rounds: list[float] = field(default_factory=list)
    plain: list[Passed] = field(default_factory=list)
    extras: list[dict[str, float]] = field(default_factory=list)
    depth: int = 0
    passes: PlainPasses | None = None

    def note_extra(self, name: str, seconds: float) -> None:
        if self.extras:
            self.extras[-1][name] = self.extras[-1].get(name, 0.0) + seconds


def run_row(row: Row) -> dict[str, Any]:
    """One run of a row: for each round that counts, its seconds, its model and its counts."""
    from rayfl.testing.places import run_in

    watched = Watched()
    with tempfile.TemporaryDirectory(prefix="rayfl_w6") as output, ExitStack() as opened:
        config = configure(row, output)
        opened.enter_context(time_rounds(config.method, watched))
        opened.enter_context(time_extras(watched))
        outcome, fleet = run_in(config)
        assert watched.passes is not None
        watched.plain.append(watched.passes.measure())
    records = [record["metrics"] for record in outcome.history]
    counted = range(row.begins, len(records))
    return {
        "rounds": [summarise(watched, records[t], t) for t in counted],
        "model_mb": 4e-6 * len(next(iter(outcome.models.values()))),
        "samples": sum(map(fleet.size, fleet.clients)) / len(fleet.clients),
    }


def configure(row: Row, output: str) -> Any:
    """The configuration of configs/methods on the small federation."""
    from rayfl.config.files import merge_settings, read_config
    from rayfl.config.schema import validate_config

    rounds = row.begins + ROUNDS
    place = {
        "fleet": "inline",
        "output": output,
        "tracking": {"enabled": False},
        "checkpoint": {"every": 0},
        "evaluation": {"every": rounds},
        "training": {"rounds": rounds},
    }
    settings = read_config(CONFIGS / f"{row.file}.yaml")
    method = settings["method"]
    named = {"name": method} if isinstance(method, str) else method
    own = {"method": merge_settings(named, row.method)}
    for part in (own, FEDERATION, row.more, place):
        settings = merge_settings(settings, part)
    return validate_config(settings)


@contextmanager
def time_rounds(method: Any, watched: Watched) -> Iterator[None]:
    """Let the method's rounds be timed, with plain passes around each."""
    play = type(method).round

    def timed(self: Any, state: Any, fleet: Any, t: int) -> Any:
        if self is not method:
            return play(self, state, fleet, t)
        watched.passes = watched.passes or PlainPasses(fleet)
        watched.plain.append(watched.passes.measure())
        watched.extras.append({})
        started = time.process_time()
        after = play(self, state, fleet, t)
        watched.rounds.append(time.process_time() - started)
        return after

    with patch.object(type(method), "round", timed):
        yield


@contextmanager
def time_extras(watched: Watched) -> Iterator[None]:
    """Let what methods compute beside networks be timed, wherever it was imported."""
    with ExitStack() as opened:
        for name, paths in EXTRAS.items():
            for path in paths:
                place_timer(opened, watched, name, f"rayfl.estimate.{path}")
        for path in VIEWS:
            place_timer(opened, watched, "views", f"rayfl.learn.augment.{path}.__call__")
        yield


def place_timer(opened: ExitStack, watched: Watched, name: str, path: str) -> None:
    """Have one function timed: a method in its class, a function in every module that has it."""
    module, _, attribute = path.partition(":")
    home = __import__(module, fromlist=["_"])
    owner, _, member = attribute.partition(".")
    timed = getattr(home, owner)
    if member:
        wrapped = make_timed(getattr(timed, member), watched, name)
        opened.enter_context(patch.object(timed, member, wrapped))
        return
    wrapped = make_timed(timed, watched, name)
    for found in [m for key, m in sys.modules.items() if key.startswith("rayfl.")]:
        if vars(found).get(owner) is timed:
            opened.enter_context(patch.object(found, owner, wrapped))


def make_timed(function: Callable[..., Any], watched: Watched, name: str) -> Callable[..., Any]:
    """The same, and its seconds are noted, once where one extra calls another."""

    def timed(*given: Any, **named: Any) -> Any:
        if watched.depth:
            return function(*given, **named)
        watched.depth += 1
        started = time.process_time()
        try:
            return function(*given, **named)
        finally:
            watched.depth -= 1
            watched.note_extra(name, time.process_time() - started)

    return timed


def summarise(watched: Watched, metrics: Mapping[str, float], t: int) -> dict[str, Any]:
    """A round's seconds, what its model says, and what it counted."""
    around = watched.plain[t : t + 2]
    plain = Passed(*np.mean([[each.forward, each.backward] for each in around], axis=0).tolist())
    extras = watched.extras[t]
    counts = {name: metrics[f"cost/{name}"] for name in COUNTS}
    return {
        "seconds": watched.rounds[t],
        "model": predict(plain, counts) + sum(extras.values()),
        "extras": extras,
        "participants": metrics["clients/participants"],
        **counts,
    }


def predict(plain: Passed, counts: Mapping[str, float]) -> float:
    """Seconds of all passes, at clients and at the server."""
    forward = counts["forward"] + counts["server_forward"]
    backward = counts["backward"] + counts["server_backward"]
    return plain.forward * forward + plain.backward * backward


# -- all rows --------------------------------------------------------------------------------------


def measure_rows(rows: Sequence[Row], repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Every row, in turns, and what the table says of it."""
    torch.set_num_threads(1)
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(repeats):
        for row in rows:
            found = run_row(row)
            runs.setdefault(row.name, []).append(found)
            say(f"  {row.name:34} {join_ratios(found)} times its cost model")
    return {
        "key": KEY,
        "repeats": repeats,
        "rows": {row.name: {"paper": row.paper, **conclude(runs[row.name])} for row in rows},
        "versions": {"torch": str(torch.__version__), "rayfl": rayfl_version()},
        **circumstances(),
    }


def join_ratios(found: Mapping[str, Any]) -> str:
    return " ".join(f"{each['seconds'] / each['model']:.2f}" for each in found["rounds"])


def conclude(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over all rounds that count; counts are the last one's."""
    rounds = [each for run in runs for each in run["rounds"]]
    last = rounds[-1]
    extras = {name for each in rounds for name in each["extras"]}
    visits = (last["participants"] or 1.0) * runs[-1]["samples"]
    sent = (last["participants"] or 1.0) * runs[-1]["model_mb"]
    return {
        "seconds": median(each["seconds"] for each in rounds),
        "model": median(each["model"] for each in rounds),
        "ratio": median(each["seconds"] / each["model"] for each in rounds),
        "extras": {name: median_of(rounds, name) for name in sorted(extras)},
        "F": last["forward"] / visits,
        "B": last["backward"] / visits,
        "server_forward": last["server_forward"],
        "server_backward": last["server_backward"],
        "down": last["down_mb"] / sent,
        "up": last["up_mb"] / sent,
    }


def median_of(rounds: Sequence[Mapping[str, Any]], extra: str) -> float:
    return float(median(each["extras"].get(extra, 0.0) for each in rounds))


def rayfl_version() -> str:
    import rayfl

    return str(rayfl.__version__)
