"""Tables as Markdown, LaTeX and CSV: structure, escapes, and nothing lost."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rayfl.report.latex import escape_latex, write_latex
from rayfl.report.long_csv import write_csv
from rayfl.report.markdown import escape_markdown, write_markdown
from rayfl.report.wording import describe_scale
from rayfl.study.result import StudyResult
from tests.report.results import cell, grid, record, result

FOUND = grid({
    "a_b": {"x": ([90.0, 92.0], 91.0), "50%": ([50.0], None)},
    "c|d": {"x": ([93.0, 97.0], 96.25), "50%": ([], 60.0)},
})  # fmt: skip


@pytest.fixture
def scaled(tmp_path: Path) -> StudyResult:
    cells = [
        cell(
            {"method": "a", "dataset": "x"},
            [1.0],
            records=[record(tmp_path)],
            scaled="rounds 100 to 10",
        )
    ]
    return result(
        [*cells, cell({"method": "b", "dataset": "x"}, missing="b is not built")], scale=0.1
    )


def test_markdown_has_ours_printed_and_difference() -> None:
    lines = write_markdown(FOUND).splitlines()
    assert (
        "| method | X: ours | X: printed | X: difference "
        "| 50%: ours | 50%: printed | 50%: difference |" in lines
    )
    assert r"| A\_B | 91.00 ± 1.41 (n=2) | 91.00 | +0.00 | 50.00 (n=1) | - | - |" in lines
    assert r"| C\|D | 95.00 ± 2.83 (n=2) | **96.25** | -1.25 | - | 60.00 | - |" in lines


def test_markdown_without_printed_figures_has_one_column_each() -> None:
    text = write_markdown(grid({m: {"x": ([v], None)} for m, v in (("a", 1.0), ("b", 2.0))}))
    assert "| method | accuracy (%) |" in text
    assert "Rank agreement" not in text


def test_notes_say_scale_and_what_is_missing(scaled: StudyResult) -> None:
    text = write_markdown(scaled)
    assert "Scale 0.1: rounds 100 to 10. Levels are not comparable with printed ones." in text
    assert "- B: b is not built" in text
    assert "# A, X (seeds run: 0)\nrayfl study x\n# B, X (seeds run: none)" in text
    assert describe_scale(FOUND) == ""


def test_notes_speak_of_the_rounds_that_were_run(scaled: StudyResult) -> None:
    noted = scaled.study.model_copy(update={"notes": "The mean of the last 10 of 100 rounds."})
    text = write_markdown(replace(scaled, study=noted))
    assert "At full size: The mean of the last 10 of 100 rounds." in text
    assert "Rounds run here: 1; a score is the mean over the last one that measured it." in text
    assert "run here" not in write_markdown(FOUND)


@pytest.mark.parametrize(
    ("plain", "escaped"),
    [
        ("a*b_c|d", r"a\*b\_c\|d"),
        ("<img>\n x", r"\<img\> x"),
        ("`[x]`", r"\`\[x\]\`"),
        ("\\", "\\\\"),
    ],
)
def test_markdown_escapes(plain: str, escaped: str) -> None:
    assert escape_markdown(plain) == escaped


@pytest.mark.parametrize(
    ("plain", "escaped"),
    [
        ("50% & #1_a", r"50\% \& \#1\_a"),
        ("{x} $y$", r"\{x\} \$y\$"),
        ("a\\b ~ ^", r"a\textbackslash{}b \textasciitilde{} \textasciicircum{}"),
        ("[x] ± ρ", r"{[}x{]} $\pm$ $\rho$"),
        ("<|>", r"\textless{}\textbar{}\textgreater{}"),
    ],
)
def test_latex_escapes(plain: str, escaped: str) -> None:
    assert escape_latex(plain) == escaped


def test_latex_has_as_many_cells_as_columns_and_everything_closed(scaled: StudyResult) -> None:
    for text in (write_latex(FOUND), write_latex(scaled)):
        assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 1
        assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
        bare = text.replace(r"\{", "").replace(r"\}", "")
        assert bare.count("{") == bare.count("}")
        (columns,) = re.findall(r"\\begin\{tabular\}\{([lr]+)\}", text)
        rows = [line for line in text.splitlines() if line.endswith(r"\\")]
        spans = [sum(int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d)\}", row)) for row in rows]
        assert {
            len(re.split(r"(?<!\\)&", row)) + s for row, s in zip(rows, spans, strict=True)
        } == {len(columns)}
        order = [text.index(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")]
        assert order == sorted(order)


def test_latex_rules_span_their_columns_and_signs_are_minus_signs() -> None:
    text = write_latex(FOUND)
    assert r"\cmidrule(lr){2-4} \cmidrule(lr){5-7}" in text
    assert r"& \multicolumn{3}{c}{X} & \multicolumn{3}{c}{50\%} \\" in text
    assert (
        r"C\textbar{}D & 95.00 $\pm$ 2.83 (n=2) & \textbf{96.25} & $-$1.25 & -- & 60.00 & -- \\"
        in text
    )


def test_csv_has_a_line_a_cell_with_all_that_is_known(scaled: StudyResult) -> None:
    rows = list(csv.DictReader(io.StringIO(write_csv(FOUND))))
    assert len(rows) == 4
    first = next(row for row in rows if (row["method"], row["dataset"]) == ("A_B", "X"))
    assert (float(first["mean"]), first["n"], first["values"], first["seeds"]) == (
        91.0,
        "2",
        "90 92",
        "0 1",
    )
    assert float(first["std"]) == pytest.approx(2**0.5)
    assert (first["printed"], first["difference"], first["best"]) == ("91.00", "0", "0")
    a, b = csv.DictReader(io.StringIO(write_csv(scaled)))
    assert (a["scaled"], a["scale"], a["scenarios"], a["digests"]) == (
        "rounds 100 to 10",
        "0.1",
        "s" * 64,
        "d" * 64,
    )
    assert (b["mean"], b["n"], b["missing"]) == ("", "0", "b is not built")
