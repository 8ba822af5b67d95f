"""The house: who may import whom, and how large a function and a file may be."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(ROOT.glob("rayfl/**/*.py"))
EVERYTHING = sorted(path for top in ("rayfl", "jobs", "tests", "benchmarks") for path in ROOT.glob(f"{top}/**/*.py"))

MAY_ENTER = {
    "estimate": {"component", "errors"},
    "federation": {"component", "errors"},
    "models": {"component", "errors"},
    "learn": {"component", "errors"},
    "fleet": {"errors", "learn"},
    "algorithms": {"component", "errors", "estimate", "fleet.seam", "learn", "models"},
}
"""Which rooms of the package each room knows, beside itself."""

UPSTAIRS = {"study": {"report", "tuning"}, "tuning": {"report", "study"}, "report": {"tuning"}}
"""Rooms above the story of a run, and which of each other they do not know. None knows the command line."""

ONLY_IN = {
    "ray": {
        *(f"fleet/ray_{part}.py" for part in ("actor", "fleet", "keeper", "keepers", "line", "places", "replies")),
        "fleet/connection.py",
        "fleet/coordinator.py",
        "fleet/probe.py",
        "commands/doctor.py",
        "tuning",
    },
    "mlflow": {"tracking.py", "view.py", "experiment.py", "report"},
}
"""Which modules and rooms know a library of the run time."""

LAZILY = {
    "commands/doctor.py": "ray",
    "experiment.py": "mlflow",
    "tracking.py": "mlflow",
    "fleet/connection.py": "ray",
    "fleet/coordinator.py": "ray",
    "fleet/probe.py": "ray",
}
"""Those that import it inside functions only, so that the command line stays quick."""

CODE_LINES, FILE_LINES = 60, 500


def imports(path: Path, top_level: bool = False) -> Iterator[str]:
    """Full names of the imported modules; those under `if TYPE_CHECKING` count too."""
    tree = ast.parse(path.read_text())
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides its arrow"
            yield node.module or ""
            # `from rayfl import errors` enters a room as well.
            yield from (f"rayfl.{alias.name}" for alias in node.names if node.module == "rayfl")


def inside(path: Path) -> str:
    return path.relative_to(ROOT / "rayfl").as_posix()


@pytest.mark.parametrize("room", UPSTAIRS)
def test_what_stands_on_runs_does_not_know_the_command_line(room: str) -> None:
    files = [path for path in MODULES if inside(path).startswith(f"{room}/")]
    strangers = UPSTAIRS[room] | {"cli", "commands"}
    assert files
    assert not {f"{inside(path)} -> {name}" for path in files for name in imports(path) if enters(name, strangers)}


def enters(name: str, allowed: set[str]) -> bool:
    return any(name == f"rayfl.{room}" or name.startswith(f"rayfl.{room}.") for room in allowed)


@pytest.mark.parametrize("room", MAY_ENTER)
def test_arrows_between_rooms_point_one_way(room: str) -> None:
    files = [path for path in MODULES if inside(path).startswith(f"{room}/")]
    allowed = MAY_ENTER[room] | {room}
    wrong = {
        f"{inside(path)} -> {name}"
        for path in files
        for name in imports(path)
        if name.startswith("rayfl.") and not enters(name, allowed)
    }
    assert files
    assert not wrong


def test_the_allowed_arrows_make_no_circle() -> None:
    below = {room: {entered.split(".")[0] for entered in entered_rooms} for room, entered_rooms in MAY_ENTER.items()}
    left = dict(below)
    while left:
        free = {room for room, entered in left.items() if not entered & set(left)}
        assert free, f"a circle among {sorted(left)}"
        left = {room: entered for room, entered in left.items() if room not in free}


@pytest.mark.parametrize("room", MAY_ENTER)
def test_no_room_knows_the_story_of_a_run(room: str) -> None:
    story = {
        "cli",
        "experiment",
        "engine",
        "config",
        "tracking",
        "commands",
        "progress",
        "checkpoint",
        "assembly",
        "report",
    }
    assert not MAY_ENTER[room] & story


@pytest.mark.parametrize("library", ONLY_IN)
def test_libraries_of_the_run_time_stay_in_their_places(library: str) -> None:
    users = {inside(path) for path in MODULES if any(name.split(".")[0] == library for name in imports(path))}
    assert users
    assert not {user for user in users if not {user, user.split("/")[0]} & ONLY_IN[library]}


@pytest.mark.parametrize(("module", "library"), LAZILY.items())
def test_heavy_libraries_wait_for_their_use(module: str, library: str) -> None:
    assert not [name for name in imports(ROOT / "rayfl" / module, top_level=True) if name.split(".")[0] == library]


def test_every_room_is_accounted_for() -> None:
    rooms = {path.parent.name for path in (ROOT / "rayfl").glob("*/__init__.py")}
    assert rooms == {*MAY_ENTER, *UPSTAIRS, "commands"}


# -- sizes -----------------------------------------------------------------------------------------------------------


def code_lines(source: str) -> set[int]:
    """Lines that hold code: neither blank, nor comment, nor docstring."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        described = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if described and ast.get_docstring(node, clean=False) is not None:  # type: ignore[arg-type]
            docstring = node.body[0]  # type: ignore[attr-defined]
            lines.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
    return lines


def functions(source: str) -> Iterator[tuple[str, int]]:
    """Names and code lines of all functions."""
    code = code_lines(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, len(code.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1)))


def test_functions_fit_on_a_screen() -> None:
    long = {
        f"{path.relative_to(ROOT)}: {name} has {size} code lines"
        for path in EVERYTHING
        for name, size in functions(path.read_text())
        if size > CODE_LINES
    }
    assert not long


def test_files_stay_readable() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in EVERYTHING}
    assert not {name: length for name, length in lengths.items() if length > FILE_LINES}


def test_lines_of_code_are_counted_without_prose() -> None:
    source = 'def f():\n    """Two\n    lines."""\n    # a reason\n\n    return (\n        1\n    )\n'
    assert list(functions(source)) == [("f", 4)]
