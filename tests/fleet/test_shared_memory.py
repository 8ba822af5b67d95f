"""Pages of memory that other processes see."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rayfl.fleet.on_ray.reduction import split_in_chunks
from rayfl.fleet.sums.exact_sums import CHUNK
from rayfl.fleet.sums.shared_memory import LEAST_BYTES, SUPPORTED, Opened, Page, Pages
from rayfl.protocol import Vector

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="pages are a matter of Linux")

LENGTH = LEAST_BYTES // 4


def filled(pages: Pages, value: float = 3.0) -> tuple[Vector, Page]:
    vector = pages.vector(LENGTH)
    vector.fill(value)
    page = pages.page_of(vector)
    assert page is not None
    return vector, page


OTHER = """
import sys
from rayfl.fleet.sums.shared_memory import Pages
pages = Pages()
vector = pages.vector({length})
vector.fill(7)
page = pages.page_of(vector)
print(page.pid, page.descriptor, page.inode, page.length, flush=True)
sys.stdin.readline()
print(float(vector.sum()), flush=True)
"""


@pytest.fixture
def other() -> subprocess.Popen[str]:
    """Another process with a page full of sevens."""
    code = OTHER.format(length=LENGTH)
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True)


def its_page(other: subprocess.Popen[str]) -> Page:
    assert other.stdout is not None
    return Page(*map(int, other.stdout.readline().split()))


def test_another_process_reads_and_writes_it(other: subprocess.Popen[str]) -> None:
    page = its_page(other)
    assert page.open().sum() == 7 * LENGTH
    assert not page.open().flags.writeable
    page.open(writable=True)[CHUNK : 2 * CHUNK] = 8
    assert page.open()[CHUNK:].tolist() == [8] * CHUNK + [7] * (LENGTH - 2 * CHUNK)
    out, _ = other.communicate("go on\n")
    assert float(out) == 7 * LENGTH + CHUNK


def test_what_was_opened_outlives_its_process_and_nothing_else_does(
    other: subprocess.Popen[str],
) -> None:
    page = its_page(other)
    opened = page.open()
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert opened.sum() == 7 * LENGTH
    with pytest.raises(OSError, match=str(page.pid)):
        page.open()
    other.communicate()


def test_a_file_that_is_not_the_one_named_is_refused(tmp_path: Path) -> None:
    """The process may have ended and its number been given to another."""
    _, page = filled(Pages())
    with pytest.raises(FileNotFoundError, match="no longer the one whose page was named"):
        replace(page, inode=page.inode + 1).open()


def test_a_page_is_used_again_when_nobody_refers_to_it() -> None:
    pages = Pages()
    vector, page = filled(pages)
    view = vector[5:9]
    del vector
    gc.collect()
    assert filled(pages, 4.0)[1] != page, "a view is a reference, too"
    assert view.tolist() == [3.0] * 4
    del view
    gc.collect()
    assert [held.page for held in pages.idle[LENGTH]][-1] == page
    assert {filled(pages)[1], filled(pages)[1]} & {page}


def test_what_is_lent_is_known_by_where_it_lies() -> None:
    pages = Pages()
    vector, page = filled(pages)
    assert pages.page_of(vector) == page
    assert pages.page_of(vector[:-1]) is None
    assert pages.page_of(np.ones(LENGTH, np.float32)) is None
    del vector
    gc.collect()
    assert not pages.lent


def test_small_vectors_are_ordinary_memory() -> None:
    pages = Pages()
    assert pages.page_of(pages.vector(LENGTH - 1)) is None
    assert not pages.idle


def test_only_the_pages_of_the_last_sum_stay_open() -> None:
    pages, opened = Pages(), Opened()
    kept = [filled(pages, value) for value in (1.0, 2.0, 3.0)]
    first, second, third = (page for _, page in kept)
    before = opened.only([first, second], second)
    assert (before[first].flags.writeable, before[second].flags.writeable) == (False, True)
    after = opened.only([second, third], third)
    assert after.keys() == {second, third}
    assert after[second] is before[second]
    assert [float(after[page][0]) for page in (second, third)] == [2.0, 3.0]


def test_there_are_so_many_pages_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on open files must not end a run: what finds no page lies in ordinary memory."""
    monkeypatch.setattr("rayfl.fleet.sums.shared_memory.MOST_PAGES", 2)
    pages = Pages()
    vectors = [pages.vector(LENGTH) for _ in range(3)]
    assert [pages.page_of(vector) is None for vector in vectors] == [False, False, True]
    del vectors[0]
    gc.collect()
    assert pages.page_of(pages.vector(LENGTH)) is not None


def test_a_limit_of_the_systems_costs_pages_only(caplog: pytest.LogCaptureFixture) -> None:
    pages, (soft, hard) = Pages(), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        vectors = [pages.vector(LENGTH) for _ in range(2)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [pages.page_of(vector) for vector in vectors] == [None, None]
    assert caplog.text.count("no more shared memory for large updates") == 1


def test_pages_have_no_name() -> None:
    shared = Path("/dev/shm")
    before = set(shared.iterdir()) if shared.exists() else set()
    vector, page = filled(Pages())
    named = os.readlink(f"/proc/{page.pid}/fd/{page.descriptor}")
    assert named == "/memfd:rayfl (deleted)"
    assert not ({path.name for path in shared.iterdir()} - {path.name for path in before}) & {
        "rayfl"
    }
    assert vector.flags.writeable


@pytest.mark.parametrize(
    ("length", "parts"), [(1, 2), (CHUNK, 3), (CHUNK + 1, 2), (10 * CHUNK - 1, 3), (10**6, 7)]
)
def test_parts_cover_a_vector_in_whole_chunks(length: int, parts: int) -> None:
    found = split_in_chunks(length, parts)
    assert len(found) <= parts
    assert [part.start for part in found[1:]] == [part.stop for part in found[:-1]]
    assert (found[0].start, found[-1].stop) == (0, length)
    assert all(part.start % CHUNK == 0 and part.start < part.stop for part in found)
