"""Cases tried in forked children, which have little memory and little time: whatever a case does to
its process, the next one is tried all the same."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rayfl.errors import RayflError

PASSED, REFUSED = "passed", "refused"
PATIENCE_SECONDS = 60
MEMORY_BYTES = 3 << 30
"""Address space that a case may claim, beyond what its process has."""


@dataclass(frozen=True)
class Outcome:
    """How a case ended: passed, refused, or what befell it."""

    verdict: str
    cpu_s: float = 0.0
    wall_s: float = 0.0
    grown_mb: float = 0.0
    letters: int = 0
    """Of the refusal."""

    @property
    def good(self) -> bool:
        """Whether nothing but a sentence came of it."""
        return self.verdict in (PASSED, REFUSED)


def try_cases(cases: Sequence[Callable[[], object]]) -> Iterator[Outcome]:
    """The outcomes of all cases, in order.

    A child tries one after the other; where a case ends it, another one goes on behind it."""
    at = 0
    while at < len(cases):
        heard, code = _hear_child(cases[at:])
        yield from heard
        at += len(heard)
        if at < len(cases):
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            yield Outcome("HANG" if code == -signal.SIGALRM else f"KILLED by {name}")
            at += 1


def _hear_child(cases: Sequence[Callable[[], object]]) -> tuple[list[Outcome], int]:
    """What a child tells until it is through or dies; and its exit code."""
    near, far = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_child(cases, far)
    os.close(far)
    with os.fdopen(near) as lines:
        heard = [Outcome(**json.loads(line)) for line in lines if line.endswith("\n")]
    _, status = os.waitpid(pid, 0)
    return heard, os.waitstatus_to_exitcode(status)


def _be_child(cases: Sequence[Callable[[], object]], far: int) -> None:
    limit = _read_status("VmSize") + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    for case in cases:
        signal.alarm(PATIENCE_SECONDS)
        outcome = judge_case(case)
        signal.alarm(0)
        os.write(far, f"{json.dumps(asdict(outcome))}\n".encode())
    os._exit(0)


def judge_case(case: Callable[[], object]) -> Outcome:
    """Try one case here, and measure it."""
    before = _forget_peak()
    cpu = time.process_time()
    wall = time.monotonic()
    said = ""
    try:
        case()
        verdict = PASSED
    except RayflError as refusal:
        verdict, said = REFUSED, str(refusal)
    except BaseException as error:
        verdict = f"TRACEBACK {_describe_fault(error)}"
    return Outcome(
        verdict,
        round(time.process_time() - cpu, 3),
        round(time.monotonic() - wall, 3),
        round((_read_status("VmHWM") - before) / 1e6, 1),
        len(said),
    )


def _describe_fault(error: BaseException) -> str:
    """The kind of error and the place in the package where it came out."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if _is_ours(each.filename)]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "elsewhere"
    return f"{type(error).__name__} at {place}"


def _is_ours(file: str) -> bool:
    return "/rayfl/" in file and "/tests/" not in file


def _forget_peak() -> int:
    """The memory in use now, from which on the highest is measured."""
    Path("/proc/self/clear_refs").write_text("5")
    return _read_status("VmRSS")


def _read_status(name: str) -> int:
    """Bytes of this process's memory, by the kernel's name."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024
