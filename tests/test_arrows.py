"""The house: who may import whom, and how large a function and a file may be."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(ROOT.glob("rayfl/**/*.py"))
EVERYTHING = sorted(
    path
    for top in ("rayfl", "jobs", "tests", "benchmarks", "docs/site")
    for path in ROOT.glob(f"{top}/**/*.py")
)

FOUNDATION = {
    "arrays",
    "bits",
    "component",
    "durable",
    "errors",
    "locks",
    "plugins",
    "regular_files",
    "secrets",
    "version",
}
"""What everybody may enter, and what enters nobody but itself."""

MAY_ENTER = {
    "arrays": set(),
    "bits": {"errors"},
    "component": {"errors", "plugins", "secrets"},
    "durable": set(),
    "errors": {"secrets"},
    "locks": {"durable", "errors"},
    "plugins": {"errors"},
    "regular_files": set(),
    "secrets": set(),
    "version": set(),
    "estimate": set(),
    "federation": set(),
    "ledger": set(),
    "models": set(),
    "learn": {"estimate"},
    "protocol": {"learn"},
    "fleet": {"learn", "protocol"},
    "algorithms": {"estimate", "learn", "models", "protocol"},
    "methods": {"algorithms", "estimate", "learn", "models", "protocol"},
    "config": {"algorithms", "federation", "learn", "models", "protocol"},
    "tracking": {"config"},
    "plots": {"federation"},
    "run": {
        "config",
        "estimate",
        "federation",
        "fleet",
        "learn",
        "models",
        "plots",
        "protocol",
        "tracking",
    },
    "testing": {
        "algorithms",
        "config",
        "estimate",
        "federation",
        "fleet",
        "learn",
        "models",
        "protocol",
        "run",
    },
    "study": {"config", "federation", "fleet", "learn", "ledger", "protocol", "run", "tracking"},
    "report": {
        "config",
        "estimate",
        "federation",
        "ledger",
        "plots",
        "run",
        "study",
        "tracking",
    },
    "audit": {
        "config",
        "estimate",
        "federation",
        "fleet",
        "models",
        "plots",
        "protocol",
        "report",
        "run",
        "tracking",
    },
    "tuning": {"config", "fleet", "plots", "run", "tracking"},
    "commands": {
        "audit",
        "config",
        "federation",
        "fleet",
        "ledger",
        "report",
        "run",
        "study",
        "testing",
        "tracking",
        "tuning",
    },
    "cli": {"commands", "config", "fleet", "run", "tracking"},
    "__init__": {"audit", "config", "run", "study", "tuning"},
}
"""Which rooms (packages, and modules beside them) each one knows, beside itself and the
foundation; lazy imports count."""

ONLY_IN = {
    "ray": {"fleet/on_ray", "commands/doctor.py", "tuning"},
    "mlflow": {"tracking", "run/artifacts.py", "run/experiment.py", "report"},
}
"""Which modules and rooms know a library of the run time."""

LAZILY = {
    "commands/doctor.py": "ray",
    "run/artifacts.py": "mlflow",
    "tracking/tracker.py": "mlflow",
    "fleet/on_ray/connection.py": "ray",
    "fleet/on_ray/coordinator.py": "ray",
    "fleet/on_ray/gpu_probe.py": "ray",
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


def room_of(path: Path) -> str:
    """The package below `rayfl`, or the module that stands beside the packages."""
    return Path(inside(path)).parts[0].removesuffix(".py")


def entered_by(path: Path) -> set[str]:
    """The rooms that a module imports from, lazily or not; its own is not among them."""
    names = [name.split(".") for name in imports(path) if name.split(".")[0] == "rayfl"]
    return {parts[1] if len(parts) > 1 else "__init__" for parts in names} - {room_of(path)}


@pytest.mark.parametrize("path", MODULES, ids=inside)
def test_arrows_between_rooms_point_one_way(path: Path) -> None:
    assert entered_by(path) <= MAY_ENTER[room_of(path)] | FOUNDATION


def test_the_allowed_arrows_make_no_circle() -> None:
    left = {
        room: below | (FOUNDATION - {room} if room not in FOUNDATION else below)
        for room, below in MAY_ENTER.items()
    }
    while left:
        free = {room for room, entered in left.items() if not entered & set(left)}
        assert free, f"a circle among {sorted(left)}"
        left = {room: entered for room, entered in left.items() if room not in free}


@pytest.mark.parametrize("library", ONLY_IN)
def test_libraries_of_the_run_time_stay_in_their_places(library: str) -> None:
    users = {
        inside(path)
        for path in MODULES
        if any(name.split(".")[0] == library for name in imports(path))
    }
    assert users
    assert not {
        user for user in users if not any(user.startswith(place) for place in ONLY_IN[library])
    }


@pytest.mark.parametrize(("module", "library"), LAZILY.items())
def test_heavy_libraries_wait_for_their_use(module: str, library: str) -> None:
    names = imports(ROOT / "rayfl" / module, top_level=True)
    assert not [name for name in names if name.split(".")[0] == library]


ARRAY_TYPE = re.compile(r"^(\w+) = NDArray\[", re.MULTILINE)


def test_types_of_arrays_are_defined_once() -> None:
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for name in ARRAY_TYPE.findall(path.read_text()):
            homes.setdefault(name, []).append(inside(path))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


# -- sizes -----------------------------------------------------------------------------------------


def code_lines(source: str) -> set[int]:
    """Lines that hold code: neither blank, nor comment, nor docstring."""
    skipped = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        described = isinstance(
            node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        )
        if described and ast.get_docstring(node, clean=False) is not None:  # type: ignore[arg-type]
            docstring = node.body[0]  # type: ignore[attr-defined]
            lines.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
    return lines


def functions(source: str) -> Iterator[tuple[str, int]]:
    """Names and code lines of all functions."""
    code = code_lines(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield (
                node.name,
                len(code.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1))),
            )


def test_functions_fit_on_a_screen() -> None:
    long = {
        f"{path.relative_to(ROOT)}: {name} has {size} code lines"
        for path in EVERYTHING
        for name, size in functions(path.read_text())
        if size > CODE_LINES
    }
    assert not long


def test_helpers_do_not_come_from_test_modules() -> None:
    """What several test modules need stands in a module of its own, which nobody collects."""
    borrowed = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted(ROOT.glob("tests/**/*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and names_test_module(node)
    }
    assert not borrowed


def names_test_module(node: ast.ImportFrom) -> bool:
    words = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
    return any(word.startswith("test_") for word in words)


def test_files_stay_readable() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in EVERYTHING
    }
    assert not {name: length for name, length in lengths.items() if length > FILE_LINES}


def test_lines_of_code_are_counted_without_prose() -> None:
    source = (
        'def f():\n    """Two\n    lines."""\n    # a reason\n\n    return (\n        1\n    )\n'
    )
    assert list(functions(source)) == [("f", 4)]
