"""What all methods with labels at the server refuse before the first round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rayfl.algorithms import METHODS
from rayfl.algorithms.parts.labels_at_server import LabelsAtServer
from rayfl.config.files import merge_settings
from rayfl.errors import ConfigError
from tests.algorithms.conformance import Row, iterate_rows, run_toy, toy_config

NAMES = [name for name in METHODS.names() if issubclass(METHODS.find(name), LabelsAtServer)]
FIRST_ROWS = {row.method["name"]: row for row in reversed(list(iterate_rows()))}

UNFIT: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "no set": ({"split": {}}, r"needs the set 'labelled'.*Set split\.labelled"),
    "no label of a class": (
        {"split": {"labelled": {"total": 2}}},
        r"a labelled image of every class; got none of class .*Raise split\.labelled",
    ),
    "no whole batch": (
        {"training": {"batch_size": 41, "drop_last": True}},
        r"fills a batch of 41; got 40 images.*Enlarge split\.labelled",
    ),
}


def change_row(row: Row, more: Mapping[str, Any]) -> Row:
    """The row's method on another federation; sets of `more` stand in the place of its own."""
    settings = merge_settings(row.config, more)
    return Row(row.name, row.method, {**settings, "split": more.get("split", settings["split"])})


@pytest.mark.parametrize("unfit", UNFIT)
@pytest.mark.parametrize("name", NAMES)
def test_unfit_federations_are_refused(name: str, unfit: str, tmp_path: Path) -> None:
    more, message = UNFIT[unfit]
    config = toy_config(change_row(FIRST_ROWS[name], more), tmp_path)
    with pytest.raises(ConfigError, match=message):
        run_toy(config)
