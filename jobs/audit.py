"""Entry point for `ray job submit --working-dir . -- python jobs/audit.py CONFIG [options]`.

The same as `rayfl audit`; only the output folder differs, because the working directory of a job is
a copy that goes."""

from __future__ import annotations

import sys

from run import keep_outputs

from rayfl.cli import main

if __name__ == "__main__":
    keep_outputs()
    main(["audit", *sys.argv[1:]])
