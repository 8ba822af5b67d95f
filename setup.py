"""What pyproject.toml cannot say: a built package carries the configurations of `configs/`.

They are kept once, at the top. An editable installation finds them there."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfigs(build_py):
    """Copies `configs/` into the package that is being built."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "rayfl" / "configs"
            # What an earlier build left, and the repository has no more, is not shipped.
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(Path(__file__).parent / "configs", target)


setup(cmdclass={"build_py": BuildWithConfigs})
