"""Conformance of methods: the promises that every method of this package keeps, tried on yours.

    from rayfl.testing import Candidate, check_method

    findings = check_method(Candidate({"name": "my_methods:Mine"}), tmp_path)
    assert not [finding for finding in findings if finding.status == "broken"]

`rayfl check my_methods:Mine [CONFIG]` does the same on the command line."""

from rayfl.testing.bench import Bench, Candidate
from rayfl.testing.findings import BrokenPromise, Finding, Promise, Untried
from rayfl.testing.promises import ON_RAY, PROMISES, QUICK, check_method
from rayfl.testing.toy import TOY

__all__ = [
    "ON_RAY",
    "PROMISES",
    "QUICK",
    "TOY",
    "Bench",
    "BrokenPromise",
    "Candidate",
    "Finding",
    "Promise",
    "Untried",
    "check_method",
]
