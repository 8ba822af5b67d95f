"""Reference pages: which modules are shown, and how."""

from __future__ import annotations

from rayfl_site.stage import Stage

OPTIONS = """    options:
      show_root_heading: false
      show_root_toc_entry: false
"""
MODULES = {
    "rayfl.protocol": "What a method sees: clients, phases, fleets, replies, references.",
    "rayfl.learn.local_fit": "The wish to train: `yield Fit(...)`.",
    "rayfl.algorithms.fedavg": "Federated averaging, which most methods inherit.",
    "rayfl.algorithms.parts.weighting": "Weightings of clients.",
    "rayfl.algorithms.parts.aggregation": "Aggregations of updates.",
    "rayfl.learn.losses.base": "Losses of the loss slot.",
    "rayfl.learn.judge": "A model's answers to all of a client's samples.",
    "rayfl.learn.divide": "Samples divided by their losses.",
    "rayfl.component": "Components, registries and slots.",
    "rayfl.federation.interfaces": "What partitions and noises see, and what they answer.",
    "rayfl.federation.dataset": "The one form of datasets in memory.",
    "rayfl.federation.scenario": "Who owns what with which label.",
    "rayfl.run.experiment": "`rayfl.run`.",
    "rayfl.run.result": "What a run returns.",
    "rayfl.run.comparison": "`rayfl.compare`.",
    "rayfl.study.result": "What a study came to.",
    "rayfl.tuning.result": "What a sweep returns.",
    "rayfl.ledger.rows": "Rows of the ledger.",
    "rayfl.errors": "Errors, and their exit codes.",
}
"""Those that programs and authors of methods meet, each with its subject."""


def write_reference(stage: Stage) -> list[str]:
    """Write a page for each module and their list; the pages in their order."""
    for module in MODULES:
        words = f"---\ntitle: {module}\n---\n# `{module}`\n\n::: {module}\n{OPTIONS}"
        stage.write(f"reference/{module}.md", words)
    rows = [f"| [`{module}`]({module}.md) | {about} |" for module, about in MODULES.items()]
    head = ["# Reference", "", "From the docstrings. [From Python](../python.md) and"]
    head += [
        "[writing a method](../methods.md) are the guides.",
        "",
        "| module | |",
        "| --- | --- |",
    ]
    stage.write("reference/index.md", "\n".join([*head, *rows, ""]))
    return ["reference/index.md", *(f"reference/{module}.md" for module in MODULES)]
