"""Mutants of C++ and SystemVerilog, from their tokens."""
from __future__ import annotations

import re

from .mutant import Mutant, Places
from .tokens import CPP, VERILOG, Token, partners, tokens_of

SWAPPED = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "&": "|", "|": "&", "^": "|", "&&": "||", "||": "&&", "==": "!=", "!=": "==",
           "<": "<=", "<=": "<", ">": ">=", ">=": ">", "<<": ">>", ">>": "<<", "<<<": ">>>", ">>>": "<<<",
           "+=": "-=", "-=": "+=", "*=": "/=", "&=": "|=", "|=": "&=", "^=": "|=", "<<=": ">>=", ">>=": "<<=", "++": "--", "--": "++"}
_ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
_WORDS = {  # keywords that no operand ends with
    CPP: {"return", "case", "if", "while", "for", "else", "do", "throw", "new", "delete", "sizeof", "template", "typename", "operator", "const", "auto",
          "using", "namespace", "struct", "class", "enum", "static", "inline", "constexpr", "goto", "break", "continue", "public", "private", "explicit"},
    VERILOG: {"return", "case", "if", "while", "for", "else", "begin", "end", "assign", "or", "and", "posedge", "negedge", "inside", "unique", "default",
              "endcase", "logic", "signed", "unsigned", "input", "output", "always_comb", "always_ff", "parameter", "localparam", "endfunction", "automatic"},
}
_PACKED = {"logic", "signed", "unsigned", "bit", "reg", "wire"}  # a range that follows is a width: one more bit is no fault


class _File:
    def __init__(self, file: str, source: str, language: str):
        self.source, self.language = source, language
        self.tokens = tokens_of(source, language)
        self.partner = partners(self.tokens)
        self.places = Places(file, source)
        self.left_out = self._left_out()
        self.assignments: set[int] = set()

    def _left_out(self) -> set[int]:
        """Tokens in assertions, which check and are not checked, and in widths."""
        found: set[int] = set()
        for index, token in enumerate(self.tokens[:-1]):
            macro = token.text.startswith("`OPD_") or token.text in ("static_assert", "assert", "import", "operator")
            width = self.language == VERILOG and (token.text in _PACKED or index in found and token.text == "]") and self.tokens[index + 1].text == "["
            if (macro or width) and index + 1 in self.partner:
                found.update(range(index, self.partner[index + 1] + 1))
            elif token.text == "operator":
                found.add(index + 1)
        return found

    def text(self, index: int) -> str:
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def operand_ends(self, index: int) -> bool:
        if index < 0:
            return False
        token = self.tokens[index]
        return token.kind in ("number", "string") or token.text in (")", "]", "}") or token.kind == "name" and token.text not in _WORDS[self.language]

    def spaced(self, token: Token) -> bool:
        return self.source[token.start - 1:token.start].isspace() and self.source[token.end:token.end + 1].isspace()

    def replace(self, operator: str, first: int, last: int, after: str) -> None:
        self.places.add(operator, self.tokens[first].start, self.tokens[last].end, after)

    # ---- statements
    def statement_begins(self, index: int) -> bool:
        before = self.text(index - 1)
        if before in (";", "{", "}", "begin", "end", "else", "endcase", "always_comb"):
            return True
        if before == ")" and self.text(self.partner.get(index - 1, 0) - 1) in ("if", "for", "while", "case"):
            return True
        if before == ":":  # of a label, not of a choice between two values
            back = index - 2
            while back >= 0 and self.text(back) not in (";", "{", "}", "begin", "end", "?"):
                back -= 1
            return self.text(back) != "?"
        return self.language == VERILOG and self.text(index - 2) == ":" and self.text(index - 3) == "begin"

    def chain(self, index: int) -> int:
        """Index behind `a.b[c]::d->e(f)` or `{a, b}` that begins at index; index itself where none does."""
        begin = index
        if self.language == VERILOG and self.text(index) == "{" and index in self.partner:
            return self.partner[index] + 1
        while index < len(self.tokens):
            token = self.tokens[index]
            if token.kind != "name" or token.text in _WORDS[self.language]:
                return begin
            index += 1
            while self.text(index) in ("[", "(") and index in self.partner:
                index = self.partner[index] + 1
            if self.text(index) not in (".", "->", "::"):
                return index
            index += 1
        return begin

    def statement_end(self, index: int) -> int | None:
        while index < len(self.tokens):
            if self.text(index) == ";":
                return index
            if self.text(index) in ("(", "[", "{", "'{") and index in self.partner:
                index = self.partner[index]
            elif self.text(index) in (")", "]", "}", "begin", "end"):
                return None
            index += 1
        return None

    def statements(self) -> None:
        for index, token in enumerate(self.tokens):
            dropped = self.language == VERILOG and token.text == "assign"
            prefix = token.text in ("++", "--") and self.statement_begins(index)
            leave = token.text in ("break", "continue") and self.text(index + 1) == ";"
            if not (dropped or prefix or leave or self.statement_begins(index)):
                continue
            target = index + 1 if dropped or prefix else index
            behind = index + 1 if leave else self.chain(target)
            if behind == target and not leave:
                continue
            assigns = self.text(behind) in _ASSIGNMENTS or self.language == VERILOG and self.text(behind) == "<="
            called = self.text(behind) == ";" and self.text(behind - 1) == ")"
            if assigns:
                self.assignments.add(behind)
            last = self.statement_end(behind)
            if last is None or index in self.left_out or not (assigns or called or prefix or leave or self.text(behind) in ("++", "--")):
                continue
            if dropped:
                self.replace("assignment dropped", index, last, "")
            else:
                self.replace("assignment dropped" if assigns else "statement deleted", index, last, ";")

    # ---- conditions
    def conditions(self) -> None:
        for index, token in enumerate(self.tokens):
            if token.text not in ("if", "while") or index in self.left_out:
                continue
            opening = index + 2 if self.text(index + 1) == "constexpr" else index + 1
            closing = self.partner.get(opening)
            if self.text(opening) != "(" or closing is None or any(self.text(i) == ";" for i in range(opening, closing)):
                continue
            inner = self.source[self.tokens[opening].end:self.tokens[closing].start]
            if self.language == VERILOG and inner.strip() == "!rst_ni":
                self.replace("reset dropped", opening, closing, "(1'b0)")
            else:
                self.replace("condition negated", opening, closing, f"(!({inner}))")
        if self.language == VERILOG:
            for index, token in enumerate(self.tokens):
                if token.text == "or" and self.text(index + 1) in ("negedge", "posedge"):
                    self.replace("sensitivity dropped", index, index + 2, "")

    def choices(self) -> None:
        for index, token in enumerate(self.tokens):
            if token.text != "?" or index in self.left_out:
                continue
            depth, colon, place = 0, None, index + 1
            while place < len(self.tokens):
                text = self.text(place)
                if text in ("(", "[", "{", "'{") and place in self.partner:
                    place = self.partner[place]
                elif text == "?":
                    depth += 1
                elif text == ":" and depth:
                    depth -= 1
                elif text == ":" and colon is None:
                    colon = place
                elif text in (",", ";", ")", "]", "}") or text == ":":
                    break
                place += 1
            if colon is not None and index + 1 < colon < place - 1:
                yes = self.source[self.tokens[index + 1].start:self.tokens[colon - 1].end]
                no = self.source[self.tokens[colon + 1].start:self.tokens[place - 1].end]
                between = self.source[self.tokens[colon - 1].end:self.tokens[colon + 1].start]
                self.replace("choice swapped", index + 1, place - 1, f"({no}){between}({yes})")

    # ---- operators and numbers
    def operators(self) -> None:
        for index, token in enumerate(self.tokens):
            if token.kind != "mark" or index in self.left_out:
                continue
            binary = self.operand_ends(index - 1)
            if token.text in ("!", "~") and not binary:
                self.replace("negation dropped", index, index, "")
            elif token.text == "-" and not binary and self.tokens[index].end == self.tokens[index + 1].start and self.text(index + 1) != ":":
                self.replace("sign dropped", index, index, "")
            elif token.text in SWAPPED and index not in self.assignments:
                if token.text in ("++", "--"):
                    self.replace("operator swapped", index, index, SWAPPED[token.text])
                elif binary and (self.spaced(token) or token.text in ("+", "-") and self.language == VERILOG):
                    self.replace("operator swapped", index, index, SWAPPED[token.text])
            elif index in self.assignments and token.text in SWAPPED and token.text != "<=":
                self.replace("operator swapped", index, index, SWAPPED[token.text])

    def numbers(self) -> None:
        for index, token in enumerate(self.tokens):
            cast = self.language == VERILOG and self.text(index + 1) == "'"  # a width, as above
            if token.kind == "number" and index not in self.left_out and not cast:
                after = one_more(token.text, self.language)
                if after is not None:
                    self.replace("constant off by one", index, index, after)


def one_more(text: str, language: str) -> str | None:
    """The number after it in the same notation; of a sized number the one within its width. None for what is no plain number."""
    if language == VERILOG:
        if text in ("'0", "'1"):
            return "'1" if text == "'0" else "'0"
        sized = re.fullmatch(r"(\d*)'([sS]?)([bBdDhHoO])([\da-fA-F_]+)", text)
        if sized:
            base = {"b": 2, "o": 8, "d": 10, "h": 16}[sized[3].lower()]
            value = int(sized[4].replace("_", ""), base) + 1
            if sized[1]:
                value %= 1 << int(sized[1])
            digits = {2: f"{value:b}", 8: f"{value:o}", 10: str(value), 16: f"{value:X}"}[base]
            return f"{sized[1]}'{sized[2]}{sized[3]}{digits}"
        return str(int(text.replace("_", "")) + 1) if re.fullmatch(r"[\d_]+", text) else None
    plain = re.fullmatch(r"(0[xX][\da-fA-F']+|0[bB][01']+|[1-9][\d']*|0)([uUlLzZ]*)", text)
    if plain:
        digits = plain[1].replace("'", "")
        value = int(digits, 0) + 1
        return (f"0x{value:X}" if digits[:2].lower() == "0x" else f"0b{value:b}" if digits[:2].lower() == "0b" else str(value)) + plain[2]
    real = re.fullmatch(r"(\d+)(\.\d*)([fFlL]?)", text)
    return f"{int(real[1]) + 1}{real[2]}{real[3]}" if real else None


def mutants_of(file: str, source: str, language: str) -> list[Mutant]:
    """All mutants, in the order of their places. Raises ValueError for a source that cannot be read."""
    own = _File(file, source, language)
    own.statements()
    own.conditions()
    own.choices()
    own.operators()
    own.numbers()
    return own.places.mutants()
