"""A table says above what it shows and below what it does not; every renderer prints the same cells.

A cell is shown text and the exact value behind it. A rate carries its counts; an absent number is a dash with
a reason and never zero; NaN is refused when the cell is made, so that no format can print one. Two columns of
one group read as "published | recomputed"; a recomputed cell that differs at the printed precision is marked,
found by comparing what is printed.
"""

import csv
import io
import json
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from itertools import groupby
from typing import Literal, get_args

from analysis.divergence import Bounds

Format = Literal["text", "md", "csv", "latex", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)
WIDTH = 100
"""Columns of a text table."""

# ----------------------------------------------------------------------------------------------------- cells


@dataclass(frozen=True, slots=True)
class Cell:
    """One value as shown and as it is. Make it with the functions below, which keep both in step."""

    text: str
    value: str | int | float | bool | None
    """None = absent, and then `note` says why."""
    parts: Mapping[str, int | float] = field(default_factory=dict)
    """Named numbers that the text is made of: numerator and denominator, low and high."""
    note: str = ""
    """Footnote; equal notes share one mark."""
    differs: bool | None = None
    """Whether it differs from the published cell to its left as printed; None = not compared."""

    def __post_init__(self) -> None:
        for number in (self.value, *self.parts.values()):
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueError(f"{number} in a table: say with absent() why there is no number")
        if self.value is None and not self.note:
            raise ValueError("an absent number needs its reason")


def label(text: str) -> Cell:
    return Cell(text, text)


def absent(reason: str) -> Cell:
    """A dash with a footnote."""
    return Cell("-", None, note=reason)


def count(n: int) -> Cell:
    return Cell(str(n), n)


def number(value: float | None, digits: int = 3, *, signed: bool = False, why: str = "no rows") -> Cell:
    """A number with fixed decimals; a None becomes a dash with the reason `why`."""
    return absent(why) if value is None else Cell(decimals(value, digits, signed=signed), value)


def rate(hits: int, total: int, digits: int = 1, *, why: str = "0 rows: no denominator") -> Cell:
    """`hits`/`total` (per cent); a dash when there is nothing to divide by."""
    if total == 0:
        return absent(why)
    share = hits / total
    shown = "100" if hits == total else percent(share, digits)
    return Cell(f"{hits}/{total} ({shown}%)", share, {"numerator": hits, "denominator": total})


def interval(bounds: Bounds | None, digits: int = 3, *, signed: bool = False, why: str = "no rows") -> Cell:
    """[low, high]."""
    if bounds is None:
        return absent(why)
    low, high = (decimals(end, digits, signed=signed) for end in bounds)
    return Cell(f"[{low}, {high}]", f"[{low}, {high}]", {"low": bounds.low, "high": bounds.high})


def estimate(value: float, bounds: Bounds, digits: int = 3, *, signed: bool = False) -> Cell:
    """value [low, high]."""
    text = f"{decimals(value, digits, signed=signed)} {interval(bounds, digits, signed=signed).text}"
    return Cell(text, value, {"low": bounds.low, "high": bounds.high})


def decimals(value: float, digits: int, *, signed: bool = False) -> str:
    """House style: .674, -.050, +.267, 4.9, 0.6; no zero before two decimals or more; no minus on a zero."""
    text = f"{abs(value):.{digits}f}"
    sign = "-" if value < 0 and float(text) else "+" if signed else ""
    return sign + (text.removeprefix("0") if digits >= 2 else text)


def percent(share: float, digits: int = 1) -> str:
    """A share in [0, 1] as per cent without the sign, e.g. 95.5."""
    return f"{100 * share:.{digits}f}"


def rounded_twice(value: float, digits: int) -> str:
    """What comes of rounding half up to one decimal more and then again: 2.045 -> 2.05 -> 2.1."""
    once = Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits - 1), ROUND_HALF_UP)
    return decimals(float(once.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)), digits)


# ---------------------------------------------------------------------------------------------------- tables


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    """Name in csv and json, unique in the table."""
    heading: str
    group: str = ""
    """Neighbours of one group stand under one heading, a bar between them; no matter for labels."""
    is_label: bool = False
    """Says which row this is: to the left, and repeated when a wide table is broken."""


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    """Short and unique in a report, e.g. `table1`."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        keys = [column.key for column in self.columns]
        if len(set(keys)) < len(keys):
            raise ValueError(f"table {self.name}: two columns with one key in {keys}")
        for row in self.rows:
            if len(row) != len(keys):
                raise ValueError(f"table {self.name}: a row of {len(row)} cells under {len(keys)} columns")

    @property
    def footnotes(self) -> tuple[str, ...]:
        """The cells' notes, each once, in reading order; footnote n is the n-th."""
        return tuple(dict.fromkeys(cell.note for row in self.rows for cell in row if cell.note))


def render(table: Table, form: Format) -> str:
    """One table, no line end after it. csv, json: exact values, rates as shares; others: what is shown."""
    return _RENDERERS[form](table)


def render_many(tables: Sequence[Table], form: Format) -> str:
    """Several tables: json is one list, others have blank lines between; csv `# name: title` above each."""
    if form == "json":
        return json.dumps([_as_dict(table) for table in tables], indent=1, allow_nan=False)
    head = "# {0.name}: {0.title}\n" if form == "csv" else ""
    return "\n\n".join(head.format(table) + render(table, form) for table in tables)


def _marked(cell: Cell, footnotes: Sequence[str], cap: int | None = None) -> str:
    mark = ("≠" if cell.differs else "") + (f"[{footnotes.index(cell.note) + 1}]" if cell.note else "")
    text = _printable(cell.text)
    return f"{_cut(text, cap and cap - len(mark) - 1)} {mark}" if mark else _cut(text, cap)


def _cut(text: str, cap: int | None) -> str:
    return text if cap is None or len(text) <= cap else text[: max(cap - 1, 0)] + "…"


def _printable(text: str) -> str:
    """Names come from foreign files: an escape sequence or a line break in one must not reach a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _below(table: Table) -> Iterator[str]:
    yield from map(_printable, table.notes)
    yield from (f"[{i}] {_printable(note)}" for i, note in enumerate(table.footnotes, 1))


def _text(table: Table) -> str:
    body = [line for block in _blocks(table) for line in _block(table, block)]
    if not table.rows:
        body.append("(no rows)")
    below = (textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in _below(table))
    return "\n".join([textwrap.fill(_printable(table.title), WIDTH), *body, *below])


Span = list[int]
"""Indices of neighbouring columns that stand together, a bar between them."""


def _blocks(table: Table) -> Iterator[list[Span]]:
    """Spans that fit side by side in WIDTH, the label columns first in every block."""
    columns = table.columns
    labels: list[Span] = [[i] for i, column in enumerate(columns) if column.is_label]
    spans = [[i for i, c in run if not c.is_label] for _, run in groupby(enumerate(columns), _span_key)]
    block: list[Span] = []
    for whole in filter(None, spans):
        fits = _width([*labels, whole], table) <= WIDTH
        for span in [whole] if fits else [[i] for i in whole]:
            if block and _width([*labels, *block, span], table) > WIDTH:
                yield [*labels, *block]
                block = []
            block.append(span)
    yield [*labels, *block]


def _span_key(placed: tuple[int, Column]) -> tuple[str, int]:
    place, column = placed
    return (column.group, -1) if column.group else ("", place)


def _width(spans: Iterable[Span], table: Table) -> int:
    return sum(sum(_widths(table, span)) + 3 * (len(span) - 1) + 2 for span in spans) - 2


def _cap(table: Table, column: Column) -> int:
    """The most characters a cell may take, so that the labels and any one column fit a line."""
    labels = sum(c.is_label for c in table.columns)
    return max(60 // labels - 2, 2) if column.is_label else 38 if labels else WIDTH


def _shown(table: Table, place: int) -> list[str]:
    """Heading and cells of one column as printed."""
    column = table.columns[place]
    cap = _cap(table, column)
    footnotes = table.footnotes
    return [_cut(_printable(column.heading), cap), *(_marked(r[place], footnotes, cap) for r in table.rows)]


def _widths(table: Table, span: Span) -> list[int]:
    widths = [max(map(len, _shown(table, place))) for place in span]
    widths[-1] += max(0, len(_group(table, span)) - sum(widths) - 3 * (len(span) - 1))
    return widths


def _group(table: Table, span: Span) -> str:
    column = table.columns[span[0]]
    return "" if column.is_label else _cut(_printable(column.group), 38)


def _block(table: Table, spans: list[Span]) -> Iterator[str]:
    widths = [_widths(table, span) for span in spans]
    if any(_group(table, span) for span in spans):
        whole = [sum(w) + 3 * (len(w) - 1) for w in widths]
        groups = (_group(table, span).center(w) for span, w in zip(spans, whole, strict=True))
        yield "  ".join(groups).rstrip()
    shown = [_shown(table, place) for place in range(len(table.columns))]
    for row in range(len(table.rows) + 1):
        parts = (
            " | ".join(_aligned(shown[i][row], w, table.columns[i]) for i, w in zip(span, ws, strict=True))
            for span, ws in zip(spans, widths, strict=True)
        )
        yield "  ".join(parts).rstrip()


def _aligned(text: str, width: int, column: Column) -> str:
    return text.ljust(width) if column.is_label else text.rjust(width)


def _heading(column: Column) -> str:
    return f"{column.group} {column.heading}".strip()


def _md(table: Table) -> str:
    def escaped(text: str) -> str:
        for mark, safe in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("*", "\\*"), ("`", "\\`")):
            text = text.replace(mark, safe)
        return text

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    lines = [f"**{escaped(_printable(table.title))}**", "", line(escaped(_heading(c)) for c in table.columns)]
    lines.append(line(":---" if c.is_label else "---:" for c in table.columns))
    lines += [line(escaped(_marked(cell, table.footnotes)) for cell in row) for row in table.rows]
    return "\n".join([*lines, *(f"\n{escaped(note)}" for note in _below(table))])


def _latex(table: Table) -> str:
    r"""A `tabular` with booktabs rules, title as `\caption` text in a comment-free table float."""
    line_end = r" \\"
    shape = "".join("l" if c.is_label else "r" for c in table.columns)
    lines = [
        r"\begin{table}",
        rf"\caption{{{_tex(_printable(table.title))}}}",
        rf"\label{{tab:{table.name}}}",
    ]
    lines += [rf"\begin{{tabular}}{{{shape}}}", r"\toprule"]
    lines += [" & ".join(_tex(_heading(c)) for c in table.columns) + line_end, r"\midrule"]
    lines += [" & ".join(_tex(_marked(c, table.footnotes)) for c in row) + line_end for row in table.rows]
    lines += [
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par {_tex(note)}" for note in _below(table)),
        r"\end{table}",
    ]
    return "\n".join(lines)


_TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after a line end \\ a bare bracket would be read as its optional argument
    "≠": r"$\neq$",
    "·": r"\textperiodcentered{}",
    "…": r"\dots{}",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in text)


def _csv(table: Table) -> str:
    """Exact values, parts as columns of their own, an absent number empty; `notes` holds every footnote."""
    parts = [sorted({name for row in table.rows for name in row[i].parts}) for i in range(len(table.columns))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = [[c.key, *(f"{c.key}_{name}" for name in names)] for c, names in zip(table.columns, parts, strict=True)]
    writer.writerow([*(key for head in heads for key in head), "notes"])
    for row in table.rows:
        cells = [[cell.value, *map(cell.parts.get, names)] for cell, names in zip(row, parts, strict=True)]
        remarks = [f"{c.key}: {_remark(cell)}" for c, cell in zip(table.columns, row, strict=True) if _remark(cell)]
        writer.writerow([*(_csv_value(v) for values in cells for v in values), _printable("; ".join(remarks))])
    return out.getvalue().rstrip("\n")


def _remark(cell: Cell) -> str:
    return cell.note or ("differs from the published number" if cell.differs else "")


def _csv_value(value: str | int | float | bool | None) -> str | int | float | bool | None:
    return _printable(value) if isinstance(value, str) else value


def _json(table: Table) -> str:
    return json.dumps(_as_dict(table), indent=1, allow_nan=False)


def _as_dict(table: Table) -> dict[str, object]:
    keys = [column.key for column in table.columns]
    return {
        "name": table.name,
        "title": table.title,
        "columns": [{"key": c.key, "heading": c.heading, "group": c.group} for c in table.columns],
        "rows": [dict(zip(keys, map(_cell_dict, row), strict=True)) for row in table.rows],
        "notes": list(table.notes),
    }


def _cell_dict(cell: Cell) -> dict[str, object]:
    extra = {"parts": dict(cell.parts), "note": cell.note, "differs": cell.differs}
    return {"value": cell.value, "text": cell.text} | {k: v for k, v in extra.items() if v not in ({}, "", None)}


_RENDERERS: Mapping[Format, Callable[[Table], str]] = {
    "text": _text,
    "md": _md,
    "csv": _csv,
    "latex": _latex,
    "json": _json,
}
