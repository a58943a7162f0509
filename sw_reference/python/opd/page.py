"""The HTML around report.html and evaluation.html: one file that works offline, and from which nothing leaves the machine.

The policy lets the page load nothing, from nowhere, and send nothing, to nobody: no request, no form, no frame, no script but the
ones in the file, which are named by their hashes. What a policy in a file cannot forbid, pop-ups and leaving for another page,
page.js does.
"""
from __future__ import annotations

import base64
import hashlib
import html
from pathlib import Path

from plotly.offline import get_plotlyjs

_SEAL = Path(__file__).with_suffix(".js")


def page(title: str, style: str, body: str, data: str, script: str) -> str:
    """The text of a page.

    title: plain text. style: CSS. body: HTML. data: JSON that the script finds in the element #data. script: JavaScript; plotly,
    and what page.js defines, are there when it runs.
    """
    scripts = [_SEAL.read_text("ascii"), get_plotlyjs(), script]
    policy = "; ".join(["default-src 'none'", "script-src " + " ".join(f"'sha256-{_hash(text)}'" for text in scripts),
                        "style-src 'unsafe-inline'", "img-src data: blob:", "connect-src 'none'", "form-action 'none'",
                        "frame-src 'none'", "worker-src 'none'", "object-src 'none'", "base-uri 'none'"])
    data = data.replace("<", "\\u003c")  # no </script> inside
    return "".join([
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="referrer" content="no-referrer">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style></head>\n<body>\n{body}\n",
        f'<script type="application/json" id="data">{data}</script>\n',
        *(f"<script>{text}</script>\n" for text in scripts), "</body></html>\n"])


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
