"""What a simulated model may do: a menu of real bash commands per task, and what a dialogue says about it.

The menu is the same for every profile, so one model's commands mean the same to another: they are matched by
string. Every command prints the same bytes whenever it runs in the same state of the files: listings are sorted,
nothing shows times, sizes of folders or addresses. An edit writes whole files, so it works from any state.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

from harness.model.simulated.tokens import Turn, chunks
from harness.prompting import SUBMIT_WORD
from harness.tasks.pocket import TEST_COMMAND, PocketTask, Version, pocket_tasks

Kind = Literal["list", "read", "search", "tests", "edit", "verify", "diff", "submit", "format_error"]
Dialect = Literal["tool_call", "text"]
Checked = Literal["passed", "failed"]
VERSIONS: tuple[Version, ...] = ("right", "wrong_1", "wrong_2")
SUBMIT_COMMAND = f"echo {SUBMIT_WORD}"

_LISTS = {
    "ls": "ls",
    "find": "find . -name '*.py' | sort",
    "log": "git log --oneline",
    "status": "git status --short --untracked-files=no",  # whether Python left caches behind must not show
}
_READS = {"cat": "cat {}", "sed": "sed -n '1,40p' {}", "head": "head -n 30 {}"}
_PROSE = "The cause seems clear to me, so I will go on from here."
_BROKEN_ARGUMENTS = '{"command": "ls -1'
_EXIT_CODE = re.compile(r"exit code: (-?\d+)\n")
_CALL = re.compile(r'<tool_call>\n\{"name": "bash", "arguments": (.*?)\}\n</tool_call>', re.DOTALL)
_FENCE = re.compile(r"^```bash[ \t]*\n(.*?)\n?^```[ \t]*$", re.DOTALL | re.MULTILINE)


class Entry(NamedTuple):
    """One thing to do."""

    name: str
    """Unique within the menu and alike across tasks, such as `read:cat:0`."""
    kind: Kind
    habit: str
    """What a profile may have a habit of: the name without its position."""
    command: str | None
    """None for a reply that cannot be read."""
    position: int = 0
    """Of the file or the term that it looks at, in the task's own order."""
    version: Version | None = None
    """What an edit puts in place."""
    dialect: Dialect | None = None
    """The only dialect in which it exists; None: both."""


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: it is a key of caches
class Menu:
    """The entries of one task."""

    task: str
    """instance_id; empty for a conversation about nothing known."""
    entries: tuple[Entry, ...]
    faulty: frozenset[int]
    """Positions of the look files that the right edit changes."""

    @cached_property
    def index_of(self) -> Mapping[str, int]:
        """Position of the entry by its command."""
        return {entry.command: at for at, entry in enumerate(self.entries) if entry.command is not None}

    @cached_property
    def texts(self) -> Mapping[Dialect, tuple[str | None, ...]]:
        """The raw text of each entry's span by dialect; None where the dialect lacks it."""
        dialects: tuple[Dialect, ...] = ("tool_call", "text")
        return {dialect: tuple(span_text(entry, dialect) for entry in self.entries) for dialect in dialects}

    @cached_property
    def chunks(self) -> Mapping[Dialect, tuple[tuple[bytes, ...], ...]]:
        """The tokens of each entry's span by dialect; empty where the dialect lacks it."""
        return {
            dialect: tuple(tuple(chunks((text or "").encode())) for text in texts)
            for dialect, texts in self.texts.items()
        }

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The entries' names, in order."""
        return tuple(entry.name for entry in self.entries)


def span_text(entry: Entry, dialect: Dialect) -> str | None:
    """What the model writes after its note to choose `entry`."""
    if entry.dialect not in (None, dialect):
        return None
    if entry.command is None:
        return call_text(_BROKEN_ARGUMENTS) if entry.name == "format_error:call" else _PROSE
    if dialect == "text":
        return f"```bash\n{entry.command}\n```"
    return call_text(json.dumps({"command": entry.command}, ensure_ascii=False))


def call_text(arguments: str, name: str = "bash") -> str:
    """A tool call as raw text; `arguments` is taken as it is."""
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


def call_arguments(text: str) -> list[str]:
    """The arguments of each tool call in a raw text, valid JSON or not."""
    found: list[str] = _CALL.findall(text)
    return found


def _heredoc(opening: str, text: str) -> str:
    word = "EOF"
    while word in text.split("\n"):
        word += "_"
    return f"{opening} <<'{word}'\n{text}{'' if text.endswith(chr(10)) else chr(10)}{word}"


def edit_command(task: PocketTask, version: Version) -> str:
    """Writes every file that any version changes, as it is in `version`."""
    paths = sorted({path for each in VERSIONS for path in task.changed(each)})
    wanted = {**task.start, **task.changed(version)}
    parts = [
        _heredoc(f"cat > {shlex.quote(path)}", wanted[path]) if path in wanted else f"rm -f {shlex.quote(path)}"
        for path in paths
    ]
    return "\n".join(parts)


def _looking(task: PocketTask) -> list[Entry]:
    looks, terms = task.facts["look"], task.facts["search"]
    reads = [
        Entry(f"read:{how}:{at}", "read", f"read:{how}", form.format(shlex.quote(path)), at)
        for at, path in enumerate(looks)
        for how, form in _READS.items()
    ]
    searches = [
        Entry(f"search:{at}", "search", "search", f"grep -rnF {shlex.quote(term)} --include='*.py' . | sort", at)
        for at, term in enumerate(terms)
    ]
    return [*reads, *searches]


def _changing(task: PocketTask) -> list[Entry]:
    edits = [
        Entry(f"edit:{version}", "edit", "edit", edit_command(task, version), at, version)
        for at, version in enumerate(VERSIONS)
    ]
    return [*edits, Entry("verify", "verify", "verify", _heredoc("python -", task.facts["verify"]))]


def _always() -> list[Entry]:
    lists = [Entry(f"list:{how}", "list", f"list:{how}", command) for how, command in _LISTS.items()]
    return [
        *lists,
        Entry("tests", "tests", "tests", TEST_COMMAND),
        Entry("diff", "diff", "diff", "git diff"),
        Entry("submit", "submit", "submit", SUBMIT_COMMAND),
        Entry("format_error:prose", "format_error", "format_error", None),
        Entry("format_error:call", "format_error", "format_error", None, dialect="tool_call"),
    ]


def menu_of(task: PocketTask) -> Menu:
    """The menu of one task."""
    entries = (*_looking(task), *_changing(task), *_always())
    changed = task.changed("right")
    faulty = frozenset(at for at, path in enumerate(task.facts["look"]) if path in changed)
    return Menu(task.facts["instance_id"], entries, faulty)


class Menus:
    """The menus of a set of tasks, found by the issue's first line."""

    def __init__(self, tasks: Mapping[str, PocketTask]) -> None:
        self._tasks = {_title(task.facts["problem_statement"]): task for task in tasks.values()}
        self._made: dict[str, Menu] = {}
        self.unknown = Menu("", tuple(_always()), frozenset())

    def for_text(self, text: str) -> Menu:
        """The menu of the task whose issue `text` shows."""
        title = next((line for line in text.split("\n") if line in self._tasks), None)
        if title is None:
            return self.unknown
        if title not in self._made:
            self._made[title] = menu_of(self._tasks[title])
        return self._made[title]


def _title(statement: str) -> str:
    return statement.strip().split("\n", 1)[0]


@lru_cache(maxsize=1)
def pocket_menus() -> Menus:
    """The menus of the bundled tasks, read once."""
    return Menus(pocket_tasks())


class State(NamedTuple):
    """What a dialogue shows of the work so far; all that a choice depends on."""

    counts: tuple[int, ...]
    """How often each entry was chosen."""
    calls: int = 0
    version: Version = "repo"
    """What the last known edit put in place."""
    tests: Checked | None = None
    """Of the last test run since the last edit; None when there was none."""
    verify: Checked | None = None
    """The same for the verification."""
    caught: frozenset[Version] = frozenset()
    """Versions that failed a check."""
    last: int = -1
    """Position of the last known entry."""


def start_state(menu: Menu) -> State:
    """Before the first call."""
    return State((0,) * len(menu.entries))


def commands_in(turn: Turn, dialect: Dialect) -> list[str]:
    """The commands of an assistant message, in order; empty for one that cannot be read."""
    if dialect == "text":
        blocks: list[str] = _FENCE.findall(turn.text)
        return blocks if len(blocks) == 1 else []
    commands = [_command(arguments) for arguments in call_arguments(turn.text)]
    readable = [command for command in commands if command is not None]
    return readable if len(readable) == len(commands) else []  # one bad call: the harness runs none


def _command(arguments: str) -> str | None:
    try:
        parsed: Any = json.loads(arguments)
    except ValueError:
        return None
    command = parsed.get("command") if isinstance(parsed, dict) else None
    return command if isinstance(command, str) else None


def follow(menu: Menu, state: State, turns: Sequence[Turn], dialect: Dialect) -> State:
    """`state` after one assistant message and the messages that answer it."""
    commands = commands_in(turns[0], dialect)
    answers = [turn.text for turn in turns[1:]]
    state = state._replace(calls=state.calls + 1)
    if not commands:
        wrong = next(at for at, entry in enumerate(menu.entries) if entry.name == "format_error:prose")
        return _counted(state, wrong)
    for position, command in enumerate(commands):
        answer = answers[position] if position < len(answers) else ""
        at = menu.index_of.get(command)
        if at is not None:
            state = _done(menu.entries[at], _counted(state, at), answer)
    return state


def _counted(state: State, at: int) -> State:
    counts = (*state.counts[:at], state.counts[at] + 1, *state.counts[at + 1 :])
    return state._replace(counts=counts, last=at)


def _done(entry: Entry, state: State, answer: str) -> State:
    code = _EXIT_CODE.match(answer)
    if code is None or entry.kind not in ("edit", "tests", "verify"):  # no code: not run, or ended by a limit
        return state
    if entry.version is not None:
        return state._replace(version=entry.version, tests=None, verify=None) if code[1] == "0" else state
    result: Checked = "passed" if code[1] == "0" else "failed"
    state = state._replace(tests=result) if entry.kind == "tests" else state._replace(verify=result)
    failed = result == "failed" and state.version != "repo"
    return state._replace(caught=state.caught | {state.version}) if failed else state
