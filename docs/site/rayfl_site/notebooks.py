"""Executed notebooks as Markdown: prose, code, and what each cell has put out."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
Cell = Mapping[str, Any]


def render_notebook(path: Path, folder: Path) -> str:
    """The notebook's page.

    Parameters
    ----------
    path
        An executed notebook.
    folder
        The pages; figures go to `notebooks/figures` there.
    """
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts: list[str] = []
    for number, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code":
            name = f"{path.stem}_{number}"
            parts += [f"```python\n{source}\n```", *_show_outputs(cell, folder, name)]
    return "\n\n".join(parts) + "\n"


def _show_outputs(cell: Cell, folder: Path, name: str) -> Iterator[str]:
    said = ""
    for number, output in enumerate(cell["outputs"]):
        if output["output_type"] == "stream":
            said += "".join(output["text"])
            continue
        shown = _show_value(output.get("data", {}), folder, f"{name}_{number}")
        if shown:
            yield shown
    # A bar that is drawn again and again is shown as it ended.
    words = ESCAPES.sub("", said).split("\r")[-1].strip()
    if words:
        yield f"```text\n{words}\n```"


def _show_value(data: Mapping[str, Any], folder: Path, name: str) -> str:
    """The richest form that a page can show."""
    if "image/png" in data:
        figure = folder / "notebooks" / "figures" / f"{name}.png"
        figure.parent.mkdir(parents=True, exist_ok=True)
        figure.write_bytes(base64.b64decode("".join(data["image/png"])))
        # Written as a link of the notebook's own folder, which pages keep.
        return f'<img class="plot" alt="{name}" src="figures/{name}.png">'
    if "text/html" in data:
        html = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.DOTALL)
        # A blank line would end the block of HTML.
        lines = [line.strip() for line in html.splitlines() if line.strip()]
        return '<div class="output">' + "\n".join(lines) + "</div>"
    words = ESCAPES.sub("", "".join(data.get("text/plain", "")))
    return f"```text\n{words}\n```" if words else ""
