"""Who stands out in which run of a report, by what its method believes of its clients."""

from __future__ import annotations

from rayfl.report.material import iterate_records
from rayfl.run.standing import read_standing
from rayfl.study.result import StudyResult

EXPLAINED = (
    "Clients that are far from the median in what a run's method believes of them at its end. What "
    "an estimate rises with depends on the method."
)


def list_stand_out(result: StudyResult) -> list[dict[str, str]]:
    """A row for every client that stands out in a run and for each estimate that says so."""
    return [
        {
            "client": str(row["client"]),
            "run": title,
            "seed": str(seed),
            "estimate": str(row["estimate"]),
            "value": f"{row['value']:.3f}",
            "median": f"{row['median']:.3f}",
        }
        for title, seed, record in iterate_records(result)
        for row in read_standing(record)
    ]
