"""What the models of the parity test say: one script a behaviour, each for every dialect in which it can be said."""

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import ContextOverflow
from harness.model.protocol import Completion
from harness.record import ToolCall, Usage
from harness.scaffold.mini import SUBMIT_WORD

Turn = Completion | Exception
SUBMIT = f"echo {SUBMIT_WORD}"
FENCES = {
    "swebench_backticks": "```mswea_bash_command\n{}\n```",
    "swebench_xml": "<mswea_bash_command>{}</mswea_bash_command>",
    "first": "```bash\n{}\n```",
}
"""How an action is written in text; `first`: by the first generation."""
TEXT = ("swebench_backticks", "swebench_xml")
CONFIGS = ("swebench", *TEXT)


ARGV = re.compile(r"Command '(\[.*?\])' timed out after", re.DOTALL)


def command_alone(text: str) -> str:
    """`text` with the model's command in place of the whole `docker exec` line, which mini-SWE-agent shows after a
    timeout."""
    return ARGV.sub(lambda found: f"Command '{ast.literal_eval(found[1])[-1]}' timed out after", text)


def reply(text: str, *calls: tuple[str, str], finish: str = "stop", reasoning: str | None = None) -> Completion:
    made = tuple(ToolCall(id=f"c{n}", name=name, arguments=arguments) for n, (name, arguments) in enumerate(calls))
    return Completion(text=text, tool_calls=made, finish_reason=finish, usage=Usage(), model="m", reasoning=reasoning)


def bash(command: Any) -> tuple[str, str]:
    return "bash", json.dumps({"command": command})


def says(config: str, command: str) -> Completion:
    """A reply with one command, as the configuration wants it."""
    if config == "swebench":
        return reply("A thought.", bash(command), finish="tool_calls")
    return reply("A thought.\n\n" + FENCES[config].format(command))


@dataclass(frozen=True)
class Script:
    """Turns of a model; the last is repeated until a limit is reached."""

    turns: Callable[[str], Sequence[Turn]]
    """Of a configuration's name."""
    configs: Sequence[str] = CONFIGS
    step_limit: int = 12
    timeout: int = 60
    """Of an action, in seconds."""


def commands(*lines: str, configs: Sequence[str] = CONFIGS) -> Script:
    """Says each line, then submits."""
    return Script(lambda config: [says(config, line) for line in (*lines, SUBMIT)], configs, len(lines) + 1)


def too_slow(line: str, configs: Sequence[str] = ("swebench",)) -> Script:
    """Says a line that does not end in time, then, so that nothing else need be in time, only prose."""
    return Script(lambda config: [says(config, line), reply("Prose.")], configs, step_limit=2, timeout=3)


def unreadable(*turns: Turn) -> Script:
    """Says what cannot be read, each time followed by something that can, then submits."""

    def all_turns(config: str) -> list[Turn]:
        between = [turn for bad in turns for turn in (bad, says(config, "echo and on"))]
        return [*between, says(config, SUBMIT)]

    return Script(all_turns, ("swebench",), 2 * len(turns) + 1)


def unreadable_text(*texts: str, finish: str = "stop") -> Script:
    def all_turns(config: str) -> list[Turn]:
        fence = FENCES[config]
        bad = [reply(text.replace("BLOCK", fence.format("echo x")), finish=finish) for text in texts]
        return [*(turn for one in bad for turn in (one, says(config, "echo and on"))), says(config, SUBMIT)]

    return Script(all_turns, TEXT, 2 * len(texts) + 1)


SCRIPTS: Mapping[str, Script] = {
    "plain work": commands("echo hi > new.txt", "cat new.txt", "ls", "pwd", "cat <<'E'\nthree\n\nlines\nE"),
    "exit codes": commands("exit 3", "false", "exit 255", "no-such-command", "ls /no/such/folder", "echo 'open"),
    "killed": commands("kill -9 $$", "bash -c 'kill -SEGV $$'", "kill -TERM $$", "echo a; kill -9 $$", "exit 137"),
    "no output": commands("true", ":", "# nothing", "printf x", "printf '\\n\\n'", "printf '  x  '"),
    "both streams": commands("echo out; echo err >&2; echo out", "echo err >&2; exit 1"),
    "nothing to read": commands("cat", "read x; echo $?"),
    "a folder does not last": commands("cd /tmp && pwd", "pwd", "export A=1", "echo a$A"),
    "variables": commands("echo $PAGER $LESS $PIP_PROGRESS_BAR $TQDM_DISABLE ${BASH_ENV-unset}"),
    "long": commands("seq 1 5000", "seq 1 2000", "printf '%9999s' x", "printf '%10000s' x", "printf '%10001s' x"),
    "long in several bytes": commands(
        "printf 'é%.0s' $(seq 9999)", "printf 'é—🙂%.0s' $(seq 5000)", "seq -f 'été %g' 4000"
    ),
    "longer than is kept": commands(
        "seq 1 60000", "yes 'é—🙂' | head -n 40000", "seq 1 60000 | tr '0-9' '\\200-\\211'", "head -c 200000 /dev/zero"
    ),
    "longer than is kept, other line ends": commands(
        "yes $'\\u00e9\\r' | head -n 60000", "yes x | head -n 90000 | tr '\\n' '\\r'", "yes $'\\r\\r' | head -n 70000"
    ),
    "line ends": commands("printf 'a\\rb\\r\\nc\\n\\rd\\r'", "printf '10%%\\r20%%\\r\\n'", "printf '\\r\\n\\r\\n'"),
    "not text": commands(
        "printf '\\377\\376 ok \\303'", "printf '\\355\\240\\200'", "printf 'a\\0b'", "printf '\\033[1mx\\033[0m\\a'"
    ),
    "time limit": too_slow("echo part; sleep 50 # 'quoted' \"twice\"", ("swebench", "swebench_backticks")),
    "time limit, other line ends": too_slow("printf 'a\\rb\\r\\nc'; sleep 50"),
    "time limit after the word": too_slow(f"{SUBMIT}; sleep 50"),
    "odd commands": commands("", "   echo spaced   ", "\n\necho lines\n\n", "echo 'é 🙂'", "echo " + "x" * 3000),
    # Our program `docker` waits for whoever holds the output, the real one does not.
    "something in the background": commands("sleep 9 & echo 1", "echo 2", configs=()),
    "very long command": commands("true " + "x" * 100_000),
    "nul in a command": Script(lambda config: [says(config, "echo a\0b"), says(config, SUBMIT)]),
    "submits a patch": commands(f"printf 'diff --git a b\\n+x\\n' > patch.txt; {SUBMIT} && cat patch.txt"),
    "submits after blank lines": commands(f"echo; echo '  '; printf '  '; {SUBMIT}; echo patch"),
    "submits with odd line ends": commands(f"printf '{SUBMIT_WORD}\\r\\na\\rb\\r\\nc'"),
    "submits with odd separators": commands(f"printf '{SUBMIT_WORD}\\fa\\x1cb'"),
    "submits without a line end": commands(f"printf {SUBMIT_WORD}"),
    "submits what is not text": commands(f"{SUBMIT}; printf '\\377\\n'"),
    "the word elsewhere": commands(
        f"{SUBMIT}; false",
        f"false && {SUBMIT}",
        f"echo first; {SUBMIT}",
        f"echo x {SUBMIT_WORD}",
        f"echo {SUBMIT_WORD}_NOT",
        f"{SUBMIT} again",
        "echo MINI_SWE_AGENT_FINAL_OUTPUT",
        f"{SUBMIT}; kill -9 $$",
    ),
    "the limit": Script(lambda config: [says(config, "echo on")], step_limit=3),
    "no call": unreadable(reply("I think."), reply("")),
    "cut before the call": unreadable(reply("I th", finish="length"), reply("I th", finish="tool_calls")),
    "cut in the call": unreadable(reply("", ("bash", '{"command": "ec'), finish="length")),
    "arguments that are no JSON": unreadable(
        reply("", ("bash", "{"), finish="tool_calls"),
        reply("", ("bash", ""), finish="tool_calls"),
        reply("", ("bash", '{"command": ls}')),
        reply("", ("bash", '{"command": "a\nb"}')),
    ),
    "arguments of another form": unreadable(
        *(reply("", ("bash", text)) for text in ("[]", '["command"]', '"command"', "null", "5", '{"cmd": "ls"}'))
    ),
    "another tool": unreadable(
        reply("", ("python", '{"command": "ls"}')), reply("", ("python", "{")), reply("", ("Bash", "{}"))
    ),
    "one call of two is bad": unreadable(
        reply("", bash("echo ran"), ("bash", "{")), reply("", ("bash", "[]"), bash("echo ran"), ("python", "{}"))
    ),
    "several calls": Script(
        lambda config: [
            reply("Two.", bash("echo 1 > several"), bash("cat several"), finish="tool_calls"),
            reply("", bash("exit 4"), bash("echo still"), bash("seq 1 4000"), finish="tool_calls"),
            reply("", bash(SUBMIT)),
        ],
        ("swebench",),
    ),
    "submits amid several calls": Script(
        lambda config: [reply("", bash("echo 1"), bash(f"{SUBMIT}; echo p"), bash("echo never > never"))],
        ("swebench",),
    ),
    "reasoning": Script(
        lambda config: [
            reply("", bash("echo 1"), reasoning="Because."),
            reply("", bash(SUBMIT)),
        ],
        ("swebench",),
    ),
    "reasoning in text": Script(
        lambda config: [
            reply(FENCES[config].format("echo 1"), reasoning="Because."),
            says(config, SUBMIT),
        ],
        TEXT,
    ),
    "no block, two blocks": unreadable_text("Prose.", "", "BLOCK and BLOCK", "```bash\nls\n```", "```\nls\n```"),
    "cut in the block": unreadable_text("```mswea_bash_command\nec", "<mswea_bash_command>ec", finish="length"),
    "unreadable thrice": Script(lambda config: [says(config, "echo 1"), reply("Prose.")]),
    "unreadable, but not thrice in a row": Script(
        lambda config: [
            *(reply("Prose."), reply("Prose."), says(config, "echo 1")),
            *(reply("Prose."), reply("Prose."), says(config, SUBMIT)),
        ]
    ),
    "unreadable up to the limit": Script(lambda config: [says(config, "echo 1"), reply("Prose.")], step_limit=3),
    "unreadable thrice at the limit": Script(lambda config: [says(config, "echo 1"), reply("Prose.")], step_limit=4),
    "the context is full": Script(lambda config: [says(config, "echo 1"), ContextOverflow("too long")]),
    "a command that is no text": unreadable(reply("", bash(5)), reply("", bash(["ls"]))),
    "submits more than is kept": commands(f"{SUBMIT}; seq 1 60000"),
}
"""Name -> script. Each leaves the folder fit for the next."""

IN_DOCKER = (
    "plain work",
    "exit codes",
    "killed",
    "variables",
    "longer than is kept",
    "line ends",
    "not text",
    "time limit, other line ends",
    "something in the background",
)
"""Those that a real `docker exec` could answer otherwise than our program does."""
