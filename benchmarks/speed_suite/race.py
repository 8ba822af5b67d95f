"""All systems on one workload, in turns: A B C A B C. A system that does not train the same has no
place in a table."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from speed_suite.environments import Unavailable
from speed_suite.federation import Federation
from speed_suite.measure import run
from speed_suite.workloads import Workload, prepared

Say = Callable[[str], None]
Answers = dict[str, list[dict[str, Any]]]

PRECISION = {"rayfl-bf16": 2.0}
"""By how much the tolerances are wider where arithmetic is coarser."""


class NotTheSame(Exception):
    """Two systems that trained different things: the comparison is void."""


def race(
    workload: Workload,
    systems: Sequence[str],
    repeats: int,
    say: Say,
) -> dict[str, Any]:
    """The medians of all systems, with everything that a table needs."""
    folder = prepared(workload)
    federation = Federation.load(folder)
    compared = workload.key != "w6"
    expected = reference(workload, folder, systems, say) if compared else {}
    answers: Answers = {}
    absent: dict[str, str] = {}
    for repeat in range(repeats):
        for name in (name for name in systems if name not in absent):
            found = one(workload, folder, name, absent)
            if found is None:
                say(f"  {name:13} left out: {absent[name]}")
                continue
            if compared:
                same(workload, name, found, expected[str(workload.rounds_of(name))])
            answers.setdefault(name, []).append(found)
            say(told(name, repeat, found))
    return {
        "key": workload.key,
        "title": workload.title,
        "repeats": repeats,
        "systems": {
            name: summary(workload, federation, name, runs) for name, runs in answers.items()
        },
        "absent": absent,
        "reference": expected,
        **circumstances(),
    }


def one(
    workload: Workload, folder: Path, name: str, absent: dict[str, str]
) -> dict[str, Any] | None:
    """One run; None, and the reason among the absent, where a system cannot take part."""
    try:
        found = run(
            name,
            folder,
            workload.rounds_of(name),
            workload.warmup_of(name),
        )
    except Unavailable as reason:
        absent[name] = str(reason).splitlines()[0]
        return None
    if "skipped" in found:
        absent[name] = str(found["skipped"])
        return None
    return found


def told(name: str, repeat: int, found: dict[str, Any]) -> str:
    figures = [
        f"  {name:13} {repeat + 1}: {1000 * found['seconds']:10.2f} ms a round",
        f"accuracy {found['accuracy']:.4f}",
        f"moved {found['moved']:.4f}",
        f"start {found['startup']:5.1f} s",
        f"peak {found['peak_mb']:6.0f} MB",
    ]
    return "  ".join(figures)


def summary(
    workload: Workload,
    federation: Federation,
    name: str,
    runs: list[dict[str, Any]],
) -> dict[str, Any]:
    """The median of every figure; the split of the run whose round is the median one."""
    figures = ["seconds", "startup", "total", "accuracy", "loss", "moved", "peak_mb"]
    rounds = workload.rounds_of(name)
    warmup = workload.warmup_of(name)
    middle = sorted(runs, key=lambda found: found["seconds"])[len(runs) // 2]
    medians = {}
    figures += [name for name in ("trained", "apart") if name in middle]
    for figure in figures:
        medians[figure] = median(found[figure] for found in runs)
    samples = federation.samples(warmup, rounds) / (rounds - warmup)
    return {
        **medians,
        "all_seconds": [found["seconds"] for found in runs],
        "samples_per_second": samples / medians["seconds"],
        "rounds": rounds,
        "warmup": warmup,
        "versions": middle["versions"],
        **{key: middle[key] for key in ("split", "rounds_log") if key in middle},
    }


# -- the same training -----------------------------------------------------------------------------


def reference(
    workload: Workload, folder: Path, systems: Sequence[str], say: Say
) -> dict[str, dict[str, float]]:
    """What a plain loop has learnt after as many rounds as each system runs; kept with the
    arrays."""
    kept = folder / f"reference-{torch.__version__}.json"
    known: dict[str, dict[str, float]] = json.loads(kept.read_text()) if kept.exists() else {}
    wanted = {workload.rounds_of(name) for name in systems}
    if not wanted <= {int(rounds) for rounds in known}:
        marks = ",".join(str(rounds) for rounds in sorted(wanted))
        say(f"  the plain loop, for its accuracy after {marks} rounds")
        known |= run("bare2", folder, max(wanted), 0, marks)["marks"]
        kept.write_text(json.dumps(known))
    return known


def same(
    workload: Workload,
    name: str,
    found: dict[str, Any],
    expected: dict[str, float],
) -> None:
    """Refuse a system that ends elsewhere than the plain loop, with both numbers."""
    points, share = (PRECISION.get(name, 1.0) * allowed for allowed in workload.tolerance)
    rounds = workload.rounds_of(name)
    if abs(found["accuracy"] - expected["accuracy"]) > points:
        figures = f"{found['accuracy']:.4f} against {expected['accuracy']:.4f}, allowed {points}"
        rule = f"{name} does not reach the plain loop's accuracy in {rounds} rounds"
        raise NotTheSame(f"{workload.key}: {rule}: {figures}")
    if abs(found["moved"] / expected["moved"] - 1) > share:
        figures = f"{found['moved']:.5f} against {expected['moved']:.5f}, allowed {share:.0%}"
        rule = f"{name} does not move the weights as far in {rounds} rounds"
        raise NotTheSame(f"{workload.key}: {rule}: {figures}")


def circumstances() -> dict[str, Any]:
    """When and where."""
    system = f"{platform.system()} {platform.release()}"
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": f"{processor()}, {os.cpu_count()} cores, {system}",
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    wide = any("avx512" in line for line in lines if line.startswith("flags"))
    return (names[0] if names else platform.machine()) + (" with AVX-512" if wide else "")
