"""What `import rayfl` gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import rayfl

TWICE = """
import sys
import rayfl

assert "rayfl.run.experiment" not in sys.modules
settings = {
    "clients": 2, "training": {"rounds": 1, "epochs": 0}, "fleet": "inline",
    "tracking": {"enabled": False}, "output": sys.argv[1],
}
print(len({rayfl.run(settings).sha256 for _ in range(2)}))
import rayfl.run.experiment as experiment
print(rayfl.run.experiment is experiment, rayfl.run(settings, resume="auto").sha256 != "")
"""


def test_the_name_of_a_run_is_a_function_before_and_after_the_room_is_entered(
    tmp_path: Path,
) -> None:
    words = [sys.executable, "-c", TWICE, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["1", "True", "True"]), done.stderr


def test_a_notebook_completes_all_that_is_public() -> None:
    listing = "import rayfl; print(*dir(rayfl))"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True)
    names = done.stdout.split()
    assert set(rayfl.__all__) <= set(names)
    assert len(names) == len(set(names))
