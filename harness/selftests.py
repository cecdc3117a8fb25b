"""`forkroll serve` and `forkroll selftest`: from model cards and addresses to running servers, and what was found."""

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import FrameType

from harness.assemble import open_scaffold, open_tasks, select_tasks
from harness.bundled import cache_folder
from harness.clients import launch
from harness.config import Study, load_study
from harness.determinism import openings
from harness.errors import ConfigError, ModelError, UsageError
from harness.model.keys import read_key
from harness.model.request import RequestForm
from harness.prompting import OwnScaffold
from harness.record import Task
from harness.scaffold.protocol import Dialect, Scaffold
from harness.serving.address import Address
from harness.serving.asking import Asking
from harness.serving.card import ModelCard, load_card
from harness.serving.command import command_of
from harness.serving.selftest import SelfTest, self_test
from harness.serving.server import serving
from harness.tasks.pocket import Pocket

_WATCH_S = 0.5


def command_lines(sources: Sequence[str], python: str | None) -> list[str]:
    """The command that starts each card's server, for a shell."""
    return [command_of(load_card(source), cache=cache_folder(), python=python).line() for source in sources]


def serve(sources: Sequence[str], python: str | None, grace_seconds: float) -> str | None:
    """Serve the cards until SIGINT or SIGTERM (None), or until one server ends by itself (which, and how)."""
    cards = [load_card(source) for source in sources]
    with _signals_interrupt():
        try:
            with serving(cards, replace(launch(python), grace_seconds=grace_seconds)) as servers:
                while True:
                    for server in servers:
                        if (status := server.exit_status()) is not None:
                            return f"{server.card.name}: the server ended, exit status {status}; its log: {server.log}"
                    time.sleep(_WATCH_S)
        except KeyboardInterrupt:
            return None


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt, whatever whoever started us made of them."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class Wanted:
    """How `forkroll selftest` asks."""

    prompts: int
    tokens: int
    study: str | None = None
    """Whose tasks, scaffold and temperature; None: the bundled tasks, our own scaffold, temperature 0."""
    model: str | None = None
    """Name to ask an address for; None: the only one that it serves."""
    api_key_env: str | None = None
    restart: bool = False
    """Whether a server that was started for the test is restarted in it."""
    python: str | None = None


def examine(targets: Sequence[str], wanted: Wanted) -> list[SelfTest]:
    """The self-test of each card or address, one after the other."""
    study = load_study(wanted.study) if wanted.study is not None else None
    cards = {target: load_card(target) for target in targets if not _is_url(target)}
    try:
        return [
            _examine_card(cards[target], study, wanted) if target in cards else _examine_url(target, study, wanted)
            for target in targets
        ]
    except ModelError as error:
        raise UsageError(str(error)) from None


def _is_url(target: str) -> bool:
    return target.startswith(("http://", "https://"))


def _examine_card(card: ModelCard, study: Study | None, wanted: Wanted) -> SelfTest:
    dialect: Dialect = "text" if card.server == "vllm" and card.tool_parser is None else "tool_call"
    form = RequestForm(chat_template_kwargs=card.chat_template_kwargs, extra_body=card.extra_body)
    asking = Asking(card.base_url, card.served, form=form)
    starter = launch(wanted.python)
    with ExitStack() as stack:
        (server,) = stack.enter_context(serving([card], starter))
        if wanted.restart and not server.started:
            raise ConfigError(f"--restart: the server at {card.root_url} was not started here; stop it first")

        def restart() -> None:
            stack.close()
            stack.enter_context(serving([card], starter))

        return self_test(*_question(asking, study, dialect, wanted), restart=restart if wanted.restart else None)


def _examine_url(url: str, study: Study | None, wanted: Wanted) -> SelfTest:
    base_url = url.rstrip("/").removesuffix("/v1") + "/v1"
    key, _ = read_key(wanted.api_key_env, None, "--api-key-env")
    if wanted.restart:
        raise ConfigError(f"--restart: what serves {url} is not ours to restart; name a card instead")
    asking = Asking(base_url, wanted.model or _only_model(base_url), key=key)
    return self_test(*_question(asking, study, "text", wanted))


def _only_model(base_url: str) -> str:
    served = Address(base_url.removesuffix("/v1")).served()
    if served is None:
        raise ConfigError(f"no model server answers at {base_url}; if it wants a key, name the model with --model")
    if len(served) != 1:
        raise ConfigError(f"{base_url} serves {', '.join(served) or 'nothing'}: choose with --model")
    return served[0]


def _question(
    asking: Asking, study: Study | None, dialect: Dialect, wanted: Wanted
) -> tuple[Asking, Mapping[str, Sequence[Mapping[str, object]]]]:
    """What is asked, and how."""
    scaffold: Scaffold = OwnScaffold(dialect) if study is None else open_scaffold(study)
    temperature = 0.0 if study is None else study.sampling.temperature
    how = replace(asking, tools=tuple(scaffold.tools()), temperature=temperature, max_tokens=wanted.tokens)
    return how, openings(scaffold, _tasks(study), wanted.prompts)


def _tasks(study: Study | None) -> Sequence[Task]:
    if study is None:
        return list(Pocket(cache_folder()).tasks())
    return select_tasks(study, open_tasks(study))
