"""See scripts/check_kill."""

import hashlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

FORKROLL = [str(Path(sys.executable).with_name("forkroll"))]
STUDY = "quickstart"


def start(folder: Path) -> "subprocess.Popen[bytes]":
    command = [*FORKROLL, "run", STUDY, "--run", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(folder: Path) -> None:
    process = start(folder)
    _, errors = process.communicate()
    if process.returncode != 0:
        sys.exit(f"run in {folder} ended with {process.returncode}: {errors.decode()}")


def ids(folder: Path) -> Counter[str]:
    """Ids of finished records, read from the lines themselves; a torn last line is none."""
    found: Counter[str] = Counter()
    for path in sorted((folder / "records").glob("*.jsonl")):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                record = json.loads(line)
                found[record["id"]] += record["kind"] != "failure"
    return found


def export(folder: Path) -> bytes:
    done = subprocess.run([*FORKROLL, "export", str(folder)], check=True, capture_output=True, text=True)
    return Path(done.stdout.strip()).read_bytes()


def main(kills: int, seed: int) -> None:
    rng = random.Random(seed)
    work = Path(tempfile.mkdtemp(prefix="forkroll-kill-"))
    calm, killed = work / "calm", work / "killed"
    clock = time.monotonic()
    finish(calm)
    seconds = time.monotonic() - clock
    done, progress, torn = 0, [], 0
    while done < kills:
        process = start(killed)
        time.sleep(rng.uniform(0.2, 2.2 * seconds / kills + 0.8))
        if process.poll() is not None:
            sys.exit(f"the run was over after {done} kills: give fewer kills or a longer study")
        process.send_signal(signal.SIGKILL)
        process.communicate()
        done += 1
        if (killed / "records").is_dir():
            progress.append(sum(ids(killed).values()))
            torn = sum(not path.read_bytes().endswith(b"\n") for path in (killed / "records").glob("*.jsonl"))
    finish(killed)
    want, have = ids(calm), ids(killed)
    one, other = export(calm), export(killed)
    print(f"kills: {done} (seed {seed}); undisturbed run: {seconds:.0f} s, {sum(want.values())} records")
    print(f"records at each kill: {progress}; files with a torn last line: {torn}")
    print(f"missing: {len(want - have)}; twice: {sum(n > 1 for n in have.values())}; strangers: {len(have - want)}")
    print(
        f"canonical export: {len(one)} bytes, sha256 {hashlib.sha256(one).hexdigest()[:16]} undisturbed, "
        f"{hashlib.sha256(other).hexdigest()[:16]} killed"
    )
    if want != have or one != other:
        sys.exit(f"NOT EQUAL; folders kept in {work}")
    print("equal")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 25, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
