"""Docker sandboxes beyond the contract: faults of the engine, what is left behind, options, images. All real."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.assemble import open_provider
from harness.config import load_study
from harness.errors import ConfigError, SandboxError
from harness.record import Exit
from harness.sandbox import archive
from harness.sandbox.container import Owner
from harness.sandbox.docker import DockerOptions, DockerProvider, available, reap_containers
from harness.sandbox.engine import Engine
from harness.sandbox.images import BASE_IMAGE, find_user, tree_key
from harness.sandbox.inside import InsideTree
from harness.sandbox.live import LiveSandbox
from harness.sandbox.namespace import NamespaceProvider
from harness.sandbox.namespace import available as namespaces_available
from harness.sandbox.protocol import Image, SandboxLimits
from harness.sandbox.shell import Ran
from tests.contracts.sandbox_contract import World, alive, canary, eventually, make_tree, sleeper
from tests.test_tree_digest import EDITS
from tests.test_tree_digest import make_tree as make_tree_to_edit

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    if (why := available()) is not None:
        pytest.skip(why)
    engine = Engine()
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    tree = tmp_path_factory.mktemp("docker") / "tree"
    make_tree(tree)
    return Image("docker-tests", tree)


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The tree that EDITS change."""
    tree = tmp_path_factory.mktemp("docker") / "tree"
    make_tree_to_edit(tree)
    return Image("docker-edits", tree)


@pytest.fixture(scope="module")
def provider(engine: Engine, image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerProvider]:
    with docker(tmp_path_factory.mktemp("scratch"), DockerOptions(pool=1)) as provider:
        yield provider
        made = [one["id"] for one in provider.facts["images"].values()]
    for one in made:
        engine.remove_image(one)


@contextmanager
def docker(scratch: Path, options: DockerOptions, **limits: int) -> Iterator[DockerProvider]:
    with DockerProvider(limits=replace(SandboxLimits(), **limits), scratch=scratch, options=options) as provider:
        yield provider


def container_of(box: LiveSandbox) -> str:
    return box.shell_argv()[box.shell_argv().index("/bin/bash") - 1]


def own(box: LiveSandbox) -> Callable[[str], Ran]:
    """What runs a script of the driver's in `box`, made of what runs an action."""

    def run(script: str) -> Ran:
        box.write_file("/tmp/script", os.fsencode(script))
        seen = box.act("bash /tmp/script", timeout_s=30)
        status = 128 if seen.exit_code is None else seen.exit_code
        return Ran(seen.output, status, seen.signal, seen.ended is Exit.TIME_LIMIT, seen.size, seen.sha256, seen.cut_at)

    return run


def start(provider: DockerProvider, image: Image, **more: Path) -> contextlib.AbstractContextManager[LiveSandbox]:
    return provider.start(image, **more)  # type: ignore[return-value]


# --- the engine and its containers fail


@pytest.mark.parametrize("fault", ["kill", "remove"])
def test_a_container_that_goes_in_mid_step_is_a_sandbox_error(
    fault: str, provider: DockerProvider, image: Image, engine: Engine
) -> None:
    with start(provider, image) as box:
        box.act("echo one", timeout_s=5)
        faults: dict[str, Callable[[str], None]] = {"kill": lambda c: engine.signal(c, "KILL"), "remove": engine.remove}
        threading.Timer(0.3, faults[fault], [container_of(box)]).start()
        started = time.monotonic()
        with pytest.raises(SandboxError):
            box.act("sleep 60", timeout_s=60)
        assert time.monotonic() - started < 10
        for call in (lambda: box.act("true", timeout_s=5), lambda: box.working_diff("HEAD"), box.processes):
            with pytest.raises(SandboxError):
                call()
    with start(provider, image) as fresh:
        assert fresh.act("echo two", timeout_s=5).output == b"two\n"


def test_a_container_that_died_while_it_waited_is_not_handed_out(
    provider: DockerProvider, image: Image, engine: Engine
) -> None:
    with start(provider, image) as box:
        mine = container_of(box)
        time.sleep(1.5)  # the next one is made meanwhile
        for other in engine.labelled([f"forkroll.pid={os.getpid()}"]):
            if other.id != mine:
                engine.signal(other.id, "KILL")
    with start(provider, image) as fresh:
        assert fresh.act("echo two", timeout_s=5).output == b"two\n"


def test_a_paused_container_is_lost_after_its_time_limit(provider: DockerProvider, image: Image) -> None:
    """Nothing inside can answer: the driver gives up instead of waiting for ever."""
    with start(provider, image) as box:
        assert box.pid > 0
        os.kill(box.pid, signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(SandboxError, match="did not end"):
            box.act("echo x", timeout_s=0.2)
        assert time.monotonic() - started < 25


@contextmanager
def engine_of_our_own(folder: Path, base: Engine) -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    """An engine to be stopped and started again; it has the base image."""
    command = [
        *("dockerd", "--host", f"unix://{folder}/sock", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/x"),
        *("--pidfile", f"{folder}/pid", "--bridge", "none", "--iptables=false", "--ip-forward=false"),
    ]
    running: list[subprocess.Popen[bytes]] = []

    def run() -> "subprocess.Popen[bytes]":
        for process in running:
            process.wait(60)
        with (folder / "log").open("ab") as log:
            running.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
        if not eventually(lambda: _answers(f"unix://{folder}/sock"), 30):
            pytest.skip(f"no second engine here: {(folder / 'log').read_text()[-300:]}")
        return running[-1]

    try:
        run()
        save = subprocess.Popen(["docker", "--host", base.url, "save", BASE_IMAGE], stdout=subprocess.PIPE)
        load = ["docker", "--host", f"unix://{folder}/sock", "load", "--quiet"]
        subprocess.run(load, stdin=save.stdout, check=True, stdout=subprocess.DEVNULL)
        assert save.stdout is not None
        save.stdout.close()
        save.wait()
        yield run
    finally:
        for process in running:
            process.terminate()
            process.wait(30)
        for line in Path("/proc/self/mounts").read_text().splitlines():
            if str(folder) in line:
                subprocess.run(["umount", "-l", line.split()[1]], check=False)


def _answers(url: str) -> bool:
    try:
        Engine(url).close()
    except ConfigError:
        return False
    return True


def test_an_engine_that_is_restarted_loses_its_sandboxes_and_no_more(
    engine: Engine, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("only root can start a second engine, with dockerd")
    folder = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())  # a short path: it holds a socket
    try:
        with engine_of_our_own(folder, engine) as run_again:
            monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/sock")
            with docker(folder / "scratch", DockerOptions(pool=1)) as provider:
                with start(provider, image) as box:
                    box.act("echo one", timeout_s=5)
                    stopping = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill $(cat {folder}/pid)"])
                    with pytest.raises(SandboxError):
                        box.act("sleep 60", timeout_s=60)
                    stopping.wait()
                assert eventually(lambda: not _answers(f"unix://{folder}/sock"), 20)
                with pytest.raises(SandboxError), start(provider, image):
                    pass
                run_again()
                with start(provider, image) as fresh:
                    assert fresh.act("echo two", timeout_s=5).output == b"two\n"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- what a sandbox may do to itself


def test_a_full_disk_is_an_observation(provider: DockerProvider, image: Image) -> None:
    with start(provider, image) as box:
        head = box.act("git rev-parse HEAD", timeout_s=5).output.decode().strip()
        seen = box.act("head -c 200000000 /dev/zero > /dev/shm/x; echo code $?", timeout_s=20)
        assert b"No space left" in seen.output
        box.act("echo x >> mod.py", timeout_s=5)
        assert b"+x" in box.working_diff(head)


def test_memory_bombs_end_and_the_sandbox_goes_on(engine: Engine, image: Image, tmp_path: Path) -> None:
    bombs = (
        "python3 -c \"b = bytearray(10**9); print('had it')\"",
        "tail /dev/zero",
        "a=$(yes); echo had it",
        "for i in 1 2 3 4 5 6; do tail /dev/zero & done; wait; exit 9",
    )
    with docker(tmp_path, DockerOptions(pool=0), memory_bytes=100 * 1024**2) as provider, start(provider, image) as box:
        for bomb in bombs:
            seen = box.act(bomb, timeout_s=20)
            assert b"had it" not in seen.output
            assert box.act("echo next", timeout_s=10).output == b"next\n", bomb


FLOOD = """
import os, time
while True:
    try:
        if os.fork() == 0:
            break
    except OSError:
        break
time.sleep(30)
"""


def test_a_flood_that_stays_leaves_room_for_the_next_step(engine: Engine, image: Image, tmp_path: Path) -> None:
    with docker(tmp_path, DockerOptions(pool=0), processes=64) as provider, start(provider, image) as box:
        assert image.tree is not None
        canary(World("docker", lambda limits: provider, provider, image, "", box, tmp_path))
        box.write_file("/tmp/flood.py", FLOOD.encode())
        # The shell itself waits, so that what ends with the step is one process, and one can be started after it.
        box.act("python3 /tmp/flood.py >/dev/null 2>&1 & while ((SECONDS < 2)); do :; done", timeout_s=10)
        for _ in range(3):
            assert box.act("echo next", timeout_s=10).output == b"next\n"
        assert b"fork" in box.act("ls | cat | cat | cat | cat", timeout_s=2).output
        assert box.working_diff("HEAD") == b""


def test_a_hundred_megabytes_of_output_come_through(provider: DockerProvider, image: Image) -> None:
    with start(provider, image) as box:
        seen = box.act("head -c 100000000 /dev/zero | tr '\\0' z", timeout_s=60)
        assert (seen.size, len(seen.output), seen.exit_code) == (100_000_000, 64 * 1024, 0)


def test_ways_out_are_closed(provider: DockerProvider, image: Image) -> None:
    with start(provider, image) as box:
        for attempt in (
            "ls /var/run/docker.sock /run/docker.sock",
            "mount -t tmpfs none /mnt",
            "mount --bind / /mnt",
            "mknod /tmp/disk b 8 0",
            "mknod /tmp/disk b 254 0",
            "unshare --mount true",
            "unshare --user --map-root-user true",
            "nsenter --target 1 --mount --root=/proc/1/root mount -o remount,rw /opt/forkroll",
            "echo x > /opt/forkroll/runner.bash",
            "touch /opt/forkroll/steps/x",
            "umount /opt/forkroll",
            "echo 1 > /proc/sys/kernel/sysrq",
            "echo '|/bin/true' > /proc/sys/kernel/core_pattern",
            "echo x > /sys/kernel/mm/transparent_hugepage/enabled",
            "mkdir $(ls -d /sys/fs/cgroup/memory 2>/dev/null || echo /sys/fs/cgroup)/x",
            "echo 0 > /proc/self/oom_score_adj && echo -500 > /proc/self/oom_score_adj",
            "chroot / true",
            "dmesg",
            "hostname other",
            "date -s 2001-01-01",
            'python3 -c "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"',
            "python3 -c \"import socket; socket.getaddrinfo('example.org', 80)\"",
        ):
            assert box.act(attempt, timeout_s=10).exit_code != 0, attempt
        status = box.act("grep -E 'NoNewPrivs|CapEff|Seccomp:' /proc/self/status", timeout_s=5).output.split()
        assert status == [b"CapEff:", b"00000000000004fb", b"NoNewPrivs:", b"1", b"Seccomp:", b"2"]


def test_a_suid_program_gains_nothing(engine: Engine, image: Image, tmp_path: Path) -> None:
    with docker(tmp_path, DockerOptions(pool=0, user="1234:1234")) as provider, start(provider, image) as box:
        assert box.act("id -u; id -g; echo $HOME; umask", timeout_s=5).output == b"1234\n1234\n/\n0022\n"
        assert box.act("su -c id root </dev/null", timeout_s=5).exit_code != 0
        assert box.act("echo x >> mod.py && touch new && git add -A", timeout_s=5).exit_code == 0
        assert box.act("touch /usr/x", timeout_s=5).exit_code != 0
        assert b"+x" in box.working_diff("HEAD")
        remove_images(engine, provider)


def remove_images(engine: Engine, provider: DockerProvider) -> None:
    for one in provider.facts["images"].values():
        with contextlib.suppress(SandboxError):
            engine.remove_image(one["id"])


# --- what is left behind


DRIVER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from harness.sandbox.docker import DockerOptions, DockerProvider
from harness.sandbox.protocol import Image, SandboxLimits
from harness.sandbox.shell import Ran
scratch, tree, marker, step = sys.argv[1:]
options = DockerOptions(pool=1, run=scratch)
with DockerProvider(limits=SandboxLimits(), scratch=Path(scratch), options=options) as provider:
    with provider.start(Image("driven", Path(tree))) as box:
        box.act(f"bash -c 'exec -a {marker} sleep 600' >/dev/null 2>&1 &", timeout_s=5)
        print("ready", flush=True)
        box.act(f"bash -c 'exec -a {marker} sleep {step}'", timeout_s=600)
        time.sleep(600)
"""


@contextmanager
def a_driver(scratch: Path, image: Image, *, step: int) -> Iterator["subprocess.Popen[str]"]:
    _, marker = sleeper()
    command = [sys.executable, "-c", DRIVER, str(scratch), str(image.tree), marker, str(step)]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert driver.stdout is not None and driver.stdout.readline() == "ready\n"
        assert eventually(lambda: len(alive(marker)) >= 2)
        yield driver
    finally:
        driver.kill()
        driver.communicate()
    assert eventually(lambda: not alive(marker), 20), "something of the sandbox lives on"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("step", [0, 600], ids=["between steps", "in a step"])
def test_no_container_outlives_its_driver(
    number: signal.Signals, step: int, engine: Engine, provider: DockerProvider, image: Image, tmp_path: Path
) -> None:
    with a_driver(tmp_path, image, step=step) as driver:
        label = f"forkroll.pid={driver.pid}"
        assert engine.labelled([label])
        driver.send_signal(number)
        driver.wait(20)
        assert eventually(lambda: not engine.labelled([label]) and not list(tmp_path.iterdir()), 20)


def test_clean_removes_what_a_dead_driver_left_and_nothing_else(
    engine: Engine, provider: DockerProvider, image: Image, tmp_path: Path
) -> None:
    with start(provider, image) as box, a_driver(tmp_path, image, step=600) as driver:
        assert reap_containers(str(tmp_path)) == []  # it lives
        children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
        for pid in (*map(int, children), driver.pid):  # with the process that would have cleaned up after it
            os.kill(pid, signal.SIGKILL)
        driver.wait()
        assert reap_containers(str(tmp_path / "another run")) == []
        left = [one.id[:12] for one in engine.labelled([f"forkroll.pid={driver.pid}"])]
        reaped = reap_containers(str(tmp_path))
        assert reaped and set(reaped) <= set(left)
        assert eventually(lambda: not engine.labelled([f"forkroll.pid={driver.pid}"]), 20)
        assert box.act("echo mine", timeout_s=5).output == b"mine\n"


def test_the_process_id_alone_makes_no_owner(engine: Engine, provider: DockerProvider, image: Image) -> None:
    """A container of an owner that is gone, whose process id another process has now: ours."""
    provider.prepare(image)
    (facts,) = provider.facts["images"].values()
    stale = {**Owner("a dead run").labels(), "forkroll.pid_start": "1"}
    elsewhere = {**stale, "forkroll.pid_space": "another machine"}
    for labels, expected in ((stale, 1), (elsewhere, 0)):
        container = engine.create({"Image": facts["id"], "Entrypoint": ["true"], "Labels": labels})
        try:
            assert len(reap_containers("a dead run")) == expected
        finally:
            engine.remove(container)


def test_a_closed_provider_has_no_containers(engine: Engine, image: Image, tmp_path: Path) -> None:
    with docker(tmp_path, DockerOptions(pool=2, run="closed")) as provider:
        with start(provider, image) as box:
            assert box.digest_method in ("overlay", "inside")
            labels = next(one.labels for one in engine.labelled(["forkroll.run=closed"]) if one.id == container_of(box))
        assert labels["forkroll.pid"] == str(os.getpid())
        assert labels["forkroll.image"] == image.name
    assert engine.labelled(["forkroll.run=closed"]) == []
    assert list(tmp_path.iterdir()) == []


# --- images


def test_an_image_that_holds_the_tree_is_used_as_it_is(
    engine: Engine, provider: DockerProvider, image: Image, tmp_path: Path
) -> None:
    """The tree lies elsewhere, under the image's own environment and user; its git objects are safe all the same."""
    prepared = provider.prepare(image)
    assert image.tree is not None
    head = (image.tree / ".git/refs/heads/main").read_text().strip()
    (facts,) = provider.facts["images"].values()
    settings = {
        "Image": facts["id"],
        "Entrypoint": ["true"],
        "Env": ["PATH=/srv/bin:/usr/bin:/bin", "BASH_ENV=/etc/agent.bash", "OF_IMAGE=yes"],
        "User": "nobody",
        "Volumes": {},
    }
    container = engine.create(settings)
    try:
        archive = subprocess.check_output(
            "mkdir -p etc srv; cp -a $TREE srv/repo; echo 'export SOURCED=1' > etc/agent.bash; tar c etc srv",
            shell=True,
            cwd=tmp_path,
            env={**os.environ, "TREE": str(image.tree)},
        )
        engine.unpack(container, archive)
        made = engine.commit(container, repository="forkroll-tree", tag="holds-the-tree", labels={})
    finally:
        engine.remove(container)
    try:
        task = Image("holds the tree", None, {"OF_TASK": "1"}, docker="forkroll-tree:holds-the-tree", cwd="/srv/repo")
        for layers in (True, False):
            with docker(tmp_path / str(layers), DockerOptions(pool=0, layers=layers)) as other:
                with start(other, task) as box, start(provider, image) as same:
                    told = box.act("pwd; id -un; echo $PATH $OF_IMAGE $OF_TASK $SOURCED", timeout_s=5).output
                    assert told == b"/srv/repo\nroot\n/srv/bin:/usr/bin:/bin yes 1 1\n"
                    assert box.digest_method == ("overlay" if layers and os.geteuid() == 0 else "inside")
                    assert box.digest() == same.digest() is not None
                    for edited in (box, same):
                        edited.act("echo x >> mod.py; rm -rf pkg; mkdir pkg; git add -A", timeout_s=5)
                        edited.act("git checkout -q --detach", timeout_s=5)
                    assert box.digest() == same.digest() is not None
                    if layers and os.geteuid() == 0:
                        box.act("rm -rf .git", timeout_s=5)
                    assert box.working_diff(head) == same.working_diff(head) != b""
                    assert other.prepare(task).head == prepared.head == head
                assert other.facts["images"]["holds the tree"]["id"] == made
    finally:
        engine.remove_image("forkroll-tree:holds-the-tree")


def test_a_tree_is_put_into_an_image_once(engine: Engine, provider: DockerProvider, image: Image) -> None:
    first = provider.prepare(image)
    with docker(first.folder.parent / "again", DockerOptions(pool=0)) as other:
        other.prepare(image)
        assert other.facts["images"] == provider.facts["images"]


def test_times_of_a_tree_are_kept(provider: DockerProvider, tmp_path: Path, engine: Engine) -> None:
    tree = tmp_path / "tree"
    make_tree(tree)
    for path in (*tree.rglob("*"), tree):
        os.utime(path, (1_700_000_000, 1_700_000_000), follow_symlinks=False)
    with docker(tmp_path / "scratch", DockerOptions(pool=0)) as other:
        with start(other, Image("times", tree)) as box:
            seen = box.act("find . -printf '%T@ %u\\n' | sort | uniq -c", timeout_s=5).output.split()
            assert seen[1:] == [b"1700000000.0000000000", b"root"]
        remove_images(engine, other)


def test_tree_keys_tell_trees_apart(tmp_path: Path) -> None:
    make_tree(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b", symlinks=True)
    assert tree_key(tmp_path / "a") == tree_key(tmp_path / "b")
    seen = {tree_key(tmp_path / "b")}
    edits = ("chmod 600 mod.py", "echo x >> mod.py", "rm link; ln -s x link", "mv pkg p", "touch -d 2001-01-01 mod.py")
    for edit in (*edits, "mkdir e", "ln -s pkg dirlink"):
        subprocess.run(["bash", "-c", edit], cwd=tmp_path / "b", check=True)
        assert tree_key(tmp_path / "b") not in seen
        seen.add(tree_key(tmp_path / "b"))


def test_users_are_found_in_the_image() -> None:
    passwd = b"root:x:0:0:root:/root:/bin/bash\nagent:x:1001:1002:,,:/home/agent:/bin/sh\nbroken\n"
    assert (find_user("agent", passwd).uid, find_user("agent", passwd).gid) == (1001, 1002)
    assert find_user("1001", passwd).home == "/home/agent"
    assert (find_user("agent:7", passwd).gid, find_user("5:6", passwd)) == (7, find_user("5:6", b""))
    with pytest.raises(SandboxError, match="no user 'nobody'"):
        find_user("nobody", passwd)


ORDINARY = """
import os, sys, tempfile
from pathlib import Path
from harness.sandbox.docker import DockerOptions, DockerProvider
from harness.sandbox.protocol import Image, SandboxLimits
from tests.contracts.sandbox_contract import make_tree
made = tempfile.TemporaryDirectory()
folder = Path(made.name)
head = make_tree(folder / "tree")
image = Image("ordinary", folder / "tree")
options = DockerOptions(pool=0, run="ordinary")
with DockerProvider(limits=SandboxLimits(), scratch=folder / "scratch", options=options) as provider:
    with provider.start(image) as box:
        start = box.digest()
        ended = box.act("echo x >> mod.py; sleep 60", timeout_s=1).ended
        assert (os.getuid(), ended, box.digest_method) == (65534, "time_limit", "inside")
        assert b"+x" in box.working_diff(head)
        assert box.snapshot(folder / "snapshot.tar")
        digest = box.digest()
    with provider.start(image, snapshot=folder / "snapshot.tar") as box:
        assert box.digest() == digest != start
    print("image", provider.facts["images"]["ordinary"]["id"])
made.cleanup()
"""


def test_an_ordinary_user_of_the_engine_has_all_but_the_layers(engine: Engine) -> None:
    """Processes are not his to signal, nor files his to read: both go through the engine."""
    access = os.stat(engine.socket_path)
    if os.geteuid() != 0 or not access.st_mode & 0o020:
        pytest.skip("only root can become a user of the group that may use the engine")
    python = "/usr/bin/python3"  # the one that runs us may lie where others do not come
    versions = [sys.executable, python], "import sys; print(sys.version_info[:2])"
    seen = [subprocess.run([name, "-c", versions[1]], capture_output=True, text=True).stdout for name in versions[0]]
    if seen[0] != seen[1]:
        pytest.skip(f"no Python here that another user can run: {seen}")
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    done = subprocess.run(
        [python, "-B", "-c", ORDINARY],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        user=65534,
        group=access.st_gid,
        extra_groups=[],
        env={"PATH": os.defpath, "HOME": "/nonexistent", "PYTHONPATH": f"{ROOT}:{packages}", "DOCKER_HOST": engine.url},
    )
    assert done.returncode == 0, done.stderr
    assert engine.labelled(["forkroll.run=ordinary"]) == []
    engine.remove_image(done.stdout.split()[-1])


# --- pulling


def test_an_image_that_cannot_be_pulled_is_a_sandbox_error(engine: Engine, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    task = Image("absent", None, docker=f"127.0.0.1:{port}/absent:1")
    refused = pytest.raises(SandboxError, match=r"pulling 127.0.0.1:\d+/absent:1: .*refused")
    with docker(tmp_path, DockerOptions(pool=0)) as provider, refused, start(provider, task):
        pass


def test_a_pull_has_its_own_time_budget(engine: Engine, tmp_path: Path) -> None:
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        task = Image("slow", None, docker=f"127.0.0.1:{silent.getsockname()[1]}/slow")
        options = DockerOptions(pool=0, pull_seconds=1.0, say=said.append)
        with docker(tmp_path, options) as provider:
            started = time.monotonic()
            with pytest.raises(SandboxError, match="took over 1 s"), start(provider, task):
                pass
            assert time.monotonic() - started < 5
    assert said == [f"pulling {task.docker}"]


# --- the engine is not as it should be


def test_no_engine_is_a_config_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("docker")
    for url, words in ((f"unix://{tmp_path}/none", "no engine answers"), ("tcp://127.0.0.1:1", "on this machine")):
        monkeypatch.setenv("DOCKER_HOST", url)
        with pytest.raises(ConfigError, match=words):
            DockerProvider(limits=SandboxLimits(), scratch=tmp_path)
        assert words in str(available())
        assert reap_containers(None) == []


def test_a_study_that_lacks_its_base_image_is_a_config_error(engine: Engine, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        name = f"127.0.0.1:{closed.getsockname()[1]}/absent"
    study = load_study("docker-pocket", [f"sandbox.image={name}"])
    with pytest.raises(ConfigError, match="absent"), open_provider(study, tmp_path, allow_unsandboxed=False):
        pass


def test_the_engine_script_names_the_engine_or_says_why_not(engine: Engine, tmp_path: Path) -> None:
    script = str(ROOT / "scripts" / "docker-engine")
    environment = {**os.environ, "DOCKER_HOST": engine.url, "FORKROLL_ENGINE": str(tmp_path / "none")}
    for what in ("start", "env"):
        told = subprocess.run([script, what], capture_output=True, text=True, env=environment, check=True).stdout
        assert told == f"export DOCKER_HOST={engine.url}\n"
    stopped = subprocess.run([script, "stop"], capture_output=True, text=True, env=environment, check=True)
    assert "no engine of ours" in stopped.stderr
    blocked = {**environment, "DOCKER_HOST": f"unix://{tmp_path}/none", "FORKROLL_ENGINE": "/proc/none"}
    if os.path.exists("/var/run/docker.sock"):
        pytest.skip("another engine answers at the default socket")
    failed = subprocess.run([script, "start"], capture_output=True, text=True, env=blocked, check=False)
    assert (failed.returncode, failed.stdout) == (3, "")
    assert failed.stderr.startswith("docker-engine: no Docker here: ") and failed.stderr.count("\n") == 1


# --- state from inside


@pytest.mark.parametrize("lister", ["find", "ls"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(st.lists(EDITS, min_size=1, max_size=5), min_size=1, max_size=3))
def test_the_digest_from_inside_is_the_one_from_outside(
    lister: str, provider: DockerProvider, edited: Image, rounds: list[list[str]]
) -> None:
    with start(provider, edited) as box:
        if box.digest_method != "overlay":
            pytest.skip("the engine's layers are closed to us")
        inside = InsideTree(own(box), "/testbed", finds=lister == "find")
        assert inside.digest() == box.digest() is not None
        for edits in rounds:
            box.act("; ".join(f"{{ {edit}; }}" for edit in edits), timeout_s=20)
            assert inside.digest() == box.digest() is not None


def test_odd_names_and_kinds_count_inside(provider: DockerProvider, image: Image) -> None:
    script = r"""
    printf 1 > "$(printf 'new\nline')"; printf 1 > "$(printf 'tab\tq\"uote\\\\back')"; printf 1 > ' -> '
    ln -s ' -> x' 'a -> b'; ln -s "$(printf 'to\n"x"')" "$(printf 'l\351nk')"; mkfifo pipe
    mkdir "$(printf 'd\nir:')" './"'; printf 1 > "$(printf 'd\nir:')/f"; printf 1 > ./--help; printf 1 > '*'
    python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('sock')"
    chmod 7751 mod.py; chmod 1777 pkg; chmod 000 run.sh
    printf 1 > 'total 4'; mkdir .git2; printf 1 > x.pycx; printf 1 > .hidden
    """
    with start(provider, image) as box:
        assert box.act(script, timeout_s=10).exit_code == 0
        for finds in (True, False):
            assert InsideTree(own(box), "/testbed", finds=finds).digest() == box.digest() is not None
        names = (".git/HEAD", ".git/refs/heads/main")
        for damage in (
            *(f"cp {name} kept; printf 'junk ' > {name}; ln -sf /etc/hosts {name}" for name in names),
            "rm -rf .git/refs; ln -s /tmp .git/refs",
            "mv .git gone; ln -s gone .git",
            "rm -rf .git; echo 'gitdir: gone' > .git",
        ):
            box.act(damage, timeout_s=5)
            assert InsideTree(own(box), "/testbed").digest() == box.digest() is not None, damage


# --- snapshots


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(EDITS, min_size=1, max_size=6), layers=st.booleans())
def test_a_snapshot_goes_from_any_back_end_to_any(
    edits: list[str], layers: bool, provider: DockerProvider, edited: Image, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if (why := namespaces_available()) is not None:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("any")
    with (
        docker(folder / "docker", DockerOptions(pool=0, layers=layers)) as another,
        NamespaceProvider(limits=SandboxLimits(), scratch=folder / "namespace") as namespace,
    ):
        for taker in (another, namespace):
            snapshot = folder / f"{taker.name}.tar"
            with taker.start(edited) as box:
                box.act("; ".join(f"{{ {edit}; }}" for edit in edits), timeout_s=20)
                digest = box.digest()
                assert box.snapshot(snapshot) or not layers
            for giver in (provider, namespace) if snapshot.exists() else ():
                with giver.start(edited, snapshot=snapshot) as box:
                    assert box.digest() == digest, (taker.name, giver.name)


def test_every_layer_of_an_image_counts(engine: Engine, provider: DockerProvider, image: Image, tmp_path: Path) -> None:
    """A layer may hide what those below it have: what a snapshot deletes is what the image shows."""
    if os.geteuid() != 0:
        pytest.skip("the engine's layers are closed to us")
    with start(provider, image) as box:
        box.act("rm -rf pkg && mkdir pkg && echo z > pkg/z; rm notes.txt; rm mod.py && mkdir mod.py", timeout_s=5)
        engine.commit(container_of(box), repository="forkroll-tree", tag="two-layers", labels={})
        whole = box.digest()
    task = Image("two layers", None, docker="forkroll-tree:two-layers")
    try:
        with docker(tmp_path / "scratch", DockerOptions(pool=0)) as other, start(other, task) as box:
            assert (box.digest(), box.digest_method) == (whole, "overlay")
            box.act("mkdir pkg/b.py notes.txt; rm pkg/z run.sh; rmdir mod.py; echo f > mod.py", timeout_s=5)
            assert box.snapshot(tmp_path / "snapshot.tar")
            with archive.read(tmp_path / "snapshot.tar") as contents:
                assert list(contents.deleted) == [b"testbed/mod.py", b"testbed/pkg/z", b"testbed/run.sh"]
    finally:
        engine.remove_image("forkroll-tree:two-layers")


def test_a_cached_image_that_a_container_uses_is_not_offered_for_removal(
    engine: Engine, provider: DockerProvider, image: Image, tmp_path: Path
) -> None:
    with start(provider, image) as box:
        for tag in ("idle", "busy"):
            engine.commit(container_of(box), repository="forkroll-tree", tag=tag, labels={"tag": tag})
    task = Image("busy", None, docker="forkroll-tree:busy")
    try:
        with docker(tmp_path / "scratch", DockerOptions(pool=0)) as other, start(other, task):
            unused = engine.unused("forkroll-tree")
        assert "forkroll-tree:idle" in unused
        assert "forkroll-tree:busy" not in unused
        assert "forkroll-tree:busy" in engine.unused("forkroll-tree")
    finally:
        engine.remove_image("forkroll-tree:idle")
        engine.remove_image("forkroll-tree:busy")


def test_what_no_layer_holds_is_not_captured(provider: DockerProvider, image: Image, tmp_path: Path) -> None:
    for layers in (True, False):
        with docker(tmp_path / str(layers), DockerOptions(pool=0, layers=layers)) as other, start(other, image) as box:
            box.act("echo x >> mod.py", timeout_s=5)
            assert box.snapshot(tmp_path / f"{layers}.tar")
            for place in ("/dev/shm/x", "/dev/x", "/dev/shm/.x"):
                box.act(f"echo x > {place}", timeout_s=5)
                assert not box.snapshot(tmp_path / "no.tar")
                assert box.change_mark() is None
                box.act(f"rm {place}", timeout_s=5)
            assert box.snapshot(tmp_path / f"{layers}-again.tar")
    assert not (tmp_path / "no.tar").exists()


def test_a_foreign_snapshot_is_refused_before_anything_is_changed(
    provider: DockerProvider, image: Image, tmp_path: Path
) -> None:
    import io
    import tarfile

    for name in ("dev/shm/x", "etc/hosts", "opt/forkroll/steps/x"):
        with tarfile.open(tmp_path / "foreign.tar", "w") as tar:
            tar.addfile(tarfile.TarInfo(".forkroll-deleted"), io.BytesIO())
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
        refused = pytest.raises(SandboxError, match=r"foreign.tar: it holds")
        with refused, start(provider, image, snapshot=tmp_path / "foreign.tar"):
            pass


# --- a study


def test_the_fork_table_is_the_one_of_namespaces(engine: Engine, tmp_path: Path) -> None:
    if (why := namespaces_available()) is not None:
        pytest.skip(why)
    forkroll = [str(Path(sys.executable).with_name("forkroll"))]
    tables, records = [], []
    for sandbox in ("docker", "namespace"):
        folder = str(tmp_path / sandbox)
        command = ["run", "docker-pocket", "tasks.count=1", f"sandbox={sandbox}", "--run", folder, "--json"]
        done = subprocess.run([*forkroll, *command], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
        tables.append(done.stdout.replace(f'"{sandbox}"', '"the sandbox"'))
        exported = subprocess.check_output([*forkroll, "export", folder], text=True, cwd=tmp_path).strip()
        records.append(Path(exported).read_text().replace(f'"sandbox":"{sandbox}"', '"sandbox":"-"'))
    assert records[0] == records[1]
    assert tables[0] == tables[1]
