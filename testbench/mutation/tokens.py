"""Tokens of C++ and SystemVerilog, as far as mutation needs them: comments, strings and directives are left out."""
from __future__ import annotations

import re
from dataclasses import dataclass

CPP, VERILOG = "c++", "systemverilog"

_STRING = r'"(?:\\.|[^"\\\n])*"'
_PATTERNS = {
    CPP: re.compile(r"""
        (?P<skip> \s+ | //[^\n]* | /\*.*?\*/ | (?m:^[ \t]*\#(?:\\\n|[^\n])*) )
      | (?P<string> (?:u8|[uUL])?R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)" | (?:u8|[uUL])?""" + _STRING + r""" | (?:u8|[uUL])?'(?:\\.[^']*|[^'\\])' )
      | (?P<name> [A-Za-z_]\w* )
      | (?P<number> \.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])* )
      | (?P<mark_> <<=|>>=|<=>|\.\.\.|->\*|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|. )
    """, re.VERBOSE | re.DOTALL),
    VERILOG: re.compile(r"""
        (?P<skip> \s+ | //[^\n]* | /\*.*?\*/ | (?m:^[ \t]*`(?:include|define|undef|ifdef|ifndef|else|endif|elsif|timescale|default_nettype)(?:\\\n|[^\n])*) )
      | (?P<string> """ + _STRING + r""" )
      | (?P<name> [`$]?[A-Za-z_][\w$]* )
      | (?P<number> (?:\d[\d_]*)?'[sS]?[bBoOdDhH][\da-fA-FxXzZ_?]+ | '[01xXzZ](?!\w) | \d[\d_]*(?:\.\d+)? )
      | (?P<mark_> <<<=|>>>=|<<<|>>>|<<=|>>=|===|!==|==\?|!=\?|->|::|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||\*\*|[-+*/%&|^]=|~[&|^]|\+:|-:|'\{|. )
    """, re.VERBOSE | re.DOTALL),
}


@dataclass(frozen=True)
class Token:
    kind: str  # name, number, string, mark
    text: str
    start: int
    end: int


def tokens_of(source: str, language: str) -> list[Token]:
    """Raises ValueError where no token begins."""
    found, position, pattern = [], 0, _PATTERNS[language]
    while position < len(source):
        match = pattern.match(source, position)
        if match is None or match.end() == position:
            raise ValueError(f"no token at character {position}")
        kind = next(name for name in ("skip", "string", "name", "number", "mark_") if match[name] is not None)
        if kind != "skip":
            found.append(Token(kind.rstrip("_"), match[0], match.start(), match.end()))
        position = match.end()
    return found


def partners(tokens: list[Token]) -> dict[int, int]:
    """Index of the closing bracket of each opening one, and back; those without a partner are left out."""
    closing = {")": "(", "]": "[", "}": "{"}
    found: dict[int, int] = {}
    stack: list[tuple[str, int]] = []
    for index, token in enumerate(tokens):
        if token.kind != "mark":
            continue
        if token.text in ("(", "[", "{", "'{"):
            stack.append((token.text[-1], index))
        elif token.text in closing and stack and stack[-1][0] == closing[token.text]:
            begin = stack.pop()[1]
            found[begin], found[index] = index, begin
    return found
