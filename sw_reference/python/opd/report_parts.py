"""Texts and tables of report.html, as HTML."""
from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from opd.texts import printable

DASH = '<span class="none">&ndash;</span>'


def text(value) -> str:
    """As it may stand in a page: no markup, no control character."""
    return html.escape(printable(str(value)))


def count(value: int, singular: str, ending: str = "s") -> str:
    return f"{value:,} {singular}" + ("" if value == 1 else ending)


def number(value: float) -> str:
    """Three significant digits, never in exponent form."""
    digits = 2 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 6)}f}"


def duration(nanoseconds: float) -> str:
    for unit, length in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= length:
            return f"{number(nanoseconds / length)}&nbsp;{unit.replace('us', '&micro;s')}"
    return f"{number(nanoseconds)}&nbsp;ns"


def size(bytes_: float) -> str:
    for unit, multiple in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bytes_ >= multiple:
            return f"{number(bytes_ / multiple)}&nbsp;{unit}"
    return f"{bytes_:,.0f}&nbsp;B"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table of cells that are HTML already. A title that starts with "#" heads a column of numbers, aligned right; with "~", a
    column of longer texts, which may wrap. A row is its cells, or (class of its <tr>, cells)."""
    align = [{"#": ' class="n"', "~": ' class="t"'}.get(title[:1], "") for title in columns]
    parts = ["<table>"]
    if caption:
        parts.append(f"<caption>{caption}</caption>")
    parts.append("<thead><tr>" + "".join(f'<th scope="col"{a}>{t.lstrip("#~")}</th>' for t, a in zip(columns, align)) +
                 "</tr></thead><tbody>")
    for row in rows:
        kind, cells = row if isinstance(row, tuple) else ("", row)
        parts.append((f'<tr class="{kind}">' if kind else "<tr>") +
                     "".join(f"<td{a}>{cell}</td>" for cell, a in zip(cells, align)) + "</tr>")
    parts.append("</tbody></table>")
    return '<div class="wide">' + "".join(parts) + "</div>"


def label(name: str) -> str:
    return f'<span class="label {text(name)}">{text(name)}</span>'
