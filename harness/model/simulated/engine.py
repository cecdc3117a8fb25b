"""A conversation and how to sample in, a reply out: the simulated model itself.

The choice of an action depends on the messages alone; see `choice` for how much each is wanted and `noise` for what is
drawn at temperature 0. A reply is a note, then an action (or what cannot be read as one): two spans, drawn one after
the other and independent given the messages. Log-probabilities are at temperature 1 whatever the sampling is; the
propensity is the action's probability under the sampling in force.
"""

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from harness.errors import ContextOverflow
from harness.model.simulated.choice import NOTES, Chooser, note_logits, softmax
from harness.model.simulated.menu import Dialect, Menu, Menus, State, follow, pocket_menus, start_state
from harness.model.simulated.mixture import EPSILON, Mixture
from harness.model.simulated.noise import Call, Noise, gumbel, seeded_key
from harness.model.simulated.profiles import Profile
from harness.model.simulated.tokens import MARKERS, Turn, chunk_of, chunks, token_id

VERSION = "1"
DEFAULT_CONTEXT = 65_536
_SEEN = 50_000  # messages remembered, oldest forgotten first
_NOTE_CHUNKS = tuple(tuple(chunks(note.encode())) for note in NOTES)
_NOTE_NAMES = tuple(f"note:{at}" for at in range(len(NOTES)))


class Node(NamedTuple):
    """A conversation up to one of its messages."""

    digest: bytes
    tokens: int
    dialect: Dialect
    menu: Menu
    state: State
    """Without what is pending."""
    pending: tuple[Turn, ...]
    """The last assistant message and what answers it."""
    parent: bytes | None
    """Digest before the last assistant message: of the call that it answered."""

    def now(self) -> State:
        """The state after all messages."""
        return follow(self.menu, self.state, self.pending, self.dialect) if self.pending else self.state


@dataclass(frozen=True)
class Generated:
    """One reply."""

    text: str
    """All of it, markup included; cut where `finish_reason` is `length`."""
    chunks: tuple[bytes, ...]
    logprobs: tuple[float, ...] | None
    """Natural logarithms at temperature 1, one a chunk; None when not asked for."""
    finish_reason: Literal["stop", "length"]
    entry: str
    propensity: float | None
    """None for a reply that was cut: the event is another then."""
    seed: int
    """The request's, or the entropy used in its place."""
    digest: str
    """Of conversation and seed."""
    prompt_tokens: int
    cached_tokens: int

    @property
    def ids(self) -> list[int]:
        """Token ids."""
        return [token_id(chunk) for chunk in self.chunks]


@dataclass(frozen=True)
class Distribution:
    """What the next action is drawn from."""

    names: tuple[str, ...]
    logits: tuple[float, ...]
    probabilities: tuple[float, ...]
    """At temperature 1."""


class Engine:
    """One simulated model with its noise; safe to use from several threads."""

    def __init__(
        self,
        profile: Profile,
        noise: Noise,
        *,
        menus: Menus | None = None,
        epsilon: float = EPSILON,
        max_model_len: int = DEFAULT_CONTEXT,
    ) -> None:
        self.profile, self.noise, self.max_model_len = profile, noise, max_model_len
        self._menus = menus or pocket_menus()
        self._epsilon = epsilon
        self._chooser = Chooser(profile)
        self._lock = threading.Lock()
        self._seen: OrderedDict[bytes, Node] = OrderedDict()

    @property
    def fingerprint(self) -> str:
        """Names this start of the server."""
        return f"sim-{VERSION}-epoch-{self.noise.epoch}"

    def complete(
        self,
        turns: Sequence[Turn],
        *,
        temperature: float,
        seed: int | None,
        max_tokens: int | None = None,
        logprobs: bool = False,
        batch: int = 0,
    ) -> Generated:
        """The next reply; ContextOverflow when the conversation leaves no room for one."""
        node, cached = self._walk(turns)
        room = self.max_model_len - node.tokens - 2
        if room < 1:
            raise ContextOverflow(
                f"the conversation has {node.tokens + 2} tokens, the model takes {self.max_model_len}"
            )
        used_seed = secrets.randbits(53) if seed is None else seed
        call = Call(used_seed, node.digest, batch, self.noise.is_cold(node.parent, node.digest))
        note, action, propensity = self._choose(node, call, temperature)
        whole = (*_NOTE_CHUNKS[note], *node.menu.chunks[node.dialect][action])
        kept = whole[: room if max_tokens is None else min(room, max_tokens)]
        cut = len(kept) < len(whole)
        return Generated(
            text=b"".join(kept).decode("utf-8", "ignore"),
            chunks=kept,
            logprobs=tuple(self._logprobs(node, kept)) if logprobs else None,
            finish_reason="length" if cut else "stop",
            entry=node.menu.names[action],
            propensity=None if cut else propensity,
            seed=used_seed,
            digest=hashlib.blake2b(node.digest + str(used_seed).encode(), digest_size=8).hexdigest(),
            prompt_tokens=node.tokens + 2,
            cached_tokens=cached,
        )

    def distribution(self, turns: Sequence[Turn]) -> Distribution:
        """What the next action is drawn from at temperature 1."""
        node, _ = self._walk(turns, remember=False)
        logits = self._chooser.logits(node.menu, node.now(), node.dialect)
        return Distribution(node.menu.names, logits, tuple(softmax(logits, 1.0)))

    def score(self, turns: Sequence[Turn], continuation: Sequence[int]) -> list[float]:
        """Log-probability at temperature 1 of each token of a reply that starts with `continuation`."""
        node, _ = self._walk(turns, remember=False)
        return self._logprobs(node, [chunk_of(number) for number in continuation])

    def forget(self) -> None:
        """Empty the prefix cache: no message counts as seen, and no sequence is live."""
        with self._lock:
            self._seen.clear()
        self.noise.forget()

    def count(self, turns: Sequence[Turn]) -> int:
        """Tokens of the conversation, every message closed."""
        return self._walk(turns, remember=False)[0].tokens

    def _choose(self, node: Node, call: Call, temperature: float) -> tuple[int, int, float]:
        """Positions of the note and of the action, and the action's propensity."""
        state = node.now()
        noisy = temperature <= 0.0
        scale = self.noise.scale(self.profile.sigma, call) if noisy else temperature
        key = self.noise.key if noisy else seeded_key
        wants = self._chooser.logits(node.menu, state, node.dialect)
        note = draw(note_logits(node.menu, state, self.profile), _NOTE_NAMES, scale, key(call, "note"))
        action = draw(wants, node.menu.names, scale, key(call, "action"))
        return note, action, softmax(wants, scale)[action] if scale else 1.0

    def _logprobs(self, node: Node, reply: Sequence[bytes]) -> list[float]:
        state = node.now()
        start = action_start(reply, node.dialect)
        notes = Mixture(
            [note.encode() for note in NOTES],
            softmax(note_logits(node.menu, state, self.profile), 1.0),
            self._epsilon,
        )
        texts = [(text or "").encode() for text in node.menu.texts[node.dialect]]
        wants = softmax(self._chooser.logits(node.menu, state, node.dialect), 1.0)
        actions = Mixture(texts, wants, self._epsilon)
        return [*notes.logprobs(reply[:start]), *actions.logprobs(reply[start:])]

    def _walk(self, turns: Sequence[Turn], *, remember: bool = True) -> tuple[Node, int]:
        """The conversation as a node, and how many of its tokens were seen in earlier calls."""
        digests = _chain(turns)
        node, known = self._longest_seen(digests)
        cached = node.tokens
        for turn, digest in zip(turns[known:], digests[known:], strict=True):
            node = self._extend(node, turn, digest)
            if remember:
                self._remember(node)
        return node, cached

    def _longest_seen(self, digests: Sequence[bytes]) -> tuple[Node, int]:
        with self._lock:
            for at in range(len(digests), 0, -1):
                if digests[at - 1] in self._seen:
                    self._seen.move_to_end(digests[at - 1])
                    return self._seen[digests[at - 1]], at
        menu = self._menus.unknown
        return Node(b"", 0, "text", menu, start_state(menu), (), None), 0

    def _remember(self, node: Node) -> None:
        with self._lock:
            self._seen[node.digest] = node
            if len(self._seen) > _SEEN:
                self._seen.popitem(last=False)

    def _extend(self, node: Node, turn: Turn, digest: bytes) -> Node:
        before = node.digest
        size = 3 + len(chunks(turn.text.encode("utf-8", "surrogatepass")))  # start, role, end
        node = node._replace(digest=digest, tokens=node.tokens + size)
        if turn.role == "tools":
            return node._replace(dialect="tool_call")
        if turn.role == "assistant":
            return node._replace(state=node.now(), pending=(turn,), parent=before)
        if node.pending:
            return node._replace(pending=(*node.pending, turn))
        if turn.role == "user" and node.menu is self._menus.unknown:
            menu = self._menus.for_text(turn.text)
            return node._replace(menu=menu, state=start_state(menu))
        return node


def draw(values: Sequence[float], names: Sequence[str], scale: float, key: bytes) -> int:
    """Position drawn with probability softmax(values / scale); the largest where `scale` is 0."""
    if not scale:
        return max(range(len(values)), key=values.__getitem__)
    noisy = [value + scale * gumbel(key, name) for value, name in zip(values, names, strict=True)]
    return max(range(len(noisy)), key=noisy.__getitem__)


def action_start(reply: Sequence[bytes], dialect: Dialect) -> int:
    """Index of the token at which the action's span starts: at the marker, else after the first line."""
    marker = b"".join(reply).find(MARKERS[0] if dialect == "tool_call" else MARKERS[1])
    position = 0
    for at, chunk in enumerate(reply):
        if position == marker:
            return at
        position += len(chunk)
    lines = (at for at, chunk in enumerate(reply) if chunk.endswith(b"\n"))
    return next(lines, len(reply) - 1) + 1


def _chain(turns: Sequence[Turn]) -> list[bytes]:
    """One digest a message: of it and all before it."""
    digests, before = [], b""
    for turn in turns:
        text = f"{turn.role}\0{turn.text}".encode("utf-8", "surrogatepass")
        before = hashlib.blake2b(before + text, digest_size=16).digest()
        digests.append(before)
    return digests
