"""Processor time of `forkroll --help` and `mini --help`, median of 9 processes each, alternating."""

import os
import statistics
import subprocess
import sys
from pathlib import Path

RUNS = 9
BIN = Path(sys.executable).parent


def cpu_of(command: list[str]) -> float:
    before = os.times()
    subprocess.run(command, check=True, capture_output=True)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def main() -> None:
    commands = {"forkroll --help": [str(BIN / "forkroll"), "--help"], "mini --help": [str(BIN / "mini"), "--help"]}
    for command in commands.values():
        cpu_of(command)
    seen: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(RUNS):
        for name, command in commands.items():
            seen[name].append(cpu_of(command))
    print(f"start-up, processor seconds, median of {RUNS}")
    medians = {name: statistics.median(values) for name, values in seen.items()}
    for name, value in medians.items():
        print(f"  {name:<16} {value:.2f} s")
    print(f"  ratio mini / forkroll: {medians['mini --help'] / medians['forkroll --help']:.1f}")


if __name__ == "__main__":
    main()
