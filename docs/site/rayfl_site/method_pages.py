"""One page for each method: its paper's algorithm beside the code, its departures, its measures,
its settings, and what it came to."""

from __future__ import annotations

import html
import re
from typing import Any

from rayfl.algorithms import METHODS
from rayfl.component import slots_of
from rayfl.config.shipped import shipped_folder
from rayfl.testing.promises import PROMISES
from rayfl_site import ROOT
from rayfl_site.algorithms import AlgorithmText, Line, locate_code, read_algorithm
from rayfl_site.recorded import QueuedCell, RecordedCell, collect_queued, collect_recorded
from rayfl_site.stage import Stage
from rayfl_site.words import (
    describe_component,
    fill_template,
    read_module_words,
    show_docstring,
)

LABELS = {
    "given": "at clients, as given",
    "clean": "at clients, the right ones alone (a reference)",
    "true": "at clients, the true ones (a reference)",
}


# After a single letter any word is an index, after more a short one: longer ones are names.
INDEX = re.compile(r"(?<=[^\s_])_(?:\{([^{}]*)\}|((?<=\b\w_)[^\W_]+|[^\W_]{1,3})(?!\w))")
EXPONENT = re.compile(r"(?<=\S)\^(?:\{([^{}]*)\}|([^\W_]{1,3})(?!\w))")


def write_methods(stage: Stage) -> list[str]:
    """Write the methods' pages and their list; the pages, in the order of the navigation."""
    recorded, queued = collect_recorded(ROOT), collect_queued(ROOT)
    told = []
    for name in METHODS.entries:
        facts = describe_method(name)
        told.append(facts)
        page = write_method(facts, recorded.get(name, []), queued.get(name))
        stage.write(f"methods/{name}.md", page)
    stage.write("methods/index.md", fill_template("methods.md", methods=told))
    return ["methods/index.md", *(f"methods/{name}.md" for name in METHODS.entries)]


def describe_method(name: str) -> dict[str, Any]:
    """What a method's class says of itself, and what it asks of a federation."""
    # With its settings as they are by default: some decide what it reads.
    method = METHODS.build(name)
    parts = [*(getattr(method, slot) for slot in slots_of(type(method))), method]
    needs = {data: what for part in parts for data, what in getattr(part, "needs", {}).items()}
    reads = [f"`split.{data}` ({what})" for data, what in needs.items()]
    metrics = {key: what for part in parts for key, what in getattr(part, "metrics", {}).items()}
    return {
        **describe_component(METHODS, name),
        "metrics": metrics,
        "module": show_docstring(read_module_words(type(method))),
        "labels": LABELS[method.labels] if method.client_labels else "at the server",
        "needs": ", ".join(reads) or "nothing beside the clients",
        "models": "one a client" if method.personal else "one for all",
        "example": (shipped_folder() / "methods" / f"{name}.yaml").is_file(),
    }


def write_method(
    facts: dict[str, Any], recorded: list[RecordedCell], queued: QueuedCell | None
) -> str:
    """A method's page.

    Parameters
    ----------
    facts
        What its class says.
    recorded
        What the ledger has of it.
    queued
        What the queue will record of it.
    """
    algorithm = read_algorithm(facts["name"])
    return fill_template(
        "method.md",
        **facts,
        algorithm=algorithm,
        rows=[] if algorithm is None else [show_line(line) for line in algorithm.lines],
        sources=[] if algorithm is None else list_sources(algorithm),
        promises=PROMISES,
        recorded=recorded,
        commands=list(dict.fromkeys(each.command for each in recorded)),
        queued=queued,
    )


def show_line(line: Line) -> dict[str, Any]:
    """A line of an algorithm as cells of HTML."""
    text = line.text.lstrip()
    links = [
        f'<a href="#{anchor_code(code)}"><code>{break_words(name_code(code))}</code></a>'
        for code in line.code
    ]
    settings = [f"<code>{break_words(setting)}</code>" for setting in line.setting]
    return {
        "indent": len(line.text) - len(text),
        "text": raise_symbols(html.escape(text)),
        "code": "<br>".join(links),
        "setting": "<br>".join(settings),
    }


def raise_symbols(text: str) -> str:
    """`w_k^t` with its index below and its exponent above the line."""
    for sign, tag in ((INDEX, "sub"), (EXPONENT, "sup")):
        # From the inside out: an index may have one.
        while (raised := sign.sub(rf"<{tag}>\1\2</{tag}>", text)) != text:
            text = raised
    return text


def break_words(name: str) -> str:
    """A long name that a narrow column breaks between its words."""
    return re.sub(r"([._])", r"\1<wbr>", html.escape(name))


def name_code(code: str) -> str:
    """`FedAvg.round` of `rayfl.algorithms.fedavg:FedAvg.round`; a class stands for its call."""
    return code.partition(":")[2].removesuffix(".__call__")


def anchor_code(code: str) -> str:
    return "code-" + re.sub(r"\W+", "-", code.removeprefix("rayfl.")).lower()


def list_sources(algorithm: AlgorithmText) -> list[dict[str, Any]]:
    """The code that an algorithm names, with where it stands."""
    found = []
    for code in algorithm.codes:
        source = locate_code(code)
        facts = {"name": name_code(code), "anchor": anchor_code(code)}
        found.append({**facts, "path": source.path, "line": source.line, "text": source.text})
    return found
