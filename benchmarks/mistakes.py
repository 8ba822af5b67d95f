"""Thirty-seven things that people get wrong, each tried again: what is said, and how long it takes.

    python benchmarks/mistakes.py            prints a line each
    python benchmarks/mistakes.py --write    writes docs/mistakes.md as well
    python benchmarks/mistakes.py 2 16 30    only these

Each is tried in an empty folder, with `rayfl` as it is installed. Processor seconds are those of
the command and what it waited for; on a busy machine they say more than the clock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

RAYFL = Path(sys.executable).with_name("rayfl")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "mistakes.md"
DEAD = "127.0.0.1:6999"
WIDEST = 300

SHORT = ["fleet=inline", "training.rounds=2", "--quiet"]


@dataclass(frozen=True)
class Mistake:
    """One mistake, and what was said of it before."""

    number: int
    what: str
    words: Sequence[str]
    before: str
    setup: str = ""
    """What is made in the folder first, by `SETUPS`."""
    after: float | None = None
    """Seconds after which SIGINT is sent."""
    needs: str = ""
    """Why it takes longer than the others."""


class Answer(NamedTuple):
    """How a command ended."""

    code: int
    said: str
    seconds: float
    processor: float


MISTAKES = [
    Mistake(
        1,
        "a configuration that is not there",
        ["run", "configs/quickstrat.yaml"],
        "named it; no nearest name",
    ),
    Mistake(
        2,
        "`method=fedpox`",
        ["run", "quickstart", "method=fedpox"],
        "did you mean 'fedprox', after 6.8 to 16.6 s: Ray was started first",
    ),
    Mistake(
        3,
        "`round=5`",
        ["run", "quickstart", "round=5"],
        "listed the keys, without a hint of training.rounds",
    ),
    Mistake(
        4,
        "`training.rounds=ten`",
        ["run", "quickstart", "training.rounds=ten"],
        "good, after Ray's start",
    ),
    Mistake(
        5, "`training.lr=-1`", ["run", "quickstart", "training.lr=-1"], "good, after Ray's start"
    ),
    Mistake(6, "an override without =", ["run", "quickstart", "training.lr"], "good"),
    Mistake(7, "`--rounds 5`", ["run", "quickstart", "--rounds", "5"], "no such option"),
    Mistake(8, "broken YAML", ["run", "broken.yaml"], "position shown", setup="broken"),
    Mistake(
        9, "a list in place of a mapping", ["run", "list.yaml"], "position shown", setup="list"
    ),
    Mistake(
        10,
        "data that are not there",
        ["run", "quickstart", "data=cifar100", "model=cnn4"],
        "told `rayfl data get`, after 11 s",
    ),
    Mistake(
        11,
        "a wrong data_root",
        ["run", "quickstart", "data=mnist", "model=mnist_cnn", "data_root=/nowhere"],
        "good",
    ),
    Mistake(
        12,
        "`data=folder` without a path",
        ["run", "quickstart", "data=folder"],
        "spoke of a folder in the cache",
    ),
    Mistake(
        13,
        "`training.fraction=2`",
        ["run", "quickstart", "training.fraction=2"],
        "good, after Ray's start",
    ),
    Mistake(
        14,
        "50 participants of 20 clients",
        ["run", "quickstart", "training.fraction=null", "training.clients_per_round=50"],
        "accepted silently",
    ),
    Mistake(
        15,
        "5000 clients for 1437 samples",
        ["run", "quickstart", "clients=5000"],
        "excellent text, after Ray's start",
    ),
    Mistake(
        16,
        "fedds without a public set",
        ["run", "quickstart", "method=fedds"],
        "good text after 20 s, and a failed MLflow run",
    ),
    Mistake(
        17,
        "a network far too large",
        ["run", "quickstart", "model=resnet18", "fleet=inline"],
        "no end in 120 s; a C++ stack on SIGTERM",
        after=20.0,
        needs="the run itself; SIGINT after 20 s",
    ),
    Mistake(
        18,
        "`device=cuda` without a GPU",
        ["run", "quickstart", "device=cuda"],
        "exit code 6 and a remedy, after Ray's start",
        needs="the cluster",
    ),
    Mistake(
        19,
        "GPUs for clients without a GPU",
        ["run", "quickstart", "resources.gpus_per_client=0.5"],
        "good, and a false line about `rayfl sync`",
        needs="the cluster",
    ),
    Mistake(
        20, "`noise.rate=1.4`", ["run", "quickstart", "noise.rate=1.4"], "good, after Ray's start"
    ),
    Mistake(
        21,
        "resuming an unknown run",
        ["run", "quickstart", "--resume", "nothing"],
        "listed the last runs",
    ),
    Mistake(
        22,
        "resuming a finished run",
        ["run", "quickstart", *SHORT, "--resume", "RUN"],
        "printed the result again after 20 s, without a word",
        setup="finished",
    ),
    Mistake(23, "a study that is not there", ["study", "fedds_tabel4"], "good"),
    Mistake(
        24,
        "`--only` with an unknown axis",
        ["study", "fedds_table4", "--only", "datasat=mnist", "--plan"],
        "did you mean",
    ),
    Mistake(
        25,
        "`--only` with an unknown choice",
        ["study", "fedds_table4", "--only", "dataset=mnits", "--plan"],
        "did you mean",
    ),
    Mistake(
        26, "`--only` without =", ["study", "fedds_table4", "--only", "mnist", "--plan"], "good"
    ),
    Mistake(
        27, "a report of an unknown experiment", ["report", "nosuchexp"], "good", setup="finished"
    ),
    Mistake(
        28,
        "a report without runs",
        ["report", "fedrn_table2", "--ledger", "none"],
        "exit code 0, an empty page, which was logged",
    ),
    Mistake(
        29,
        "an MLflow server that is down",
        ["run", "quickstart", *SHORT, "tracking.uri=http://127.0.0.1:6998"],
        "the run goes on, kept on disk",
        needs="the run itself goes on",
    ),
    Mistake(
        30,
        "a cluster that nobody answers at",
        ["run", "quickstart", "--address", DEAD],
        "only warnings of Ray's for 343 s and more; SIGTERM had no effect",
        needs="10 s of patience",
    ),
    Mistake(
        31,
        "an output folder that cannot be written",
        ["run", "quickstart", "fleet=inline", "output=file/below"],
        '"free some space" is wrong advice',
        setup="file",
    ),
    Mistake(32, "`data get minst`", ["data", "get", "minst"], "did you mean"),
    Mistake(
        33,
        "a setting that another component has",
        ["run", "quickstart", "partition=iid", "partition.alpha=1"],
        "not a known key",
    ),
    Mistake(
        34,
        "`partition=iid` over dirichlet",
        ["run", "quickstart", "partition=iid", *SHORT],
        "replaced cleanly",
        needs="no mistake: the run itself",
    ),
    Mistake(
        35,
        "a study given to `run`",
        ["run", "fedds_table4"],
        'seven lines of "axes is not a known key"',
    ),
    Mistake(
        36,
        "a run given to `sweep`",
        ["sweep", "configs/quickstart.yaml"],
        "seven lines of unknown keys",
    ),
    Mistake(
        37,
        "Ctrl-C in the middle",
        ["run", "quickstart", "fleet=inline", "training.rounds=4000", "--quiet"],
        "says how to go on, exit code 130",
        after=15.0,
        needs="SIGINT after 15 s",
    ),
]


def set_up(name: str, folder: Path) -> dict[str, str]:
    """Make what a mistake needs; words to be replaced."""
    if name == "broken":
        (folder / "broken.yaml").write_text("clients: [1, 2\nmethod: fedavg\n")
    elif name == "list":
        (folder / "list.yaml").write_text("- clients: 3\n")
    elif name == "file":
        (folder / "file").write_text("not a folder")
    elif name == "finished":
        subprocess.run(
            [RAYFL, "run", "quickstart", *SHORT], cwd=folder, check=True, capture_output=True
        )
        [run] = (folder / "outputs" / "runs").iterdir()
        return {"RUN": run.name}
    return {}


def try_mistake(mistake: Mistake) -> Answer:
    """Make a mistake in an empty folder."""
    with tempfile.TemporaryDirectory() as place:
        replaced = set_up(mistake.setup, Path(place))
        words = [replaced.get(word, word) for word in mistake.words]
        said = Path(place, "said")
        started = time.monotonic()
        with said.open("wb") as stream:
            process = subprocess.Popen([RAYFL, *words], cwd=place, stdout=stream, stderr=stream)
            if mistake.after is not None:
                time.sleep(mistake.after)
                process.send_signal(signal.SIGINT)
            _, status, used = os.wait4(process.pid, 0)
        seconds = time.monotonic() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        text = said.read_text(errors="replace").replace(place, ".")
        return Answer(process.returncode, text, seconds, used.ru_utime + used.ru_stime)


def find_sentence(answer: Answer) -> str:
    """What a person reads of an answer: the error, or else its first line."""
    lines = [line.strip() for line in answer.said.splitlines() if line.strip()]
    begun = next((at for at, line in enumerate(lines) if line.startswith(("error", "Error"))), None)
    told = (
        lines[begun:] if begun is not None else [lines[-1 if answer.code else 0]] if lines else []
    )
    whole = " ".join(told)
    return whole if len(whole) <= WIDEST else f"{whole[:WIDEST]}..."


def write_row(mistake: Mistake, answer: Answer) -> str:
    """A row of the page."""
    said = find_sentence(answer).replace("|", "\\|")
    times = f"{answer.processor:.2f} ({answer.seconds:.1f})"
    note = f"; {mistake.needs}" if mistake.needs else ""
    cells = [
        str(mistake.number),
        mistake.what,
        mistake.before,
        said,
        str(answer.code),
        times + note,
    ]
    return f"| {' | '.join(cells)} |"


def write_page(rows: Sequence[str]) -> str:
    """The whole page."""
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    day = time.strftime("%Y-%m-%d")
    return f"""# What is said of mistakes

Thirty-seven things that people get wrong, what rayfl said of each once, and what it says now.
Nothing exists before a mistake is told: Ray has not started, and there is neither a folder nor an
MLflow run. Seconds are the processor's, and in brackets the clock's; what takes longer says why.

Written by `python benchmarks/mistakes.py --write` on {day}, on {os.cpu_count()} cores with a load
of {load}.

| | mistake | once | now | exit code | seconds |
|---:|---|---|---|---:|---|
{chr(10).join(rows)}
"""


def main(words: Sequence[str]) -> None:
    wanted = {int(word) for word in words if word.isdigit()}
    rows = []
    for mistake in MISTAKES:
        if wanted and mistake.number not in wanted:
            continue
        answer = try_mistake(mistake)
        rows.append(write_row(mistake, answer))
        print(rows[-1], flush=True)
    if "--write" in words and not wanted:
        PAGE.write_text(write_page(rows), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
