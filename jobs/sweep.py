"""Entry point for `ray job submit --working-dir . -- python jobs/sweep.py FILE [key=value ...]
[--resume]`.

The same as `rayfl sweep`; only the output folder differs, because the working directory of a job is
a copy that goes."""

from __future__ import annotations

import sys

from run import keep_outputs

from rayfl.cli import main

if __name__ == "__main__":
    keep_outputs()
    main(["sweep", *sys.argv[1:]])
