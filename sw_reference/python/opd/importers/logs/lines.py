"""The lines of a job's output as their writer meant them: without colours, progress bars apart, ranks known.

A terminal would draw over what stands before a carriage return or a backspace; here each state is a line. Prefixes of
launchers and loggers are cut off: torchrun "[rank3]:", "[default3]:"; srun -l "3: "; mpirun "[1,3]<stdout>:"; Ray
"(train, pid=4112)"; pdsh "worker-1: "; Kubernetes and Docker Compose; time stamps.
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from opd.importers.logs.metrics import whole
from opd.importers.source import Source

_SPLIT = re.compile(r"[\r\x08\x0b\x0c\x85\u2028]+|(?:\x1b|\u241b|\^\[)\[\d*[ABEFHf]")
# Escape sequences, also as `cat -v` ("^[") and web pages (U+241B) show them, and colours that lost their escape.
_ESCAPES = re.compile(r"(?:\x1b|\u241b|\^\[)(?:\[[0-?]*[ -/]*[@-~]|\].*?(?:\x07|\x1b\\|$)|[@-Z\\^_])"
                      r"|\[(?:0|1|2|4|22|24|3\d|4\d|9\d|10\d|[01];3\d)(?:;\d{1,3})*m|[\x00-\x08\x0e-\x1f\x7f]")

_TIME = r"\d{4}[-/.]\d\d[-/.]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[-+]\d\d:?\d\d)?"
_PREFIXES = (
    re.compile(r"\[?\s*(?P<rank>(?i:rank)[ -]?\d+)\s*\](?::\s?|\s*(?=\[|\S))"),
    re.compile(r"(?P<rank>(?i:rank)[ -]?\d+)\s*[:|]\s"),
    re.compile(r"\[(?P<rank>default\d+)\]:\s?"),
    re.compile(r"\[(?P<rank>\d+,\d+)\]<std(?:out|err)>:\s?"),
    re.compile(r"\s*(?P<rank>\d{1,5}): "),
    re.compile(r"\((?P<rank>[^()]{0,60}\bpid=\d+[^()]{0,40})\)\s"),
    re.compile(r"\[pod/(?P<rank>[^\]]+)\]\s"),
    re.compile(r"(?P<rank>[\w.-]{1,60}-\d+)\s+\|\s"),
    re.compile(r"(?P<rank>[A-Za-z][\w-]{0,60}[-.]?\d[\w.-]{0,60}|\d{1,3}(?:\.\d{1,3}){3}):\s(?=\[?\d{4}[-/])"),
    re.compile(rf"\[?{_TIME}\]?(?=[\s:|\[]|$)(?:\s*[:|](?=\s)|\s)*"),
)
_IN_TEXT = re.compile(r"(?i)(?<![\w-])rank\s?[:=]?\s?(\d{1,5})\b")

# tqdm, Lightning and friends: "Epoch 3:  50%|#####     | 50/100 [00:01<00:01, 49.6it/s, loss=2.31]". The description is what stands
# before, back to a character that it cannot have: searching for it forwards would take the square of a long line.
_BAR = re.compile(r"(?<!\d)(?P<percent>\d{1,3})%\|[^|]*\|\s*(?P<done>\d+)/(?P<total>\d+)"
                  r"\s*\[(?P<rest>[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*)\]")
# The same where the total is not known: "Epoch 1: : 12it [00:05,  2.3it/s, loss=2.31]".
_OPEN_BAR = re.compile(r"(?<![\d.])(?P<done>\d+)(?:it|steps?|batch(?:es)?|ba) \[(?P<rest>\d+:\d\d[^\[\]]*)\]")
_NO_DESCRIPTION = {_BAR: "|", _OPEN_BAR: "|[]"}
_EPOCH = re.compile(r"(?i)\bepochs?\s*[:=#\[]*\s*(\d+)")


@dataclass(frozen=True)
class Bar:
    """One state of a progress bar."""
    description: str
    done: int
    total: int         # 0 where it is not known
    postfix: str

    @property
    def epoch(self) -> int | None:
        """The epoch that the description names."""
        found = _EPOCH.search(self.description)
        return whole(found[1]) if found else None

    @property
    def key(self) -> tuple[str, int]:
        """What tells bars apart: the description without its numbers, and the total."""
        return re.sub(r"[-+]?\d[\d.eE+-]*|nan|inf", "#", self.description).strip(), self.total


@dataclass(frozen=True)
class Line:
    """One line, or one state of a line that was drawn over."""
    number: int          # in the file, from 1
    text: str            # without prefixes
    rank: str | None     # which process printed it, as its prefix tells
    bar: Bar | None = None

    def rank_in_text(self) -> str | None:
        """The rank that the line itself tells: "Rank: 3"."""
        found = _IN_TEXT.search(self.text)
        return f"rank{int(found[1])}" if found else None


def lines(source: Source) -> Iterator[Line]:
    """The lines of the file that are not empty, in order."""
    for number, raw in source.output_lines():
        for piece in _SPLIT.split(raw):
            if piece.strip():
                yield from _pieces(number, _ESCAPES.sub("", piece))


def _pieces(number: int, text: str) -> Iterator[Line]:
    text, rank = without_prefix(text)
    at = 0
    pattern = _BAR if "%|" in text else _OPEN_BAR if " [" in text else None
    for found in pattern.finditer(text) if pattern else ():
        done, total = whole(found["done"]), whole(found["total"]) if pattern is _BAR else 0
        begin = max(text.rfind(c, at, found.start()) + 1 for c in _NO_DESCRIPTION[pattern]) or at
        if done is None or total is None or pattern is _BAR and done > total:
            continue
        description = text[begin:found.start()].strip()
        if description and _is_message(description):   # a message that the bar was drawn behind
            yield Line(number, description, rank)
            description = ""
        yield Line(number, text[begin:found.end()].strip(), rank, Bar(description.rstrip(": "), done, total, found["rest"]))
        at = found.end()
    rest = text[at:].strip()
    if rest:
        again, inner = without_prefix(rest) if at else (rest, None)
        yield Line(number, again, rank or inner)


def without_prefix(text: str) -> tuple[str, str | None]:
    """The text without what launchers and loggers put in front, and the rank that this told."""
    rank = None
    text = text.strip()
    for _ in range(6):
        found = next((m for m in (prefix.match(text) for prefix in _PREFIXES) if m), None)
        if found is None or found.end() >= len(text):
            break
        told = found.groupdict().get("rank")
        if told is not None and rank is None:
            number = re.fullmatch(r"(?i)(?:rank|default)?[ -]?(\d{1,5})", told)
            rank = f"rank{int(number[1])}" if number else told
        text = text[found.end():].lstrip()
    return text, rank


def _is_message(text: str) -> bool:
    return len(text) > 20 and bool(re.search(r"\[(?:INFO|WARNING)\]|(?i:skipp?(?:ing|ed)|overflow)|[{}]", text))
