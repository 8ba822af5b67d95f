"""Near duplicates, within and across sites, from prints of 32 bytes an image.

A print says for each of 256 places of a shrunken grey image whether it is brighter than its right
neighbour (N. Krawetz' difference hash). Images whose prints differ in a handful of bits look alike;
no image can be seen in its print, but whoever owns the same image can tell that somebody has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayfl.arrays import Images
from rayfl.protocol import Client, ClientId, Out

if TYPE_CHECKING:
    from rayfl.audit.course import Evidence
    from rayfl.fleet.base import BaseFleet

SIDE = 16
NEAR = 3
"""Bits of 256 in which prints of near duplicates may differ."""
LEAST_EDGES = 24
"""Prints with fewer bits set, or unset, are of nearly blank images, which are all alike."""
BLOCK = 512

Prints = NDArray[np.uint8]


class Duplicate(NamedTuple):
    """Two samples that look alike, by client and by place among its samples."""

    client: ClientId
    place: int
    other: ClientId
    other_place: int
    bits: int


def send_prints(client: Client) -> Out:
    """A print of every image."""
    return Out(state={"prints": print_images(client.x)})


def print_images(x: Images) -> Prints:
    """(images, 32) bytes."""
    import torch
    from torch.nn import functional

    grey = torch.from_numpy(np.array(x)).float().mean(dim=3)[:, None]
    small = functional.interpolate(grey, (SIDE, SIDE + 1), mode="area")[:, 0]
    # Rounded: what an encoder of images changes by a grey level must not turn bits.
    levels = (small / 4).round()
    brighter = (levels[:, :, :-1] > levels[:, :, 1:]).reshape(len(x), -1)
    return np.packbits(brighter.numpy(), axis=1)


def gather_prints(fleet: BaseFleet, evidence: Evidence) -> None:
    """Compare everybody's prints at the server."""
    from rayfl.audit.course import Sent

    fleet.round += 1
    fleet.map(send_prints, fleet.clients)
    prints = {}
    for client in fleet.clients:
        stored = fleet.state(client, "prints")
        assert stored is not None
        prints[client] = np.array(fleet.get(stored))
    fleet.costs.take()
    size = sum(found.nbytes for found in prints.values())
    evidence.sent.append(Sent("duplicates", "a print of 32 bytes an image up", size, 0))
    evidence.duplicates = list(find_duplicates(prints))


def find_duplicates(prints: dict[ClientId, Prints]) -> Iterator[Duplicate]:
    """All pairs whose prints are near each other."""
    owners = np.concatenate([np.full(len(found), client) for client, found in prints.items()])
    places = np.concatenate([np.arange(len(found)) for found in prints.values()])
    bits = np.unpackbits(np.concatenate([*prints.values()]), axis=1)
    telling = np.abs(bits.sum(axis=1).astype(np.int64) * 2 - bits.shape[1])
    known = np.flatnonzero(bits.shape[1] - telling >= 2 * LEAST_EDGES)
    for one, other, apart in _list_near(bits[known].astype(np.float32)):
        first, second = known[one], known[other]
        yield Duplicate(
            int(owners[first]), int(places[first]), int(owners[second]), int(places[second]), apart
        )


def _list_near(bits: NDArray[np.float32]) -> Iterator[tuple[int, int, int]]:
    """Pairs of rows that differ in at most `NEAR` places, the first before the second."""
    lengths = bits.sum(axis=1)
    for start in range(0, len(bits), BLOCK):
        block = bits[start : start + BLOCK]
        # Of zeros and ones: bits in which two rows differ.
        apart = lengths[start : start + BLOCK, None] + lengths - 2 * (block @ bits.T)
        rows, columns = np.nonzero(apart <= NEAR)
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            if start + row < column:
                yield start + row, column, int(apart[row, column])
