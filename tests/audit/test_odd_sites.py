"""One federation of odd sites, out of a folder: nothing breaks, what is odd is said in words."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

import rayfl
from rayfl.audit.publish import publish_audit
from rayfl.audit.story import Audit
from rayfl.audit.summary import summarise
from tests.audit.odd_images import fill_site
from tests.audit.toys import QUICK


class Odd(NamedTuple):
    """The audit of the odd sites, and what it has left."""

    audit: Audit
    folder: Path
    told: str


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Odd:
    root = tmp_path_factory.mktemp("odd")
    images, common = root / "images", {"east": 40, "north": 40, "south": 40}
    for site in ("bern", "genf", "oslo"):
        fill_site(images, site, common)
    fill_site(images, "few", {"east": 10, "north": 10, "south": 10})
    fill_site(images, "lone", {"north": 60})
    fill_site(images, "rome", {**common, "west": 30})
    fill_site(images, "swap", common, wrong=True)
    # The same image at two sites with two labels, and twice at one site.
    shutil.copy(images / "east/bern/east0.png", images / "north/genf/copy.png")
    shutil.copy(images / "east/oslo/east1.png", images / "east/oslo/again.png")
    config = {
        "data": {"name": "folder", "path": str(images), "sites": "parent", "test_fraction": 0.02},
        "partition": "sites",
        "clients": 7,
        "fleet": "inline",
        "tracking": {"enabled": False},
    }
    audit: Audit = rayfl.audit(config, plan={**QUICK, "encoder": "pixels"})
    folder = root / "found"
    publish_audit(audit, folder, local=False, images=True, track=False)
    return Odd(audit, folder, "\n".join(summarise(audit.findings, audit.subject)))


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ("few", "samples: the interval is wide"),
        ("lone", "All its labels are 'north'"),
        ("rome", "Nobody else has 'west'"),
    ],
)
def test_what_is_odd_about_a_site_is_told_with_its_name(odd: Odd, site: str, words: str) -> None:
    lines = [line for line in odd.told.splitlines() if line.startswith(f"! {site}:")]
    assert any(words in line for line in lines)
    assert words in (odd.folder / "clients.csv").read_text(encoding="utf-8")


def test_the_site_whose_labels_are_all_wrong_is_accused(odd: Odd) -> None:
    findings, names = odd.audit.findings, odd.audit.subject.client_names
    accused = [names[client.client] for client in findings.clients if client.accused]
    assert accused == ["swap"]
    (swap,) = [client for client in findings.clients if names[client.client] == "swap"]
    assert swap.share.value > 0.9
    assert swap.share.high == pytest.approx(1.0, abs=0.02)


def test_duplicates_across_and_within_sites_are_told(odd: Odd) -> None:
    assert "duplicates at different clients: 1 pair, 1 with different labels" in odd.told
    assert "duplicates at one client: 1 pair, 0 with different labels" in odd.told
    page = (odd.folder / "index.html").read_text(encoding="utf-8")
    for file in ("east/bern/east0.png", "north/genf/copy.png", "east/oslo/again.png"):
        assert file in page


def test_the_wrongly_labelled_twin_is_suspected_and_the_right_one_is_not(odd: Odd) -> None:
    samples = odd.audit.findings.samples
    names = odd.audit.subject.name_files(samples.rows)
    flagged = dict(zip(names, samples.flagged.tolist(), strict=True))
    assert flagged["north/genf/copy.png"]
    assert not flagged["east/bern/east0.png"]
