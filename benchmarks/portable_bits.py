"""What `bits: portable` costs: a round with it against one without, turn by turn.

    python -m benchmarks.portable_bits 5

Two processes, one of each kind, take turns; of a round the processor's seconds count, which others
on the machine change less than a clock's. Ten clients visit with 60 images each."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from rayfl.bits import PORTABLE
from rayfl.run.environment import describe_environment
from rayfl.run.progress import Silent

ROUNDS = 4
NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"data": {"name": "blobs", "samples": 600, "side": 28}, "model": "mlp"},
    "mnist_cnn": {"data": {"name": "blobs", "samples": 600, "side": 28}, "model": "mnist_cnn"},
    "cnn4": {
        "data": {"name": "blobs", "samples": 600, "side": 32, "channels": 3},
        "model": "cnn4",
    },
}


class Stopwatch(Silent):
    """The processor's seconds of every round."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def round(self, record: Any) -> None:
        """One more."""
        self.marks.append(time.process_time())

    @property
    def seconds(self) -> list[float]:
        """Of each round but the first, in which libraries make up their minds."""
        return [after - before for before, after in zip(self.marks, self.marks[1:], strict=False)]


def serve(bits: str) -> None:
    """For each network named on a line of the input, the seconds of its rounds."""
    import rayfl

    for line in sys.stdin:
        watch = Stopwatch()
        with tempfile.TemporaryDirectory() as output:
            rayfl.run(
                NETWORKS[line.strip()],
                bits=bits,
                device="cpu",
                fleet="inline",
                clients=10,
                training={"rounds": ROUNDS + 1, "batch_size": 20},
                evaluation={"every": ROUNDS + 1},
                tracking={"enabled": False},
                output=output,
                progress=watch,
            )
        print(json.dumps(watch.seconds), flush=True)


class Worker:
    """A process that runs rounds when it is asked to."""

    def __init__(self, bits: str) -> None:
        own = {name: value for name, value in os.environ.items() if name not in PORTABLE}
        self.process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, "serve", bits],
            env={**own, **(PORTABLE if bits == "portable" else {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def time_rounds(self, network: str) -> list[float]:
        """Seconds of each round."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(network, file=self.process.stdin, flush=True)
        found: list[float] = json.loads(self.process.stdout.readline())
        return found


def main(turns: int) -> None:
    """A line for each network."""
    workers = {bits: Worker(bits) for bits in ("fast", "portable")}
    print(json.dumps({"turns": turns, "machine": describe_environment()}))
    for network in NETWORKS:
        taken: dict[str, list[float]] = {bits: [] for bits in workers}
        for _ in range(turns):
            for bits, worker in workers.items():
                taken[bits].append(statistics.median(worker.time_rounds(network)))
        ratios = sorted(
            slow / quick for quick, slow in zip(taken["fast"], taken["portable"], strict=True)
        )
        facts = {bits: round(statistics.median(each), 4) for bits, each in taken.items()}
        shown = [round(ratio, 3) for ratio in ratios]
        ratio = round(statistics.median(ratios), 3)
        print(json.dumps({"network": network, **facts, "ratio": ratio, "ratios": shown}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
