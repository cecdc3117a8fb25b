"""The Docker engine, as much of it as sandboxes need: a typed front of the docker SDK (extra `docker`).

It must run on this machine, because a sandbox's output comes through FIFOs in a folder that both sides see. Podman
answers the same calls on its compatible socket.
"""

import contextlib
import io
import json
import os
import queue
import socket
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from harness.errors import ConfigError, SandboxError
from harness.sandbox.spawner import ask_engine

_CALL_S = 120.0
"""Time limit of one call: creating containers is slow on a busy machine."""
_SOCKETS = ("/var/run/docker.sock", "{runtime}/docker.sock", "{runtime}/podman/podman.sock", "/run/podman/podman.sock")
_LARGE = 1024**2
_TELL_S = 3.0


@dataclass(frozen=True)
class ImageFacts:
    """What the engine knows of an image."""

    id: str
    """Digest of its configuration: names its content."""
    digests: tuple[str, ...]
    """Registry digests; none for an image that was built here."""
    env: Mapping[str, str]
    volumes: tuple[str, ...]
    """Folders that are no part of a container's own layer."""
    layers: tuple[Path, ...]
    """Where the engine keeps an overlay2 image, topmost first; none with another storage driver."""


@dataclass(frozen=True)
class ContainerFacts:
    """What the engine knows of a running container."""

    pid: int
    """Of its first process, as the engine sees it."""
    layers: tuple[Path, ...]
    """Where the engine keeps an overlay2 container, its writable layer first; none with another storage driver."""


@dataclass(frozen=True)
class Labelled:
    """A container and its labels."""

    id: str
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Change:
    """One path that differs from the image, absolute."""

    path: str
    deleted: bool
    """It, and all below it, is gone from the image's point of view: something else may be there now."""


class _PullProgress:
    """Turns a pull's events into a line every few seconds."""

    def __init__(self, reference: str, say: Callable[[str], None]) -> None:
        self._reference, self._say = reference, say
        self._layers: dict[str, tuple[int, int]] = {}
        self._told = time.monotonic()

    def take(self, event: Mapping[str, Any]) -> None:
        """SandboxError for an event that says that the pull failed."""
        if "error" in event:
            raise SandboxError(f"docker: pulling {self._reference}: {event['error']}")
        detail = event.get("progressDetail") or {}
        if event.get("status") == "Downloading" and detail.get("total"):
            self._layers[event["id"]] = detail["current"], detail["total"]
        if self._layers and time.monotonic() - self._told > _TELL_S:
            self._told = time.monotonic()
            have, whole = (sum(column) // _LARGE for column in zip(*self._layers.values(), strict=True))
            self._say(f"pulling {self._reference}: {have} of {whole} MB or more")


class Engine:
    """One engine. Methods raise SandboxError for what the engine refuses; any thread may call them."""

    def __init__(self, url: str | None = None) -> None:
        """ConfigError when the SDK is missing, when no engine answers or when it runs elsewhere."""
        docker = _sdk()
        self.url = url or _found_url()
        if not self.url.startswith("unix://"):
            raise ConfigError(f"sandbox `docker` needs an engine on this machine (unix://...), not {self.url}")
        self._errors = docker.errors
        try:
            self._version: dict[str, Any] = json.loads(ask_engine(self.socket_path, "GET", "/version"))
            version = self._version["ApiVersion"]
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(_no_answer(self.url, error)) from None
        self._api = docker.APIClient(base_url=self.url, version=version, timeout=_CALL_S, max_pool_size=128)

    @property
    def socket_path(self) -> str:
        """Path of the engine's socket."""
        return self.url.removeprefix("unix://")

    @property
    def version(self) -> str:
        """Name and version of the engine."""
        names = [part.get("Name", "") for part in self._version.get("Components") or []]
        kind = "podman" if any("podman" in name.lower() for name in names) else "docker"
        return f"{kind} {self._version['Version']}"

    def close(self) -> None:
        """Give the connections back."""
        self._api.close()

    # --- images

    def image(self, reference: str) -> ImageFacts | None:
        """None when the engine does not have it."""
        with self._calling(f"looking at image {reference}"):
            try:
                found = self._api.inspect_image(reference)
            except self._errors.NotFound:
                return None
        settings = found.get("Config") or {}
        return ImageFacts(
            id=found["Id"],
            digests=tuple(found.get("RepoDigests") or ()),
            env=dict(entry.split("=", 1) for entry in settings.get("Env") or () if "=" in entry),
            volumes=tuple(settings.get("Volumes") or ()),
            layers=tuple(_layers(found)),
        )

    def pull(self, reference: str, *, seconds: float, say: Callable[[str], None]) -> None:
        """Pull within `seconds`; `say` gets a line of progress every few seconds.

        The engine goes on with what could not be pulled in time: a later attempt finds it further along.
        """
        deadline, progress = time.monotonic() + seconds, _PullProgress(reference, say)
        events: queue.Queue[dict[str, Any] | Exception | None] = queue.Queue()
        threading.Thread(target=self._read_pull, args=(reference, events), daemon=True, name="forkroll-pull").start()
        with self._calling(f"pulling {reference}"):
            while True:
                try:
                    event = events.get(timeout=max(0.0, deadline - time.monotonic()))
                except queue.Empty:
                    raise SandboxError(f"docker: pulling {reference} took over {seconds:g} s") from None
                if event is None:
                    return
                if isinstance(event, Exception):
                    raise event
                progress.take(event)

    def _read_pull(self, reference: str, events: "queue.Queue[dict[str, Any] | Exception | None]") -> None:
        try:
            for event in self._api.pull(*_named(reference), stream=True, decode=True):
                events.put(event)
        except Exception as error:
            events.put(error)
        events.put(None)

    def commit(self, container: str, *, repository: str, tag: str, labels: Mapping[str, str]) -> str:
        """Make an image of a container; its id."""
        with self._calling(f"committing {repository}:{tag}"):
            made = self._api.commit(container, repository=repository, tag=tag, conf={"Labels": dict(labels)})
        return str(made["Id"])

    def remove_image(self, reference: str) -> None:
        """What is not there is no error."""
        with self._calling(f"removing image {reference}"), contextlib.suppress(self._errors.NotFound):
            self._api.remove_image(reference, force=True)

    def unused(self, repository: str) -> list[str]:
        """References of the images of `repository` that no container uses."""
        with self._calling(f"listing the images of {repository}"):
            used = {found["ImageID"] for found in self._api.containers(all=True)}
            images = self._api.images(name=repository)
        return sorted(tag for image in images if image["Id"] not in used for tag in image["RepoTags"] or ())

    # --- containers

    def create(self, settings: Mapping[str, Any]) -> str:
        """Create a container as the engine's API describes it; its id."""
        with self._calling("creating a container"):
            return str(self._api.create_container_from_config(dict(settings))["Id"])

    def start(self, container: str) -> ContainerFacts:
        """Start it and look at it."""
        with self._calling("starting a container"):
            self._api.start(container)
            found = self._api.inspect_container(container)
        return ContainerFacts(pid=int(found["State"].get("Pid") or 0), layers=tuple(_layers(found)))

    def signal(self, container: str, name: str) -> None:
        """Send a signal to its first process. OSError when that is gone."""
        try:
            self._reach()
            self._api.kill(container, name)
        except (self._errors.APIError, OSError) as error:
            raise ProcessLookupError(f"container {container[:12]}: {error}") from error

    def limit_processes(self, container: str, processes: int) -> None:
        """Change the limit of a running container."""
        with self._calling("changing a limit"):
            self._checked(self._api.post(self._place(container, "update"), json={"PidsLimit": processes}))

    def unpack(self, container: str, archive: bytes | IO[bytes]) -> None:
        """Extract a tar at the root of its file system."""
        with self._calling("putting files into a container"):
            self._api.put_archive(container, "/", archive)

    def has_file(self, container: str, path: str) -> bool:
        """True when there is something at `path`, in a container that need not have been started."""
        with self._calling("looking into a container"):
            return bool(self._api.head(self._place(container, "archive"), params={"path": path}).ok)

    def read(self, container: str, path: str) -> bytes | None:
        """A file of a container that need not have been started; None when there is none."""
        with self._calling("looking into a container"):
            try:
                stream, _ = self._api.get_archive(container, path)
            except self._errors.NotFound:
                return None
            with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
                member = tar.next()
                file = tar.extractfile(member) if member is not None else None
                return file.read() if file is not None else None

    def changes(self, container: str) -> list[Change]:
        """What differs from its image."""
        with self._calling("comparing a container with its image"):
            return [Change(one["Path"], one["Kind"] == 2) for one in self._api.diff(container) or ()]

    def remove(self, container: str) -> None:
        """Kill and remove it. What is gone, or on its way, is no error."""
        with contextlib.suppress(SandboxError), self._calling("removing a container"):
            self._api.remove_container(container, force=True, v=True)

    def labelled(self, labels: Sequence[str]) -> list[Labelled]:
        """Containers with all of `labels` ("name" or "name=value"), whatever their state."""
        with self._calling("listing containers"):
            found = self._api.containers(all=True, filters={"label": list(labels)})
        return [Labelled(one["Id"], one.get("Labels") or {}) for one in found]

    def _place(self, container: str, what: str) -> str:
        return str(self._api._url("/containers/{0}/" + what, container))

    def _checked(self, response: Any) -> None:
        self._api._raise_for_status(response)

    @contextlib.contextmanager
    def _calling(self, doing: str) -> Iterator[None]:
        try:
            self._reach()
            yield
        except (self._errors.DockerException, OSError) as error:
            raise SandboxError(f"docker: {doing}: {_said(error)}") from error

    def _reach(self) -> None:
        """OSError when nobody listens any more: the SDK would leave a socket open over finding out."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
            wire.connect(self.socket_path)


def _layers(found: Mapping[str, Any]) -> Iterator[Path]:
    """Of an image or a container, topmost first."""
    driver = found.get("GraphDriver") or {}
    if driver.get("Name") in ("overlay2", "overlay"):
        places = driver.get("Data") or {}
        named = [places.get("UpperDir") or "", *(places.get("LowerDir") or "").split(":")]
        yield from (Path(layer) for layer in named if layer)


def _reach(place: str) -> None:
    with socket.socket(socket.AF_UNIX) as trial:
        trial.settimeout(_CALL_S)
        trial.connect(place)


def _sdk() -> Any:
    try:
        import docker
    except ImportError:
        raise ConfigError("sandbox `docker` needs the docker SDK: pip install 'forkroll[docker]'") from None
    return docker


def _found_url() -> str:
    """$DOCKER_HOST, else the first of the usual sockets that is there."""
    named = os.environ.get("DOCKER_HOST")
    if named:
        return named
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    places = [place.format(runtime=runtime) for place in _SOCKETS]
    return "unix://" + next((place for place in places if os.path.exists(place)), places[0])


def _no_answer(url: str, error: Exception) -> str:
    closed = "Permission denied" in str(error)
    mend = "join the group docker, or use rootless Docker" if closed else "start it, or set DOCKER_HOST"
    return f"sandbox `docker`: no engine answers at {url}: {mend} ({_said(error)})"


def _said(error: Exception) -> str:
    said = getattr(error, "explanation", None) or error
    return " ".join(str(said).split())[:500]


def _named(reference: str) -> tuple[str, str | None]:
    """Repository and tag or digest; without either the tag is latest, or every tag would be pulled."""
    if "@" in reference:
        return reference, None
    name, colon, tag = reference.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (reference, "latest")
