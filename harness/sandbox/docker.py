"""Sandboxes in containers of a Docker or Podman engine on this machine.

A container is one sandbox: no network, a bounded number of processes and bytes of memory, few capabilities and no way
to more. Some are started ahead of need, so that nobody waits for an engine.

A task's image either holds the tree already (`Image.docker`), or the tree is put into the provider's base image, once,
and kept in the engine under a name made of its content.
"""

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.errors import ConfigError, SandboxError
from harness.sandbox.changes import FromInside, InLayers, Start, look_at_start, restore
from harness.sandbox.container import INSIDE, OWN, Container, Launcher, Owner, Recipe, orphans
from harness.sandbox.engine import Engine, ImageFacts
from harness.sandbox.images import BASE_IMAGE, DEFAULT_PATH, TREE_IMAGE, Images, User
from harness.sandbox.inside import InsideTree
from harness.sandbox.live import (
    Capture,
    LiveProvider,
    LiveSandbox,
    Places,
    Prepared,
    environment_of,
    make_diff_repository,
)
from harness.sandbox.pool import Pool
from harness.sandbox.protocol import Image, SandboxLimits
from harness.sandbox.tree import ImageEntries, OverlayTree, commit_of, head_commit

_GONE_S = 20.0
"""How long the engine may take to remove what has ended."""


_UNWATCHED = "disk: limits.disk_bytes caps one file, not the sum: the driver cannot read the containers' layers"


def _silent(text: str) -> None:
    pass


@dataclass(frozen=True)
class DockerOptions:
    """How containers are made."""

    base: str = BASE_IMAGE
    """Image that trees are put into."""
    user: str | None = None
    """Name or uid[:gid] that actions run as; None: root inside."""
    network: bool = False
    cpus: float | None = None
    """Processors that one container may use; None: all."""
    pull_seconds: float = 1800.0
    """For one image."""
    pool: int = 2
    """Containers kept started ahead of need."""
    layers: bool = True
    """Read the engine's layers where we may. False: work as for an ordinary user, to whom they are closed."""
    run: str = ""
    """Label of every container: the run's folder, by which `forkroll clean --run` finds them."""
    say: Callable[[str], None] = _silent
    """Told what takes long."""


@dataclass
class _Contained(Prepared):
    """What the provider made of an image."""

    facts: ImageFacts = field(kw_only=True)
    recipe: Recipe = field(kw_only=True)
    user: User = field(kw_only=True)
    """Who actions run as."""
    entries: ImageEntries | None = None
    """None: digests are taken inside."""
    start: Start | None = None
    """None: snapshots cannot be taken."""

    @property
    def below(self) -> str:
        """The working folder, as a path below a root."""
        return self.image.cwd.strip("/")


class DockerProvider(LiveProvider):
    """A container a sandbox."""

    name = "docker"
    isolated = True

    def __init__(self, *, limits: SandboxLimits, scratch: Path, options: DockerOptions | None = None) -> None:
        """ConfigError when the SDK is missing or no engine on this machine answers."""
        super().__init__(limits=limits, scratch=scratch)
        self._options = options or DockerOptions()
        self._engine = Engine()
        self._owner = Owner(self._options.run)
        self._images = Images(self._engine, self._owner, pull_seconds=self._options.pull_seconds, say=self._options.say)
        self._launcher = Launcher(self._engine, limits, self._owner)
        self._pool: Pool[Container] = Pool(self._options.pool, self._launch_named)
        self._closed = False

    @property
    def facts(self) -> dict[str, Any]:
        """What a manifest should say: the engine, and the images used so far by name."""
        with self._lock:
            used = {name: one.facts for name, one in self._prepared.items() if isinstance(one, _Contained)}
        images = {name: {"id": facts.id, "digests": list(facts.digests)} for name, facts in used.items()}
        return {"engine": self._engine.version, "base": self._options.base, "images": images}

    def require_base(self) -> None:
        """ConfigError when the base image is neither here nor to be pulled."""
        try:
            self._images.present(self._options.base)
        except SandboxError as error:
            raise ConfigError(str(error)) from None

    def close(self) -> None:
        """End and remove every container of this provider. A second time does nothing."""
        if self._closed:
            return
        self._closed = True
        self._pool.close()
        with contextlib.suppress(SandboxError):  # an engine that is gone holds nothing
            self._remove_left()
        super().close()
        self._engine.close()

    def _remove_left(self) -> None:
        """Wait until the engine has removed what has ended, and remove what it forgot."""
        deadline = time.monotonic() + _GONE_S
        while (left := self._engine.labelled([self._owner.label])) and time.monotonic() < deadline:
            for container in left:
                self._engine.remove(container.id)
            time.sleep(0.05)

    def _open(self) -> None:
        opened = self._spawner is not None
        super()._open()
        if not opened and self._spawner is not None:
            self._spawner.guard_containers(self._engine.socket_path, self._owner.label)

    # --- images

    def _prepare(self, image: Image) -> Prepared:
        facts = self._image_of(image)
        user = self._images.user(self._options.user, facts)
        folder = self._new_folder("image")
        objects = dict(zip(map("objects{}".format, range(1000)), _object_folders(image, facts), strict=False))
        head = None if image.tree is None else head_commit(image.tree)
        make_diff_repository(folder / "git", head, None)
        reachable = [f"{INSIDE}/{name}" for name in objects] or [f"{image.cwd}/.git/objects"]
        (folder / "git" / "objects" / "info" / "alternates").write_text("".join(f"{place}\n" for place in reachable))
        recipe = Recipe(
            name=image.name,
            image=facts.id,
            cwd=image.cwd,
            env=environment_of(image, path=DEFAULT_PATH, home=user.home, more=facts.env),
            mounts={"git": folder / "git", **objects},
            user=self._options.user,
            network=self._options.network,
            cpus=self._options.cpus,
        )
        prepared = _Contained(image, folder, head, facts=facts, recipe=recipe, user=user)
        self._look_inside(prepared)
        return prepared

    def _image_of(self, image: Image) -> ImageFacts:
        if image.docker is not None:
            return self._images.present(image.docker)
        if image.tree is None:
            raise SandboxError(f"{image.name} has neither a tree nor a Docker image")
        if not image.tree.is_dir():
            raise SandboxError(f"no folder {image.tree}")
        base = self._images.present(self._options.base)
        return self._images.with_tree(image.tree, image.cwd, base, self._images.user(self._options.user, base))

    def _look_inside(self, prepared: _Contained) -> None:
        """Learn from a first container what no image says; it waits in the pool afterwards."""
        running = self._start_container(prepared)
        if not running.layers and _UNWATCHED not in self.degraded:
            self.degraded += (_UNWATCHED,)
        try:
            inside = InsideTree(running.shell.own, prepared.image.cwd)
            if prepared.image.tree is None:
                prepared.head = commit_of(inside.head())
                (prepared.folder / "git" / "HEAD").write_text(f"{prepared.head or 'ref: refs/heads/none'}\n")
            if not prepared.facts.volumes:
                prepared.start = look_at_start(running, self._engine)
            prepared.entries = _entries(prepared, running)
            # The engine may mount layers in ways that cannot be read from outside: both ways must agree.
            if prepared.entries is not None and _overlay(prepared, running).digest() != inside.digest():
                self._options.say(
                    f"{prepared.image.name}: the engine's layers do not show its state: read inside instead"
                )
                prepared.entries = None
        except BaseException:
            running.close()
            raise
        self._pool.put(prepared.image.name, running)

    # --- containers

    def _begin(self, prepared: Prepared, stack: contextlib.ExitStack, snapshot: Path | None) -> LiveSandbox:
        assert isinstance(prepared, _Contained)
        running = self._pool.take(prepared.image.name)
        stack.callback(self._end_container, running)
        if snapshot is not None:
            with self._meter.measure("restore"):
                restore(snapshot, running, self._engine, prepared.user)
        by_overlay = prepared.entries is not None and bool(running.layers)
        cwd, user = prepared.image.cwd, self._options.user or "0:0"
        tree = _overlay(prepared, running) if by_overlay else InsideTree(running.shell.own, cwd)
        return LiveSandbox(
            running.shell,
            places=Places(cwd=cwd, steps=f"{INSIDE}/steps", git=f"{INSIDE}/git", temporary=OWN),
            prepared=prepared,
            limits=self.limits,
            meter=self._meter,
            digest=tree.digest,
            digest_method="overlay" if by_overlay else "inside",
            pid=running.pid or -1,
            door=["docker", "--host", self._engine.url, "exec", "-it", "--user", user, running.id],
            env=prepared.recipe.env,
            capture=self._capture(prepared, running),
            written=running.layers[0] if running.layers else None,
        )

    def _capture(self, prepared: _Contained, running: Container) -> Capture | None:
        start, limit = prepared.start, self.limits.disk_bytes
        if start is None:
            return None
        return InLayers(running, start, limit) if running.layers else FromInside(running, start, self._engine, limit)

    def _end_container(self, running: Container) -> None:
        with self._meter.measure("end"):
            running.close()

    def _launch_named(self, name: str) -> Container:
        prepared = self._prepared[name]
        assert isinstance(prepared, _Contained)
        return self._start_container(prepared)

    def _start_container(self, prepared: _Contained) -> Container:
        with contextlib.ExitStack() as stack, self._meter.measure("launch"):
            folder = self._new_folder("sandbox", stack)
            made = self._launcher.launch(prepared.recipe, folder / "control", stack)
            layers = made.layers if self._options.layers else ()
            return replace(made, layers=layers, closing=stack.pop_all())


def available() -> str | None:
    """None when an engine on this machine answers and has the base image; else why not and what mends it."""
    try:
        engine = Engine()
    except ConfigError as error:
        return str(error)
    try:
        if engine.image(BASE_IMAGE) is None:
            return f"{engine.version} at {engine.url} has no image {BASE_IMAGE}: run  scripts/docker-engine start"
    finally:
        engine.close()
    return None


def reap_containers(run: str | None) -> list[str]:
    """Remove the containers of dead owners, of the run folder `run` alone where it is named; their short ids.

    Nothing where no engine answers: then nothing of ours runs in one.
    """
    try:
        engine = Engine()
    except ConfigError:
        return []
    try:
        dead = orphans(engine, run)
        for container in dead:
            engine.remove(container)
    finally:
        engine.close()
    return [container[:12] for container in dead]


def drop_tree_images() -> list[str]:
    """Remove the images that bundled tasks' trees were put into and that no container uses; their references.

    They are a cache: the next run makes what it needs again.
    """
    engine = Engine()
    with contextlib.closing(engine):
        found = engine.unused(TREE_IMAGE)
        for reference in found:
            engine.remove_image(reference)
    return found


def _overlay(prepared: _Contained, running: Container) -> OverlayTree:
    assert prepared.entries is not None and running.layers
    return OverlayTree(prepared.entries, running.layers[0] / prepared.below)


def _entries(prepared: _Contained, running: Container) -> ImageEntries | None:
    """The start state's entries; None where an upper layer does not say all that differs from them."""
    if not running.layers or _layers_redirect() or _on_a_volume(prepared):
        return None
    if prepared.image.tree is not None:
        return ImageEntries(prepared.image.tree)
    root = Path(f"/proc/{running.pid}/root")
    if _passes_a_link(root, prepared.below):
        return None
    _copy_head(root / prepared.below, prepared.folder / "head")
    return ImageEntries(root / prepared.below, head=prepared.folder / "head")


def _layers_redirect() -> bool:
    """Overlays may hold renamed folders, or files without their data: an upper layer alone says too little then."""
    for name in ("redirect_dir", "metacopy"):
        with contextlib.suppress(OSError):
            if Path("/sys/module/overlay/parameters", name).read_text().strip() == "Y":
                return True
    return False


def _on_a_volume(prepared: _Contained) -> bool:
    """Part of the tree lies on a volume, which is in no layer."""
    cwd = f"{prepared.below}/"
    volumes = [f"{volume.strip('/')}/" for volume in prepared.facts.volumes]
    return any(volume.startswith(cwd) or cwd.startswith(volume) for volume in volumes)


def _object_folders(image: Image, facts: ImageFacts) -> Iterator[Path]:
    """Folders with the image's git objects, to be mounted beside it, out of the agent's reach."""
    trees = (
        [image.tree.resolve()] if image.tree is not None else [layer / image.cwd.lstrip("/") for layer in facts.layers]
    )
    for tree in trees:
        with contextlib.suppress(PermissionError):
            if (tree / ".git" / "objects").is_dir():
                yield tree / ".git" / "objects"


def _passes_a_link(root: Path, path: str) -> bool:
    place = root
    for part in path.split("/"):
        place = place / part
        if place.is_symlink() or not place.is_dir():
            return True
    return False


def _copy_head(tree: Path, target: Path) -> None:
    """What names HEAD, where it is a plain .git of the tree's own."""
    git, copy = tree / ".git", target / ".git"
    copy.mkdir(parents=True)
    if git.is_symlink() or not git.is_dir():
        return
    for name in ("HEAD", "packed-refs", "refs"):
        if (git / name).exists():
            subprocess.run(["cp", "-rP", "--", str(git / name), str(copy)], check=True, capture_output=True)
