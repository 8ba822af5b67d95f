"""Pages of datasets, noises and partitions, each with its figure, and lists of other components."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import yaml

from rayfl.commands.listings import LISTINGS
from rayfl.commands.registries import find_registry
from rayfl.errors import RayflError
from rayfl.federation.availability import list_availability
from rayfl.federation.datasets import DATASETS
from rayfl.federation.partition import PARTITIONS
from rayfl.federation.scenario import open_stream
from rayfl_site import figures
from rayfl_site.stage import Stage
from rayfl_site.words import describe_component, fill_template, show_docstring

Settings = dict[str, Any]

NEIGHBOURS = np.round(0.7 * np.eye(10) + 0.2 * np.roll(np.eye(10), 1, 1) + 0.1 / 10, 3)
NOISY: Mapping[str, Settings] = {
    "asymmetric": {"rate": {"name": "ramp", "max": 0.8}, "pairs": "next"},
    "instance": {"rate": {"name": "uniform", "min": 0.1, "max": 0.7}},
    "mixed": {
        "parts": [
            {"noise": {"name": "symmetric", "rate": 0.6}, "clients": 0.4},
            {"noise": {"name": "asymmetric", "rate": 0.3, "pairs": "next"}, "clients": 0.3},
            {"noise": "none", "clients": 0.3},
        ]
    },
    "none": {},
    "symmetric": {"rate": {"name": "ramp", "max": 0.8}},
    "task": {"alpha": 0.4},
    "transition": {"matrix": NEIGHBOURS.tolist()},
    "uniform": {"rho": 0.5, "beta": 0.2},
}
"""What the figure of each noise is drawn with."""
BESIDE: Mapping[str, Any] = {"task": {"name": "tasks", "tasks": "cifar10-3"}}
"""The partition that a noise needs, where it is not `iid`."""
NOT_DRAWN = {
    "human": "These labels are read from a file of CIFAR-N, which people have written: "
    "there is nothing to draw without it.",
}

DEALT: Mapping[str, dict[str, Settings]] = {
    "bernoulli_dirichlet": {f"phi: {phi}": {"phi": phi} for phi in (0.3, 0.7, 1.0)},
    "classes": {f"per_client: {count}": {"per_client": count} for count in (1, 2, 5)},
    "dirichlet": {f"alpha: {alpha}": {"alpha": alpha} for alpha in (0.1, 0.5, 10.0)},
    "fedmatch10": {"as it is": {}},
    "groups": {
        "as it is": {},
        "over: dirichlet, alpha 0.3": {"over": {"name": "dirichlet", "alpha": 0.3, "min_size": 1}},
    },
    "iid": {"as it is": {}},
    "iid_per_class": {"as it is": {}, "cap: 20": {"cap": 20}},
    "quantity": {f"alpha: {alpha}": {"alpha": alpha} for alpha in (0.5, 2.0, 10.0)},
    "shards": {f"per_client: {count}": {"per_client": count} for count in (1, 2, 5)},
    "sites": {"20 sites": {}},
    "tasks": {
        f"tasks: {name}": {"tasks": name} for name in ("cifar10-2", "cifar10-3", "cifar10-5")
    },
}
"""What the panels of each partition are drawn with."""

LISTS = (
    "models",
    "losses",
    "unlabelled-losses",
    "hosts",
    "weightings",
    "aggregations",
    "encoders",
    "augmentations",
    "rates",
    "hostilities",
    "audits",
    "schedulers",
)
"""Registries that get one page each."""


def write_components(stage: Stage, data: Path) -> dict[str, list[str]]:
    """Write all pages of components but methods; by section, the pages in their order.

    Parameters
    ----------
    data
        Where datasets are; those that are not there get no pictures.
    """
    return {
        "datasets": _write_datasets(stage, data),
        "partitions": _write_section(stage, "partitions", show_partition),
        "noises": _write_section(stage, "noises", show_noise),
        "parts": [_write_list(stage, plural) for plural in LISTS],
    }


def _write_section(stage: Stage, plural: str, show: Callable[[str, Path], Settings]) -> list[str]:
    """The pages of one registry, and its list."""
    registry = find_registry(plural)
    told = []
    for name in registry.entries:
        facts = describe_component(registry, name)
        facts |= {"module": _read_module(registry.find(name)), "plural": plural}
        facts |= {"figure": "", "caption": "", "config": "", "state": "", "source": ""}
        facts |= show(name, stage.folder / plural)
        told.append(facts)
        stage.write(f"{plural}/{name}.md", fill_template("component.md", **facts))
    subject = LISTINGS[plural].subject
    listed = fill_template("section.md", plural=plural, subject=subject, components=told)
    stage.write(f"{plural}/index.md", listed)
    return [f"{plural}/index.md", *(f"{plural}/{name}.md" for name in registry.entries)]


def _read_module(cls: type[Any]) -> str:
    """What a component's module says, where it is about more than that the module is there."""
    words = inspect.getdoc(sys.modules[cls.__module__]) or ""
    return show_docstring(words)


def _write_config(key: str, spec: Any) -> str:
    if isinstance(spec, str):
        return f"{key}: {spec}"
    # Short mappings stand in one line, but never the whole.
    style = None if any(isinstance(value, (dict, list)) for value in spec.values()) else True
    written = yaml.safe_dump(spec, sort_keys=False, default_flow_style=style, width=90).strip()
    return f"{key}: {written}" if style else f"{key}:\n{indent(written, '  ')}"


# -- noises and partitions -------------------------------------------------------------------------


def show_noise(name: str, folder: Path) -> Settings:
    """A noise's figure and what it was drawn with."""
    if name in NOT_DRAWN:
        return {"caption": NOT_DRAWN[name]}
    if name == "explicit":
        return _show_written_noise(folder)
    noise = {"name": name, **NOISY[name]}
    scenario = figures.corrupt_blobs(noise, BESIDE.get(name, "iid"))
    figures.draw_noise(scenario, folder / f"{name}.svg")
    return {"figure": f"{name}.svg", "config": _write_config("noise", noise), **_tell_blobs()}


def _show_written_noise(folder: Path) -> Settings:
    """Labels of a file: those that another noise gave, in the order of the training set."""
    drawn = figures.corrupt_blobs({"name": "symmetric", **NOISY["symmetric"]})
    file = folder / "explicit_labels.npy"
    file.parent.mkdir(parents=True, exist_ok=True)
    np.save(file, drawn.given)
    scenario = figures.corrupt_blobs({"name": "explicit", "file": str(file)})
    file.unlink()
    figures.draw_noise(scenario, folder / "explicit.svg")
    config = _write_config("noise", {"name": "explicit", "file": "labels.npy"})
    caption = "Of labels that `symmetric` had given before, read from a file. "
    return {
        "figure": "explicit.svg",
        "config": config,
        "caption": caption + _tell_blobs()["caption"],
    }


def _tell_blobs() -> Settings:
    said = f"{figures.SAMPLES:,} samples of {figures.CLASSES} classes, {figures.CLIENTS} clients, "
    return {"caption": f"{said}seed 0, with the settings above."}


def show_partition(name: str, folder: Path) -> Settings:
    """A partition's figure and what it was drawn with."""
    pool = figures.make_sites() if name == "sites" else figures.make_pool()
    said = f"{len(pool.labels):,} samples of {figures.CLASSES} classes, seed 0: a bar a client, "
    caption = f"{said}a colour a class."
    if name == "explicit":
        return _show_written_partition(folder, caption)
    panels = DEALT[name]
    tables = {title: figures.count_classes(pool, {"name": name, **spec})
              for title, spec in panels.items()}  # fmt: skip
    figures.draw_partition(tables, folder / f"{name}.svg")
    first = list(panels.values())[len(panels) // 2]
    config = _write_config("partition", {"name": name, **first} if first else name)
    return {"figure": f"{name}.svg", "config": config, "caption": caption}


def _show_written_partition(folder: Path, caption: str) -> Settings:
    """Owners of a file: those that another partition chose."""
    pool = figures.make_pool()
    dealt = PARTITIONS.build({"name": "dirichlet", "alpha": 0.5})
    owner = dealt.assign(pool, open_stream(0, "partition")).owner
    file = folder / "explicit_owners.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("client\n" + "\n".join(map(str, owner.tolist())))
    table = figures.count_classes(pool, {"name": "explicit", "file": str(file)})
    file.unlink()
    figures.draw_partition({"owners.csv": table}, folder / "explicit.svg")
    config = _write_config("partition", {"name": "explicit", "file": "owners.csv"})
    said = "Owners that `dirichlet` had chosen before, read from a file. "
    return {"figure": "explicit.svg", "config": config, "caption": said + caption}


# -- datasets --------------------------------------------------------------------------------------


def _write_datasets(stage: Stage, data: Path) -> list[str]:
    known = {each.name: each for each in list_availability(data)}

    def show(name: str, folder: Path) -> Settings:
        found = known[name]
        if found.state not in ("here", "always here"):
            return {"state": found.state, "source": found.source, "config": _suggest_config(name)}
        try:
            dataset = DATASETS.build(name).load(data)
        except RayflError as error:
            return {"config": _suggest_config(name), "caption": f"No pictures here: {error}"}
        figures.draw_images(dataset, folder / f"{name}.png")
        classes = len(dataset.classes)
        shape = " x ".join(map(str, dataset.shape))
        sizes = f"{len(dataset.train):,} training and {len(dataset.test):,} test images"
        # Folders of this machine are nobody else's.
        source = "" if found.state == "always here" else f"rayfl data get {name}"
        return {
            "figure": f"{name}.png",
            "caption": f"{sizes} of {shape}, {classes} classes; the first ones of each class.",
            "config": _suggest_config(name),
            "state": "always here" if not source else "to fetch",
            "source": source,
        }

    return _write_section(stage, "datasets", show)


def _suggest_config(name: str) -> str:
    """How a configuration names a dataset, with what it must be told."""
    told: dict[str, Settings] = {
        "folder": {"path": "/data/wards", "sites": "parent", "side": 32},
        "parquet": {"path": "/data/wards_hub", "side": 32},
        "medmnist": {"dataset": "pathmnist"},
    }
    return _write_config("data", {"name": name, **told[name]} if name in told else name)


# -- lists -----------------------------------------------------------------------------------------


def _write_list(stage: Stage, plural: str) -> str:
    registry = find_registry(plural)
    components = list(_describe_available(plural))
    subject = LISTINGS[plural].subject
    page = f"parts/{plural}.md"
    words = fill_template("list.md", plural=plural, kind=registry.kind, subject=subject,
                          components=components)  # fmt: skip
    stage.write(page, words)
    return page


def _describe_available(plural: str) -> Iterator[Settings]:
    """Those that can be imported here: some need packages of their own."""
    registry = find_registry(plural)
    for name in registry.entries:
        try:
            yield describe_component(registry, name)
        except RayflError as error:
            facts = {"about": f"Not available where this page was made: {error}", "citation": ""}
            yield {"name": name, "settings": [], "metrics": {}, "deviations": [], **facts}
