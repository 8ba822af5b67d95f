"""The figures that a paper prints, as transcribed to CSV, and which of them belongs to which score
of which cell."""

from __future__ import annotations

import ast
import csv
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from rayfl.errors import ConfigError, DataError, broken, suggest_nearest
from rayfl.study.cells import Cell
from rayfl.study.schema import Choice, Printed, Score

Row = Mapping[str, str]


@dataclass(frozen=True)
class PrintedFigure:
    """A printed mean with its deviation, as they are printed, and the mean as a number where it is
    one."""

    mean: str = ""
    std: str = ""
    value: float = math.nan
    row: int | None = None
    """The place of the row in its file."""


@lru_cache(maxsize=32)
def read_rows(file: Path) -> tuple[Row, ...]:
    """The rows of a printed file."""
    try:
        with file.open(encoding="utf-8", newline="") as text:
            return tuple(csv.DictReader(text))
    except (OSError, ValueError) as error:
        rule = "printed.file is a readable CSV file"
        raise DataError(broken(rule, f"{file} ({error})")) from None


def find_printed(cell: Cell, score: Score) -> PrintedFigure:
    """What the paper prints for a score of a cell; empty where it prints nothing."""
    source = cell.study.printed
    if source is None:
        return PrintedFigure()
    wanted = _fill_columns(source, cell, score)
    rows = read_rows(Path(source.file))
    fits = [number for number, row in enumerate(rows) if _has_texts(row, wanted)]
    if len(fits) > 1:
        rule = "printed.where fits one row of the file at most"
        raise ConfigError(broken(rule, f"{len(fits)} for {wanted}"))
    if not fits:
        return PrintedFigure()
    row = rows[fits[0]]
    mean = row[source.mean]
    std = row.get(source.std) or ""
    return PrintedFigure(
        mean,
        std,
        parse_number(mean, source.symbols),
        fits[0],
    )


def _fill_columns(
    source: Printed,
    cell: Cell,
    score: Score,
) -> dict[str, str]:
    """The texts that a row must have, by column."""
    words = {axis: _choose_word(choice) for axis, choice in cell.chosen.items()}
    words["score"] = _choose_word(score)
    try:
        return {column: template.format_map(words) for column, template in source.where.items()}
    except (KeyError, ValueError, IndexError) as error:
        rule = f"printed.where names axes in braces ({', '.join(words)})"
        hint = suggest_nearest(str(error).strip("'"), words)
        raise ConfigError(broken(rule, error, hint)) from None


def _choose_word(named: Choice | Score) -> str:
    """What the printed file calls a choice or a score."""
    return named.title if named.printed is None else named.printed


def _has_texts(row: Row, wanted: Mapping[str, str]) -> bool:
    return all(row.get(column) == text for column, text in wanted.items())


# -- formulas --------------------------------------------------------------------------------------

OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def parse_number(text: str, symbols: Mapping[str, float] = MappingProxyType({})) -> float:
    """A printed number, or a printed formula such as `(k + 1)M` in these symbols; nan for anything
    else."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        pass
    if not symbols or not text:
        return math.nan
    # What stands side by side is a product: 2eF, (k + 1)M.
    explicit = re.sub(r"(?<=[\w)])\s*(?=[A-Za-z(])", "*", text)
    try:
        return _evaluate_formula(ast.parse(explicit, mode="eval").body, symbols)
    except (SyntaxError, KeyError, TypeError):
        return math.nan


def _evaluate_formula(node: ast.expr, symbols: Mapping[str, float]) -> float:
    """Sums and products of numbers and symbols, and nothing else."""
    if isinstance(node, ast.BinOp):
        combine = OPERATORS[type(node.op)]
        left = _evaluate_formula(node.left, symbols)
        return combine(left, _evaluate_formula(node.right, symbols))
    if isinstance(node, ast.Name):
        return symbols[node.id]
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    raise TypeError(node)
