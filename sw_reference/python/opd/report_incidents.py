"""The incident pages of report.html: what opd.triage says, with the operator's magnitude and all learning rates around the incident."""
from __future__ import annotations

import base64
import math
from pathlib import Path

import numpy as np

from opd.report_parts import DASH, table, text
from opd.trace import FORMATS, Trace
from opd.triage import Triage
from opd.triage.history import History
from opd.triage.page import Page

SCRIPT, STYLE = Path(__file__).with_suffix(".js"), Path(__file__).with_suffix(".css")
BEFORE, AFTER = 256, 24  # samples around an incident that are drawn


def payload(trace: Trace, found: Triage) -> list[dict]:
    """What report_incidents.js draws, one entry a page: the samples around it, log2 of the operator's largest magnitudes, all learning rates."""
    history = History(trace)
    names = {(probe.name, probe.kind): op for op, probe in enumerate(trace.probes)}
    return [_drawn(history, page, names.get((page.operator, page.where))) for page in found.pages]


def _drawn(history: History, page: Page, op: int | None) -> dict:
    trace = history.trace
    at = int(np.searchsorted(trace.step, page.step))
    rows = slice(max(0, at - BEFORE), at + AFTER)
    drawn = {"step": trace.step[rows].tolist(), "incident": page.step, "since": None if page.growth is None else page.growth.since,
             "jump": None if page.jump is None else {"step": page.jump.step, "group": page.jump.group},
             "rates": [{"name": _group(rate.group, rate.first), "lr": _base64(rate.lr[rows])} for rate in history.rates]}
    if op is not None:
        limit = math.log2(float(FORMATS[trace.probes[op].format].max_value))
        drawn |= {"operator": page.operator, "format": page.format, "limit": limit, "log2": _base64(history.log2[rows, op]),
                  "bad": trace.step[rows][_bad(trace, page, op)[rows]].tolist()}
    return drawn


def _bad(trace: Trace, page: Page, op: int) -> np.ndarray:
    return (trace.saturated if page.what == "clipped" else trace.nonfinite)[:, op] > 0


def _group(number: int, first: str) -> str:
    return f"group {number}" + (f": {first}, ..." if first else "")


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode("ascii")


def section(index: int, found: Triage) -> str:
    """HTML of the pages of one trace, or of the sentence that there is no incident. index: of the trace."""
    if not found.pages:
        note = f" {text(found.note)}" if found.note else ""
        return f'<section class="quiet"><h3>{text(found.name)}: incidents</h3><p class="note">{text(found.sentence())}{note}</p></section>'
    pages = "".join(_page(index, number, found, page) for number, page in enumerate(found.pages))
    return pages + (f'<p class="note">{text(found.note)}</p>' if found.note else "")


def _page(index: int, number: int, found: Triage, page: Page) -> str:
    of = f" ({number + 1} of {len(found.pages)})" if len(found.pages) > 1 else ""
    kind = text(page.kind) + "".join(f", {text(item)}" for item in page.also)
    facts = [("kind", kind)]
    if page.operator is not None:
        facts.append(("operator", f"{text(page.where)}, {text(page.role)}, {text(page.format)}"))
        if page.elements:
            facts.append((text(page.what), f"{page.elements:,} of {page.total:,} elements"))
    if page.growth is not None:
        growth = page.growth
        facts += [("since", f"step {growth.since:,}"), ("growth", f"{growth.rate:.3g} bits a step"), ("doubles every", f"{growth.doubling:.3g} steps")]
    if page.headroom is not None:
        facts.append(("headroom before", f"{page.headroom:.2f} bits"))
    facts += [(f"lr of group {rate.group}", DASH if rate.lr is None else f"{rate.lr:.3g}") for rate in page.rates[:4]]
    if page.loss_scale is not None:
        facts.append(("loss scale", f"{page.loss_scale:g}"))
    if page.again:
        facts.append(("again at step", text(", ".join(map(str, page.again[:6])) + (", ..." if len(page.again) > 6 else ""))))
    shown = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    rows = [("earliest" if page.earliest is not None and d.name == page.earliest.name else "",
             [text(d.name), str(d.lead) if d.lead else DASH, f"{d.first:,}" if d.first is not None else DASH, f"{d.alarms:,}",
              DASH if d.probe is None else f"step {d.at:,}, {text(d.probe)}"]) for d in page.detectors]
    caught = ("<h3>What would have caught it</h3>" + table(["detector", "#lead (steps)", "#alarm at step", "#alarms before", "~earliest alarm of any operator"],
                                                            rows) + f'<p class="note">{text(page.caught())}</p>') if rows else ""
    return (f'<section class="incident" data-incident="{index}:{number}"><h2>{text(found.name)}: incident{of}</h2>'
            f'<p class="headline"><b>{text(page.subject)}</b> {text(page.happened)}: {text(page.kind)}.</p>'
            f'<dl class="device">{shown}</dl><div class="plot around"></div>'
            f'<div class="words"><div><h3>What speaks for it</h3>{_list(page.evidence)}</div><div><h3>What to do</h3>{_list(page.advice)}</div></div>'
            f"{caught}</section>")


def _list(sentences) -> str:
    return "<ul>" + "".join(f"<li>{text(sentence)}</li>" for sentence in sentences) + "</ul>"
