"""Does vLLM's own parser take what our model cards say? vllm_card_flags.py CARD.yaml...

Runs in an environment that has vLLM. Nothing is started; what needs a GPU is parsed like the rest.
"""

import contextlib
import io
import shlex
import subprocess
import sys
from pathlib import Path

import vllm
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

FORKROLL = Path(__file__).parents[1] / ".venv" / "bin" / "forkroll"


def fault_of(card: str) -> str | None:
    """What the parser says against the card; None when it takes it."""
    shown = subprocess.run(
        [FORKROLL, "serve", "--show", card, "--python", "python"], check=True, capture_output=True, text=True
    )
    words = shlex.split(shown.stdout)
    arguments = words[words.index("vllm.entrypoints.openai.api_server") + 1 :]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    except SystemExit:
        return (said.getvalue().strip().splitlines() or ["refused"])[-1]
    return None


def main(cards: list[str]) -> int:
    faults = {Path(card).stem: fault_of(card) for card in cards}
    for name, fault in faults.items():
        print(f"{name:<32} {fault or 'ok'}")
    print(f"vLLM {vllm.__version__}: {sum(fault is None for fault in faults.values())} of {len(faults)} cards parse")
    return 1 if any(faults.values()) else 0


sys.exit(main(sys.argv[1:]))
