"""Images of one's own, from files or from rows of a table: decoded as a viewer shows them, with
their names, sites and true labels beside."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Bools, Ints, Strings
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.image_files import decode_as_shown
from rayfl.federation.datasets.on_disk import split_off_test
from rayfl.federation.datasets.sites import number_texts
from rayfl.federation.names import find_places

log = logging.getLogger("rayfl")


@dataclass(frozen=True)
class Records:
    """What is known of images before they are read, one entry an image.

    sources  their files, or the bytes of such
    places   where they lie, for refusals
    names    what they are called
    labels   the names of their classes
    sites    the names of their sites, where a rule tells them
    truth    the names of their true classes, where they are told
    """

    sources: Sequence[Path | bytes]
    places: Sequence[str]
    names: Strings
    labels: Strings
    sites: Strings | None = None
    truth: Strings | None = None

    def take(self, wanted: Bools) -> Records:
        """Those under the mask."""
        rows = np.flatnonzero(wanted)
        return Records(
            sources=[self.sources[at] for at in rows.tolist()],
            places=[self.places[at] for at in rows.tolist()],
            names=self.names[rows],
            labels=self.labels[rows],
            sites=None if self.sites is None else self.sites[rows],
            truth=None if self.truth is None else self.truth[rows],
        )


@dataclass(frozen=True)
class Reading:
    """How images are read.

    side           makes squares of so many pixels
    channels       1 for grey, 3 for colour; None makes all of them coloured as soon as one is
    test_fraction  the share that is held out, where there are no test images
    seed           decides which ones
    skip           leave damaged images out in place of refusing the first
    """

    side: int | None
    channels: int | None
    test_fraction: float
    seed: int
    skip: bool

    def build(
        self,
        name: str,
        records: Records,
        tested: Bools,
        classes: tuple[str, ...],
    ) -> Dataset:
        """The dataset of all images.

        Parameters
        ----------
        name
            What it is called.
        records
            The images.
        tested
            Which of them are test images; if none are, some are held out.
        classes
            The names of the classes, by number.
        """
        sites = () if records.sites is None else number_texts([records.sites])
        train, skipped = self._read(records.take(~tested), classes, sites, self.channels)
        if tested.any():
            # The test images take on the training images' channels.
            channels = train.x.shape[3]
            test, skipped_too = self._read(records.take(tested), classes, sites, channels)
            skipped += skipped_too
        else:
            train, test = split_off_test(train, self.test_fraction, self.seed, bool(sites))
        if skipped:
            log.warning(
                "%s: %d damaged images are left out, first %s", name, len(skipped), skipped[0]
            )
        return Dataset(name, train, _judge_by_truth(test), classes, sites, skipped)

    def _read(
        self,
        records: Records,
        classes: tuple[str, ...],
        sites: tuple[str, ...],
        channels: int | None,
    ) -> tuple[Images, tuple[str, ...]]:
        """The images, and the names of those that were left out."""
        shown = decode_as_shown(records.sources, channels, self.side, records.places, self.skip)
        whole = shown.whole
        if shown.faults and not len(whole):
            first = next(iter(shown.faults.values()))
            rule = "damaged: skip leaves out some images"
            raise DataError(broken(rule, f"all {len(records.names)} of them, first {first}"))
        images = Images(
            x=shown.x,
            y=_number_texts(records.labels, classes)[whole],
            groups=None if records.sites is None else _number_texts(records.sites, sites)[whole],
            names=records.names[whole],
            truth=None if records.truth is None else _number_texts(records.truth, classes)[whole],
        )
        return images, tuple(records.names[list(shown.faults)].tolist())


def _number_texts(texts: Strings, names: tuple[str, ...]) -> Ints:
    return find_places(np.array(names, dtype=np.str_), texts)


def _judge_by_truth(test: Images) -> Images:
    """Test images with their true labels in place of what somebody wrote, where they are known."""
    return test if test.truth is None else dataclasses.replace(test, y=test.truth, truth=None)
