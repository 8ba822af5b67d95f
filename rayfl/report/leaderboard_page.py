"""docs/leaderboard.md: methods beside each other on the scenarios that were recorded, tests over
seeds and scenarios, and what follows for somebody who has to choose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rayfl.report.contests import LEAST_SEEDS, Contender, Contest, find_contests
from rayfl.report.inference import correct_by_holm, mean_interval, signed_rank_test
from rayfl.report.markdown import escape_markdown, write_row
from rayfl.run.progress import format_duration
from rayfl.study.recorded import RecordedStudy

LEAST_PAIRS = 6
"""With fewer, no outcome of the test has a two-sided p below 0.05."""
SURE = 0.05
HEAD = """# Leaderboard

Written by `rayfl report --recorded -o docs` from the rows of the ledger, [results/](../results).
A scenario is everything but the method and the seed: data, who holds which, labels, network,
training, precision and scale; rows that differ in one of them are in different tables.

Mean ± sample deviation over seeds, Student's 95 % interval of the mean. Ranks are by the seeds that
all methods of a table have, and stand where there are at least three methods and two such seeds;
beside a rank, in how many of all resamples of these seeds a method keeps it, and the ranks that it
has in 95 % of them. Costs are of a whole run: images that passed through a network, forward and
backward, and megabytes between server and clients. References know which labels are right; they
have no rank."""
GUIDE = """## What to take

Gains are over plain averaging with the same seeds, with Student's 95 % interval. A method is named
as better where that interval lies above 0, and as level with the leader where the interval of their
difference holds 0. Two seeds make wide intervals."""
TESTS = """## Pairs of methods, over seeds and scenarios

Wilcoxon's signed-rank test, exact and two-sided, of differences paired by scenario and seed: the
two methods of a pair had the same data, the same wrong labels and the same participants. It is
taken, and not a paired t-test, because differences of several scenarios are of different size and
few. Pairs of one seed in several scenarios share draws, so p is a guide. Holm's correction is over
all pairs that were tested. Fewer than six pairs cannot come below 0.05 and are not tested."""
COLUMNS = ("rank", "kept, range", "images (M)", "MB", "time")
PAIRS = ("method", "against", "pairs", "scenarios", "mean difference", "p", "p (Holm)")


def write_leaderboard(recorded: Sequence[RecordedStudy]) -> str:
    """The whole page."""
    contests = find_contests(recorded)
    lines = [HEAD, "", GUIDE, ""]
    lines += [_advise(contest) for contest in contests] or ["There are no rows yet."]
    lines += ["", "## Scenarios", ""]
    for contest in contests:
        lines += _write_contest(contest)
    lines += [TESTS, ""]
    for grade in dict.fromkeys(contest.grade for contest in contests):
        lines += _write_tests(grade, [each for each in contests if each.grade == grade])
    return "\n".join(lines).rstrip() + "\n"


# -- one scenario ----------------------------------------------------------------------------------


def _write_contest(contest: Contest) -> Iterator[str]:
    yield from (f"### {escape_markdown(contest.title)}", "")
    yield from (f"{escape_markdown(contest.facts)}; {contest.grade}.", "")
    yield write_row(["method", contest.score.title, "95 % interval", *COLUMNS])
    yield write_row(["---", *["---:"] * (2 + len(COLUMNS))])
    ranks = _format_ranks(contest)
    digits = contest.score.digits
    for each in contest.ranked:
        name = f"{each.title} (reference)" if each.is_reference else each.title
        yield write_row([
            escape_markdown(name),
            _format_mean(each, digits),
            each.interval.format(digits),
            *ranks.get(each.identity, ("-", "-")),
            *_format_costs(each),
        ])  # fmt: skip
    yield ""


def _format_mean(contender: Contender, digits: int) -> str:
    values = list(contender.values.values())
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{contender.mean:.{digits}f}{spread} (n={len(values)})"


def _format_ranks(contest: Contest) -> dict[str, tuple[str, str]]:
    """Rank and stability of each rival, where there is anything to rank."""
    if not contest.is_open:
        return {}
    ranks, stability = contest.ranks()
    found = {}
    for each, rank, (share, low, high) in zip(contest.rivals, ranks, stability, strict=True):
        found[each.identity] = (f"{rank:g}", f"{100 * share:.0f} %, {low:.0f} to {high:.0f}")
    return found


def _format_costs(contender: Contender) -> tuple[str, str, str]:
    images = (contender.find_usual("forward") + contender.find_usual("backward")) / 1e6
    sent = contender.find_usual("down_mb") + contender.find_usual("up_mb")
    seconds = contender.find_usual("seconds")
    known = [f"{value:.3g}" if np.isfinite(value) else "-" for value in (images, sent)]
    return known[0], known[1], format_duration(seconds) if np.isfinite(seconds) else "-"


# -- what to take ----------------------------------------------------------------------------------


def _advise(contest: Contest) -> str:
    """What one scenario says, in words."""
    said = "; ".join(_list_advice(contest))
    where = f"{contest.title} ({contest.facts}; {contest.grade})"
    return f"- {escape_markdown(where)}: {escape_markdown(said)}."


def _list_advice(contest: Contest) -> Iterator[str]:
    rivals = contest.rivals
    if len(rivals) < 2:
        yield "one method, nothing to choose"
        return
    if all(len(each.values) < 2 for each in rivals):
        yield "one seed, which says nothing of methods"
        return
    if len(contest.seeds) < LEAST_SEEDS:
        yield "fewer than two seeds that all methods have: nobody leads"
    else:
        yield from _name_leader(contest)
    yield from _compare_with_baseline(contest)


def _name_leader(contest: Contest) -> Iterator[str]:
    """Who is ahead by the seeds that all have, and who is not told apart from that."""
    ranks, _ = contest.ranks()
    leader = contest.rivals[int(np.argmin(ranks))]
    word = "lowest" if contest.score.lower_is_better else "highest"
    yield f"{leader.title} has the {word} mean ({_format_mean(leader, contest.score.digits)})"
    others = [each for each in contest.rivals if each is not leader]
    level = [each.title for each in others if not _is_behind(contest, leader, each)]
    if level:
        yield f"not told apart from it: {', '.join(level)}"


def _is_behind(contest: Contest, leader: Contender, other: Contender) -> bool:
    """Whether the leader is better for certain."""
    interval = mean_interval(contest.differences(leader, other))
    return interval.is_known and interval.low > 0


def _compare_with_baseline(contest: Contest) -> Iterator[str]:
    """Who beats plain averaging, or that nobody is shown to."""
    baseline = contest.baseline
    if baseline is None:
        return
    gains: list[tuple[float, str, bool]] = []
    for each in contest.rivals:
        differences = contest.differences(each, baseline)
        interval = mean_interval(differences)
        if each is not baseline and interval.is_known:
            gain = float(np.mean(differences))
            told = f"{each.title} ({gain:+.2f}; {interval.format(signed=True)})"
            gains.append((gain, told, interval.low > 0))
    better = [told for _, told, sure in gains if sure]
    if better:
        yield f"better than {baseline.title}: {', '.join(better)}"
    elif gains:
        yield f"nothing is shown to beat {baseline.title}; the largest gain is {max(gains)[1]}"


# -- tests -----------------------------------------------------------------------------------------


@dataclass
class ComparedMethods:
    """Two methods, wherever they met."""

    first: str
    second: str
    differences: list[float] = field(default_factory=list)
    scenarios: int = 0

    def turn(self) -> ComparedMethods:
        """So that the better one comes first."""
        if not self.differences or np.mean(self.differences) >= 0:
            return self
        turned = [-value for value in self.differences]
        return ComparedMethods(self.second, self.first, turned, self.scenarios)


def _write_tests(grade: str, contests: Sequence[Contest]) -> Iterator[str]:
    pairs = [pair.turn() for pair in collect_pairs(contests).values()]
    tested = [pair for pair in pairs if len(pair.differences) >= LEAST_PAIRS]
    yield from (f"### {grade}", "")
    left = len(pairs) - len(tested)
    if left:
        yield from (f"{left} pairs of methods met too few times to be tested.", "")
    if not tested:
        return
    values = [signed_rank_test(pair.differences) for pair in tested]
    corrected = correct_by_holm(values)
    yield write_row(PAIRS)
    yield write_row(["---", "---", *["---:"] * (len(PAIRS) - 2)])
    order = sorted(range(len(tested)), key=lambda place: values[place])
    for place in order:
        pair = tested[place]
        yield write_row([
            escape_markdown(pair.first),
            escape_markdown(pair.second),
            str(len(pair.differences)),
            str(pair.scenarios),
            f"{np.mean(pair.differences):+.2f}",
            f"{values[place]:.3g}",
            f"{corrected[place]:.3g}",
        ])  # fmt: skip
    sure = sum(value < SURE for value in corrected)
    yield from ("", f"{sure} of {len(tested)} differ after correction ({SURE:g}).", "")


def collect_pairs(contests: Sequence[Contest]) -> Mapping[tuple[str, str], ComparedMethods]:
    """Differences by seed of every two rivals, over all scenarios that both were in."""
    pairs: dict[tuple[str, str], ComparedMethods] = {}
    for contest in contests:
        rivals = sorted(contest.rivals, key=lambda each: each.identity)
        for place, first in enumerate(rivals):
            for second in rivals[place + 1 :]:
                key = (first.identity, second.identity)
                pair = pairs.setdefault(key, ComparedMethods(first.title, second.title))
                differences = contest.differences(first, second)
                pair.differences += differences
                pair.scenarios += bool(differences)
    return pairs
