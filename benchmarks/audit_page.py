"""docs/audit.md, from the cells of benchmarks/audit.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Cell = Mapping[str, Any]

SEEDS, INTERVALS = 5, 400
CALIBRATED = ("symmetric", "pair", "clean")

INTRODUCTION = """# Audits, measured

`rayfl audit` on data with a truth that it does not see: 8,000 images, 20 clients. Written by
`benchmarks/audit.py` from one file a cell; no figure of these tables is typed by hand. The files
lie in `results/audit`: a cell that has one is not run again, and the last command writes this page
from them alone.

```bash
rayfl data get cifar10 && rayfl data get fashion-mnist && rayfl data get mnist
pip install 'rayfl[encoders]' cleanlab            # cleanlab is compared with, and not needed
python benchmarks/audit.py --human cifar10n_train_labels.parquet   # all cells; --only REGEX: some
python benchmarks/audit.py --write docs/audit.md
```

Settings, thresholds and the joining rule were chosen on rows 20,000 to 28,000 of MNIST,
Fashion-MNIST and CIFAR-10 with seeds 100 to 102. The cells use the first 8,000 rows and seeds 0 to
4. Rates go from 0 to 80 % over the clients; `few` has five clients of 100 images with 6, 2, 8, 26
and 63 % (symmetric). `human` are CIFAR-10N's `worse` labels as they fall on IID clients;
`gathered` are the same labels with three quarters of the wrong ones dealt to the last eight
clients; `drawn` has the rates from class to class of these labels, but draws who gets which at
random. Figures are means with 95 % intervals over cells (Student's t);
one cell has none, and with fewer than five cells a figure is a first look.
"""

READING = """## How it works

Heads (linear, on a frozen encoder's features) are trained on all clients by exact means of their
slopes; each sample is judged by a head that never saw it. Clients whose labels agree best with
these heads are trusted, with the next best who hold a class that these lack, and heads are trained
on them alone. With those, every client's transition matrix is counted, and heads are trained on
everybody again, knowing it. The joined score of a
sample is the chance that its label is right by such a head and by its client's matrix. How sure
heads may be is what makes the labels likeliest with one rate a client: with whole matrices, which
are fitted to the same labels, it came out too high, and with a hundred images a site clean ones
looked 15 % wrong. What heads get wrong of the clients whose labels look best is taken for the
heads' own mistakes, as long as these look almost clean; the fewer samples of a class there are and
the more heads doubt, the more counts as almost clean. Other estimators (two groups of losses, the
confident joint, neighbours, subspaces, votes of other clients with Dawid and Skene's model, LID,
expertise) see the same features and are weaker; they are shown beside the joined figures, and say
where they disagree.
"""

SPREAD = (
    "Their width was chosen on the development rows, where 0.90 of 160 intervals held the truth, "
    "and 0.79 with half the `spread`; where few labels are wrong an interval ends at 0, where the "
    "truth is, and always holds it. The table of shares says which data and noise it is."
)
FEW = (
    "- `few`: no aim was set. Heads that have learned from 500 images find fault with clean "
    "labels, and shares come out too high. Intervals allow for it by how unsure the heads are and "
    "how few samples a class has; in development 0.85 of 135 such intervals held the truth (0.96 "
    "with 200 images in all, 0.87 with 1,000)."
)
PEOPLE = (
    "- `human` and `gathered`: no aim was set for shares, and they come out too low, with no "
    "interval that holds the truth. It is not the pattern of the mistakes: `drawn` has the same "
    "rates from class to class, but dealt to images at random{drawn}. People err on images that "
    "look like another class, heads see the same likeness, and where both agree on the wrong "
    "class nobody who sees the given labels alone can tell it from a right one."
)
SKEWED = (
    "- `dirichlet` and `two-classes`: no aim was set. What a client holds of a class says little "
    "of its rate there, and few clients of a class say what it looks like: {figures}. Clients that "
    "this makes unsure carry a warning. The rule that somebody of every class is trusted came from "
    "development rows, after the first cells of these two had been seen."
)
CLEANEST = 4
"""Clients with the lowest rates, of which the bias is told apart."""


def write_page(cells: Sequence[Cell]) -> str:
    """The whole document."""
    parts = [
        INTRODUCTION,
        "## Aims\n",
        *format_aims(cells),
        "\n## Shares of clients, by data and noise\n",
        *format_calibration(cells),
        "\n## All cells\n",
        *format_cells(cells),
        "\n## What is not reached, and why\n",
        *explain(cells),
        "",
        READING,
    ]
    return "\n".join(parts)


def format_aims(cells: Sequence[Cell]) -> Iterator[str]:
    """One line an aim: measured, aimed at, reached or not."""
    yield "| | measured | cells | aim | reached |"
    yield "|---|---|---|---|---|"
    for what, values, aim, rising in list_aims(cells):
        if not values:
            yield f"| {what} | not measured | 0 | {tell_aim(aim, rising)} | - |"
            continue
        mean = float(np.mean(values))
        good = mean >= aim if rising else mean <= aim
        # With fewer cells than seeds a figure is a first look; what a run costs differs by the
        # machine, not by the seed.
        first_look = len(values) < SEEDS and not what.startswith("cost")
        reached = ("yes" if good else "**no**") + (", so far" if first_look else "")
        measured = tell_mean(values)
        yield f"| {what} | {measured} | {len(values)} | {tell_aim(aim, rising)} | {reached} |"
    yield from format_coverage(cells)


def list_aims(cells: Sequence[Cell]) -> Iterator[tuple[str, list[float], float, bool]]:
    """What is aimed at: its name, the values of all seeds, the aim, whether more is better."""
    aims = {
        ("cifar10", "symmetric"): 0.97,
        ("cifar10", "pair"): 0.93,
        ("cifar10", "human"): 0.91,
        ("cifar10", "gathered"): 0.91,
        ("fashion-mnist", "symmetric"): 0.98,
        ("fashion-mnist", "pair"): 0.94,
        ("mnist", "symmetric"): 0.98,
        ("mnist", "pair"): 0.94,
    }
    for (data, kind), aim in aims.items():
        chosen = choose(cells, data, kind)
        yield f"AUROC of wrong samples: {data}, {kind}", take(chosen, "auroc"), aim, True
    gains = {"pair": 0.20, "symmetric": 0.01, "human": -0.01}
    for kind, aim in gains.items():
        for data in ("cifar10", "fashion-mnist", "mnist"):
            if kind != "human" or data == "cifar10":
                values = measure_gains(choose(cells, data, kind))
                yield f"AUROC above cleanlab, pooled: {data}, {kind}", values, aim, True
    mixed = [cell for kind in ("symmetric", "pair") for cell in choose(cells, None, kind)]
    yield "AUROC of clients above 40 %", take(mixed, "client_auroc"), 0.99, True
    yield "rank correlation of shares", take(mixed, "rank"), 0.97, True
    errors = [float(np.mean(cell["error"])) for cell in mixed]
    yield "mean absolute error of a client's share", errors, 0.03, False
    repairs = [measure_way(cell) for cell in choose(cells, None, "repair")]
    yield "way to clean labels that corrected ones go (symmetric 40 %)", repairs, 0.5, True
    clean = choose(cells, None, "clean")
    yield "clean data: share of samples flagged", take(clean, "flagged"), 0.03, False
    yield "clean data: clients accused", take(clean, "accused"), 0.0, False
    cost = [measure_cost(cell) for cell in choose(cells, None, "cost")]
    yield "cost over a run of 100 rounds (cnn4, 5 epochs, all clients)", cost, 0.35, False


def choose(cells: Sequence[Cell], data: str | None, kind: str) -> list[Cell]:
    """The cells of some data (None: of all) and one kind."""
    return [
        cell
        for cell in cells
        if cell["case"]["kind"] == kind and data in (None, cell["case"]["data"])
    ]


def take(cells: Sequence[Cell], name: str) -> list[float]:
    """A figure of every cell that has it."""
    return [float(cell[name]) for cell in cells if cell.get(name) is not None]


def measure_gains(cells: Sequence[Cell]) -> list[float]:
    """AUROC above the better one of cleanlab's scores."""
    known = [cell for cell in cells if cell.get("pooled_self_confidence") is not None]
    scores = ("pooled_self_confidence", "pooled_normalized_margin")
    return [cell["auroc"] - max(cell[name] for name in scores) for cell in known]


def measure_way(cell: Cell) -> float:
    """The share of the way from given to clean labels."""
    whole = cell["accuracy_clean"] - cell["accuracy_given"]
    return float((cell["accuracy_corrected"] - cell["accuracy_given"]) / whole)


def measure_cost(cell: Cell) -> float:
    """Seconds of an audit, its encoding among them, in those of 100 rounds."""
    return float(sum(cell["seconds"].values()) / (100 * cell["round_seconds"]))


def tell_aim(aim: float, rising: bool) -> str:
    return f"{'at least' if rising else 'at most'} {aim:g}"


def tell_mean(values: Sequence[float]) -> str:
    """A mean with its interval over seeds."""
    from scipy.stats import t

    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:.4f}"
    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{mean:.4f} +- {half:.4f}"


def format_coverage(cells: Sequence[Cell]) -> Iterator[str]:
    """How often intervals hold the truth."""
    held = measure_covered(cells)
    what = "share of 90 % intervals that hold the truth (symmetric, pair, clean)"
    if not held:
        yield f"| {what} | not measured | 0 | .85 to .95 | - |"
        return
    share = float(np.mean(held))
    good = 0.85 <= share <= 0.95
    reached = ("yes" if good else "**no**") + (", so far" if len(held) < INTERVALS else "")
    intervals = f"{len(held)} intervals"
    yield f"| {what} | {share:.3f} | {intervals} | .85 to .95, over 400 or more | {reached} |"


def measure_covered(cells: Sequence[Cell]) -> list[bool]:
    """Whether each interval holds the truth, of the kinds of noise that the aim speaks of."""
    known = [cell for kind in CALIBRATED for cell in choose(cells, None, kind)]
    return [flag for cell in known for flag in cell["covered"]]


def format_cells(cells: Sequence[Cell]) -> Iterator[str]:
    """One line a cell."""
    heads = (
        "data",
        "noise",
        "seed",
        "scenario",
        "wrong",
        "AUROC",
        "cleanlab",
        "error",
        "bias",
        "covered",
        "flagged",
        "precision",
        "recall",
        "right after",
        "accused",
        "warned",
    )
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for cell in cells:
        case = cell["case"]
        scores = [cell.get(f"pooled_{name}") for name in ("self_confidence", "normalized_margin")]
        pooled = max((score for score in scores if score is not None), default=None)
        figures = (
            cell["wrong"],
            cell["auroc"],
            pooled,
            float(np.mean(cell["error"])),
            float(np.mean(cell["bias"])),
            float(np.mean(cell["covered"])),
            cell["flagged"],
            cell["precision"],
            cell["recall"],
            cell["right_after"],
        )
        told = [f"{value:.3f}" if value is not None else "" for value in figures]
        counts = [str(cell["accused"]), str(cell["warned"])]
        named = [case["data"], case["kind"], str(case["seed"]), cell["scenario"][:12]]
        yield f"| {' | '.join([*named, *told, *counts])} |"


def format_calibration(cells: Sequence[Cell]) -> Iterator[str]:
    """How far estimated shares are from true ones, and where intervals miss."""
    yield (
        "Estimated minus true share of a client's wrong labels, over all clients and over the "
        f"{CLEANEST} cleanest; share of 90 % intervals that hold the truth.\n"
    )
    heads = ("data", "noise", "intervals", "error", "bias", "bias of the cleanest", "covered")
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for data in ("mnist", "fashion-mnist", "cifar10"):
        for kind in (*CALIBRATED, "few", "human", "gathered", "drawn"):
            chosen = choose(cells, data, kind)
            if chosen:
                yield f"| {data} | {kind} | {' | '.join(tell_calibration(chosen))} |"


def tell_calibration(cells: Sequence[Cell]) -> list[str]:
    """One line of that table."""
    bias = np.array([cell["bias"] for cell in cells])
    # The truth is the estimate without its bias; here rates rise with the client's number, but for
    # those of people, where nobody is the cleanest by design.
    ordered = cells[0]["case"]["kind"] in (*CALIBRATED, "few")
    covered = np.concatenate([cell["covered"] for cell in cells])
    return [
        str(bias.size),
        f"{np.abs(bias).mean():.3f}",
        f"{bias.mean():+.3f}",
        f"{bias[:, :CLEANEST].mean():+.3f}" if ordered else "",
        f"{covered.mean():.2f}",
    ]


def explain(cells: Sequence[Cell]) -> Iterator[str]:
    """A sentence for every aim that is missed or not measured."""
    for what, values, aim, rising in list_aims(cells):
        if not values:
            yield f"- {what}: no cell of this kind has been run yet; the command above runs it."
            continue
        mean = float(np.mean(values))
        if not (mean >= aim if rising else mean <= aim):
            yield f"- {what}: {mean:.4f}, aimed at {aim:g}. {find_reason(what, cells)}".rstrip()
    yield from explain_coverage(cells)
    people = PEOPLE.format(drawn=compare_drawn(cells))
    skewed = SKEWED.format(figures="; ".join(compare_skewed(cells)))
    for kind, told in (("few", FEW), ("human", people), ("two-classes", skewed)):
        if choose(cells, None, kind):
            yield told


def compare_skewed(cells: Sequence[Cell]) -> Iterator[str]:
    """How well samples and shares are told where clients hold different classes."""
    for data in ("fashion-mnist", "cifar10"):
        for kind in ("dirichlet", "two-classes"):
            chosen = choose(cells, data, kind)
            if chosen:
                auroc = float(np.mean(take(chosen, "auroc")))
                pooled = auroc - float(np.mean(measure_gains(chosen)))
                off = float(np.mean([np.mean(cell["bias"]) for cell in chosen]))
                warned = float(np.mean(take(chosen, "warned")))
                yield (
                    f"{data}, {kind}: AUROC {auroc:.3f} (cleanlab on pooled images {pooled:.3f}), "
                    f"shares {off:+.3f} off, {warned:.0f} clients with a warning"
                )


def compare_drawn(cells: Sequence[Cell]) -> str:
    """How far shares are off where mistakes do not depend on the image, beside people's."""
    drawn, human = (choose(cells, None, kind) for kind in ("drawn", "human"))
    if not drawn:
        return ""
    off = [float(np.mean([np.mean(cell["bias"]) for cell in few])) for few in (drawn, human)]
    covered = float(np.mean([np.mean(cell["covered"]) for cell in drawn]))
    return (
        f", and is {off[0]:+.3f} off with {covered:.0%} of its intervals right, where people's "
        f"are {off[1]:+.3f} off"
    )


def explain_coverage(cells: Sequence[Cell]) -> Iterator[str]:
    """Where intervals are too wide or too narrow, if they are so on the whole."""
    held = measure_covered(cells)
    if held and not 0.85 <= np.mean(held) <= 0.95:
        yield f"- share of intervals that hold the truth: {np.mean(held):.3f}. {SPREAD}"


def find_reason(what: str, cells: Sequence[Cell]) -> str:
    """What the cells say of a missed aim; nothing where they say nothing."""
    if "above cleanlab" in what:
        data, kind = what.partition(": ")[2].split(", ")[-2:]
        chosen = choose(cells, data, kind)
        gains = measure_gains(chosen)
        left = 1.0 - (float(np.mean(take(chosen, "auroc"))) - float(np.mean(gains)))
        return (
            f"cleanlab leaves {left:.4f} to gain in all, of which this is {mean_of(gains, left)}."
        )
    if "flagged" in what:
        return "By data: " + list_by_data(choose(cells, None, "clean"), "flagged")
    if "accused" in what:
        return "By data: " + list_by_data(choose(cells, None, "clean"), "accused")
    return ""


def mean_of(values: Sequence[float], whole: float) -> str:
    return f"{np.mean(values) / whole:.0%}"


def list_by_data(cells: Sequence[Cell], name: str) -> str:
    """The mean of a figure for each dataset."""
    known = sorted({str(cell["case"]["data"]) for cell in cells})
    told = [f"{data} {np.mean(take(choose(cells, data, 'clean'), name)):.3f}" for data in known]
    return "; ".join(told) + "."
