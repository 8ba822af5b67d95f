"""Checkpoints: what a run needs to go on, written atomically to a local path or any pyarrow
filesystem URI.

    <uri>/round-000010.json      the manifest, written last; it names every file below with its sha256
    <uri>/round-000010.state     the method's state and the history so far
    <uri>/clients/7.w.000010     one entry of one client's durable state, written when it changed

Nothing is a pickle. A manifest that is damaged, or names a damaged file, is passed over for the one
before it."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from rayfl.config.schema import mask
from rayfl.errors import StorageError
from rayfl.run.codec import pack, unpack

log = logging.getLogger("rayfl")

FORMAT = 1
KEPT = 2


@dataclass(frozen=True)
class Snapshot:
    """A run after `round` finished rounds. `clients[id][key]` are references; `meta` says whose it
    is."""

    round: int
    state: Any
    clients: Mapping[int, Mapping[str, Any]]
    history: list[dict[str, Any]]
    meta: Mapping[str, Any]


class CheckpointStore:
    """The checkpoints of one run below one URI."""

    def __init__(self, uri: str) -> None:
        from pyarrow import fs

        self.uri = mask(uri)
        self.files: Any
        self.root: str
        try:
            self.files, self.root = (
                fs.FileSystem.from_uri(uri) if "://" in uri else (fs.LocalFileSystem(), uri)
            )
            self.files.create_dir(f"{self.root}/clients", recursive=True)
        except (OSError, ValueError) as error:
            raise StorageError(
                f"checkpoints need a writable place; got {self.uri} ({mask(str(error))}). Set checkpoint.uri."
            ) from error
        self._written: dict[tuple[int, str], tuple[Any, str, str]] = {}
        self._manifests: dict[int, Mapping[str, Any]] = {}

    # -- writing -----------------------------------------------------------------------------------------------

    def write(
        self, snapshot: Snapshot, fetch: Callable[[Any], Any], leaf: Callable[[Any], Any]
    ) -> None:
        """Write a snapshot: `fetch` brings a client's entry here, `leaf` packs references inside
        the state."""
        stem = f"round-{snapshot.round:06d}"
        try:
            clients = {
                str(client): {
                    key: self._entry(client, key, ref, snapshot.round, fetch)
                    for key, ref in entries.items()
                }
                for client, entries in snapshot.clients.items()
            }
            blob = pack({"state": snapshot.state, "history": json.dumps(snapshot.history)}, leaf)
            self._put(f"{stem}.state", blob)
            manifest = {
                "format": FORMAT,
                "round": snapshot.round,
                "state": [f"{stem}.state", sha256(blob)],
                "clients": clients,
                "meta": dict(snapshot.meta),
            }
            self._put(f"{stem}.json", json.dumps(manifest).encode())
            self._manifests[snapshot.round] = manifest
            self._drop_others()
        except OSError as error:
            raise StorageError(
                f"the checkpoint of round {snapshot.round} could not be written to {self.uri}: {error}. "
                "Free some space or set checkpoint.uri; the run can go on from the checkpoint before it."
            ) from error

    def _entry(
        self, client: int, key: str, ref: Any, round_: int, fetch: Callable[[Any], Any]
    ) -> list[str]:
        known = self._written.get((client, key))
        if known is None or known[0] is not ref:
            blob = pack(fetch(ref))
            known = (ref, f"clients/{client}.{quote(key, safe='')}.{round_:06d}", sha256(blob))
            self._put(known[1], blob)
            self._written[client, key] = known
        return [known[1], known[2]]

    def _put(self, name: str, blob: bytes) -> None:
        """Write under a temporary name, then rename: a reader sees all of a file or none of it."""
        target = f"{self.root}/{name}"
        try:
            with self.files.open_output_stream(f"{target}.part") as stream:
                stream.write(blob)
            self.files.move(f"{target}.part", target)
        except OSError:
            self._delete(f"{name}.part")
            raise

    def _delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self.files.delete_file(f"{self.root}/{name}")

    def _drop_others(self) -> None:
        """Keep the last checkpoints that this run wrote or went on from, and what they name;
        damaged ones go."""
        for number in sorted(self._manifests)[:-KEPT]:
            del self._manifests[number]
        entries = [
            entry for known in self._manifests.values() for entry in known["clients"].values()
        ]
        named = {name for entry in entries for name, _ in entry.values()}
        for number in self.rounds():
            if number not in self._manifests:
                self._delete(f"round-{number:06d}.json")
                self._delete(f"round-{number:06d}.state")
        for name in self._names("clients"):
            if f"clients/{name}" not in named:
                self._delete(f"clients/{name}")

    def hand_on(self, uri: str, digest: str | None = None) -> int:
        """Copy the newest checkpoint to another place; its round. A digest makes it the beginning
        of another run.

        That run's configuration then decides what comes after; the scenario must be the same one.
        """
        number, other = self.rounds()[-1], CheckpointStore(uri)
        manifest = self._manifest(number)
        named = [
            manifest["state"],
            *(entry for entries in manifest["clients"].values() for entry in entries.values()),
        ]
        for name, known in named:
            other._put(name, self._read(name, known))
        meta = manifest["meta"] if digest is None else {**manifest["meta"], "digest": digest}
        other._put(f"round-{number:06d}.json", json.dumps({**manifest, "meta": meta}).encode())
        return number

    # -- reading -----------------------------------------------------------------------------------------------

    def rounds(self) -> list[int]:
        """The rounds that have a manifest."""
        names = [
            name for name in self._names("") if name.startswith("round-") and name.endswith(".json")
        ]
        return sorted(int(name[6:-5]) for name in names if name[6:-5].isdigit())

    def newest(self, restore: Callable[[Mapping[str, Any]], Snapshot]) -> Snapshot | None:
        """The newest checkpoint that `restore` accepts; damaged ones are named and passed over."""
        problems = []
        for number in reversed(self.rounds()):
            try:
                manifest = self._manifest(number)
                snapshot = restore(manifest)
            except (StorageError, OSError, ValueError, KeyError, TypeError) as error:
                problems.append(f"round {number}: {error}")
                log.warning(
                    "checkpoint of round %d is not usable and is passed over: %s", number, error
                )
                continue
            self._manifests[number] = manifest
            return snapshot
        if problems:
            raise StorageError(f"no usable checkpoint in {self.uri}: " + "; ".join(problems))
        return None

    def state(
        self, manifest: Mapping[str, Any], modules: set[str], leaf: Callable[[Any], Any]
    ) -> tuple[Any, list[Any]]:
        """The method's state and the history that a manifest names."""
        tree = unpack(self._read(*manifest["state"]), modules, leaf)
        return tree["state"], json.loads(tree["history"])

    def entry(
        self, client: int, key: str, named: tuple[str, str], put: Callable[[Any], Any]
    ) -> Any:
        """One entry of a client's state, stored by `put`; remembered, so that it is not written
        again unchanged."""
        ref = put(unpack(self._read(*named)))
        self._written[client, key] = (ref, *named)
        return ref

    def _manifest(self, number: int) -> dict[str, Any]:
        with self.files.open_input_stream(f"{self.root}/round-{number:06d}.json") as stream:
            manifest = json.loads(stream.read())
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise StorageError(f"a manifest of format {FORMAT} is expected; got something else")
        return manifest

    def _read(self, name: str, digest: str) -> bytes:
        with self.files.open_input_stream(f"{self.root}/{name}") as stream:
            blob = bytes(stream.read())
        if sha256(blob) != digest:
            raise StorageError(
                f"{name} has sha256 {sha256(blob)[:12]}, its manifest says {digest[:12]}"
            )
        return blob

    def _names(self, folder: str) -> list[str]:
        from pyarrow import fs

        found = self.files.get_file_info(fs.FileSelector(f"{self.root}/{folder}".rstrip("/")))
        return [info.base_name for info in found if info.is_file]


def sha256(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()
