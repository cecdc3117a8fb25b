"""A sandbox that isolates nothing: a copy of the tree in a temporary folder, on this machine, as this user.

For machines without namespaces and for tests. Commands may read and write whatever the user may; the network is
there; limits on processes and on the sum of memory and disk are not. What `scratch` holds is removed at the end,
what a command wrote elsewhere stays.
"""

import contextlib
import os
from pathlib import Path

from harness.errors import SandboxError
from harness.sandbox.live import (
    LiveProvider,
    LiveSandbox,
    Places,
    Prepared,
    copy_tree,
    environment_of,
    interpreter,
    make_control,
    make_diff_repository,
    start_tree,
)
from harness.sandbox.protocol import Image, SandboxLimits
from harness.sandbox.tree import ScannedTree, head_commit

_PATH = "/usr/local/bin:/usr/bin:/bin"


class LocalProvider(LiveProvider):
    """Copies of the tree, one a sandbox."""

    name = "local"
    isolated = False

    def __init__(self, *, limits: SandboxLimits, scratch: Path) -> None:
        super().__init__(limits=limits, scratch=scratch)
        self.degraded = tuple(local_gaps(scratch))

    def _prepare(self, image: Image) -> Prepared:
        start = start_tree(image)
        folder, head = self._new_folder("image"), head_commit(start)
        make_diff_repository(folder / "git", head, start.resolve() / ".git" / "objects")
        return Prepared(image, folder, head)

    def _begin(self, prepared: Prepared, stack: contextlib.ExitStack, snapshot: Path | None) -> LiveSandbox:
        if snapshot is not None:
            raise SandboxError(f"{snapshot}: `local` cannot be brought to a snapshot")
        folder = self._new_folder("sandbox", stack)
        tree, home, temporary = folder / "testbed", folder / "home", folder / "tmp"
        copy_tree(start_tree(prepared.image), tree)
        home.mkdir()
        temporary.mkdir()
        control = make_control(folder / "control", interpreter())
        steps = str(control / "steps")
        request = {
            "op": "local",
            "argv": ["/bin/bash", "--noprofile", "--norc", str(control / "runner.bash"), steps, str(tree), ""],
            "rlimits": self._rlimits(),
        }
        env = environment_of(
            prepared.image,
            path=f"{control / 'bin'}:{_PATH}",
            home=str(home),
            more={"TMPDIR": str(temporary)},
        )
        shell, pid = self._launch(request, steps=control / "steps", inside=steps, env=env, stack=stack)
        places = Places(cwd=str(tree), steps=steps, git=str(prepared.folder / "git"), temporary=str(temporary))
        return LiveSandbox(
            shell,
            places=places,
            prepared=prepared,
            limits=self.limits,
            meter=self._meter,
            digest=ScannedTree(tree).digest,
            digest_method="scan",
            pid=pid,
            door=(),
            env=env,
        )

    def _rlimits(self) -> dict[str, int]:
        """A limit on processes would count all that this user runs, so there is none."""
        limits = {"CORE": 0}
        if self.limits.memory_bytes is not None:
            limits["DATA"] = self.limits.memory_bytes
        if self.limits.disk_bytes is not None:
            limits["FSIZE"] = self.limits.disk_bytes
        return limits


def local_gaps(scratch: Path) -> list[str]:
    """What this provider does not keep of the contract, a line each."""
    return [
        "nothing is isolated: commands read, write and reach whatever this user may",
        "processes are not limited; memory and disk only by process and by file",
        "no snapshots: what a command writes is not caught, and files may name the working folder",
        f"the working folder's path differs from run to run (under {os.fspath(scratch)})",
    ]
