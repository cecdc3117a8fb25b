"""Images that an engine has, can pull, or is given: a start tree put into a base image, once for each content."""

import hashlib
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from harness.errors import SandboxError
from harness.sandbox.container import Owner
from harness.sandbox.engine import Engine, ImageFacts

BASE_IMAGE = "forkroll-base"
"""What `scripts/docker-engine` builds: Debian with git and Python."""
TREE_IMAGE = "forkroll-tree"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class User:
    """Who actions run as."""

    uid: int
    gid: int
    home: str


ROOT = User(0, 0, "/root")


class Images:
    """The images of one engine."""

    def __init__(self, engine: Engine, owner: Owner, *, pull_seconds: float, say: Callable[[str], None]) -> None:
        self._engine, self._owner = engine, owner
        self._pull_seconds, self._say = pull_seconds, say

    def present(self, reference: str) -> ImageFacts:
        """The image, pulled where it is missing. SandboxError when it cannot be had."""
        found = self._engine.image(reference)
        if found is None and reference == BASE_IMAGE:
            raise SandboxError(f"no image {reference} in the engine: run  scripts/docker-engine start")
        if found is None:
            self._say(f"pulling {reference}")
            self._engine.pull(reference, seconds=self._pull_seconds, say=self._say)
            found = self._engine.image(reference)
        if found is None:
            raise SandboxError(f"no image {reference}, though it was pulled")
        return found

    def user(self, wanted: str | None, image: ImageFacts) -> User:
        """The user (name or uid[:gid]) as the image knows it; None: root."""
        if wanted is None:
            return ROOT
        container = self._engine.create(self._never_run(image))
        try:
            return find_user(wanted, self._engine.read(container, "/etc/passwd") or b"")
        finally:
            self._engine.remove(container)

    def with_tree(self, tree: Path, cwd: str, base: ImageFacts, owner: User) -> ImageFacts:
        """`base` with `tree` at `cwd`, and with a `python` wherever it has a `python3`."""
        key = hashlib.sha256(f"{base.id}\n{cwd}\n{owner}\n{tree_key(tree)}".encode()).hexdigest()[:32]
        reference = f"{TREE_IMAGE}:{key}"
        found = self._engine.image(reference)
        if found is not None:
            return found
        container = self._engine.create(self._never_run(base))
        try:
            with tempfile.TemporaryFile() as archive:
                _write_tar(archive, tree, cwd.lstrip("/"), owner, self._python_link(container, base))
                archive.seek(0)
                self._engine.unpack(container, archive)
            self._engine.commit(container, repository=TREE_IMAGE, tag=key, labels={"forkroll.tree": key})
        finally:
            self._engine.remove(container)
        return self.present(reference)

    def _never_run(self, image: ImageFacts) -> dict[str, object]:
        return {"Image": image.id, "Entrypoint": ["true"], "Labels": self._owner.labels()}

    def _python_link(self, container: str, base: ImageFacts) -> str | None:
        """What /usr/local/bin/python must name so that `python` is found; None when it is found, or cannot be."""
        folders = base.env.get("PATH", DEFAULT_PATH).split(":")

        def find(name: str) -> str | None:
            places = (f"{folder}/{name}" for folder in folders)
            return next((place for place in places if self._engine.has_file(container, place)), None)

        return None if find("python") else find("python3")


def find_user(wanted: str, passwd: bytes) -> User:
    """`wanted` (name or uid[:gid]) in the lines of a passwd file. SandboxError for a name that is not there."""
    name, _, group = wanted.partition(":")
    for line in passwd.decode("utf-8", "replace").splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and name in (fields[0], fields[2]):
            return User(int(fields[2]), int(group) if group.isdigit() else int(fields[3]), fields[5])
    if not name.isdigit():
        raise SandboxError(f"the image has no user {name!r}")
    return User(int(name), int(group) if group.isdigit() else int(name), "/")


def tree_key(tree: Path) -> str:
    """Names a start tree by all that a container would see of it: paths, kinds, modes, times and contents."""
    total, root = hashlib.sha256(), os.fsencode(tree)
    for folder, names, files in os.walk(root):
        names.sort()
        links = [name for name in names if os.path.islink(os.path.join(folder, name))]
        for name in sorted([*files, *links, b"."]):
            place = os.path.join(folder, name)
            info, held = os.lstat(place), _held(place)
            fields = b"%o %d %d" % (info.st_mode, int(info.st_mtime), len(held))
            total.update(os.path.relpath(place, root) + b"\0" + fields + b"\0" + held)
    return total.hexdigest()


def _held(place: bytes) -> bytes:
    mode = os.lstat(place).st_mode
    if stat.S_ISLNK(mode):
        return os.readlink(place)
    if not stat.S_ISREG(mode):
        return b""
    with open(place, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _write_tar(archive: IO[bytes], tree: Path, at: str, owner: User, python: str | None) -> None:
    """`tree` at `at`, and the name `python` for what lies at the path `python`."""

    def owned(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid, entry.gid = owner.uid, owner.gid
        entry.uname = entry.gname = ""
        return entry

    # GNU's format keeps names as the bytes they are.
    with tarfile.TarFile(
        None, "w", archive, format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
    ) as tar:
        tar.add(tree, arcname=at, filter=owned)
        if python is not None:
            link = tarfile.TarInfo("usr/local/bin/python")
            link.type, link.linkname, link.mode = tarfile.SYMTYPE, python, 0o777
            tar.addfile(link)
