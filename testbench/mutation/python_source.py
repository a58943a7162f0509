"""Mutants of Python, from its syntax tree and the tokens between its nodes."""
from __future__ import annotations

import ast
import io
import tokenize
from types import CodeType

from .mutant import Mutant, Places

_BINARY = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"),
           ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.BitXor: ("^", "|"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"), ast.Pow: ("**", "*")}
_COMPARED = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
             ast.Is: ("is", "is not"), ast.In: ("in", "not in")}
_NEGATED = {ast.IsNot: (("is", "not"), "is"), ast.NotIn: (("not", "in"), "in")}


class _Visitor(ast.NodeVisitor):
    def __init__(self, file: str, source: str):
        self.places, self.source = Places(file, source), source
        self.lines = source.splitlines(keepends=True)
        self.begins = [0]
        for line in self.lines:
            self.begins.append(self.begins[-1] + len(line))
        self.marks = [(self.offset(t.start), self.offset(t.end), t.string)  # tokenize counts characters
                      for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type in (tokenize.OP, tokenize.NAME)]

    def offset(self, place: tuple[int, int]) -> int:
        return self.begins[place[0] - 1] + place[1]

    def byte_offset(self, line: int, column: int) -> int:
        return self.begins[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.byte_offset(node.lineno, node.col_offset), self.byte_offset(node.end_lineno, node.end_col_offset)

    def between(self, left: ast.AST, right: ast.AST, before: str | tuple[str, str], after: str) -> None:
        first, last = self.span(left)[1], self.span(right)[0]
        words = [mark for mark in self.marks if first <= mark[0] and mark[1] <= last and mark[2] not in "()"]
        wanted = (before,) if isinstance(before, str) else before
        if tuple(word[2] for word in words) == wanted:
            self.places.add("operator swapped", words[0][0], words[-1][1], after)

    def negate(self, test: ast.expr) -> None:
        start, end = self.span(test)
        self.places.add("condition negated", start, end, f"(not ({self.source[start:end]}))")

    def generic_visit(self, node):
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_comment", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self.visit(child)

    def visit_JoinedStr(self, node):
        """Python 3.11 does not tell where in a formatted string its expressions stand."""

    def visit_Assert(self, node):
        """Checks, and is not checked."""

    def visit_BinOp(self, node):
        if type(node.op) in _BINARY:
            self.between(node.left, node.right, *_BINARY[type(node.op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        word = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:]):
            self.between(left, right, *word)
        self.generic_visit(node)

    def visit_Compare(self, node):
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators):
            words = _COMPARED.get(type(operator)) or _NEGATED.get(type(operator))
            if words:
                self.between(left, right, *words)
        self.generic_visit(node)

    def visit_UnaryOp(self, node):
        start, operand = self.span(node)[0], self.span(node.operand)[0]
        if isinstance(node.op, (ast.Not, ast.USub, ast.Invert)) and self.source[start:operand].strip() in ("not", "-", "~"):
            self.places.add("sign dropped" if isinstance(node.op, ast.USub) else "negation dropped", start, operand, "")
        self.generic_visit(node)

    def visit_IfExp(self, node):
        (first, last), (begin, end) = self.span(node.body), self.span(node.orelse)
        whole = self.span(node)
        if self.source[last:self.span(node.test)[0]].strip() == "if" and whole == (first, end):
            middle = self.source[last:begin]
            self.places.add("choice swapped", *whole, f"({self.source[begin:end]}){middle}({self.source[first:last]})")
        self.generic_visit(node)

    def visit_If(self, node):
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.negate(node.test)
            self.generic_visit(node)

    def visit_While(self, node):
        self.negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node):
        for test in node.ifs:
            self.negate(test)
        self.generic_visit(node)

    def visit_AugAssign(self, node):
        if type(node.op) in _BINARY:
            before, after = _BINARY[type(node.op)]
            self.between(node.target, node.value, before + "=", after + "=")
        self.drop(node)
        self.generic_visit(node)

    def drop(self, node, operator="assignment dropped"):
        self.places.add(operator, *self.span(node), "pass")

    def visit_Assign(self, node):
        self.drop(node)
        self.generic_visit(node)

    def visit_AnnAssign(self, node):
        if node.value is not None:
            self.visit(node.value)

    def visit_Expr(self, node):
        if isinstance(node.value, ast.Call):
            self.drop(node, "statement deleted")
            self.generic_visit(node)

    def visit_Raise(self, node):
        self.drop(node, "statement deleted")

    def visit_Continue(self, node):
        self.drop(node, "statement deleted")

    def visit_Break(self, node):
        self.drop(node, "statement deleted")

    def visit_Constant(self, node):
        value = node.value
        if isinstance(value, bool):
            self.places.add("constant swapped", *self.span(node), str(not value))
        elif isinstance(value, int):
            self.places.add("constant off by one", *self.span(node), str(value + 1))
        elif isinstance(value, float):
            self.places.add("constant off by one", *self.span(node), repr(value + 1))


def mutants_of(file: str, source: str) -> list[Mutant]:
    """All mutants, in the order of their places. Raises SyntaxError for a source that cannot be read."""
    visitor = _Visitor(file, source)
    visitor.visit(ast.parse(source))
    return visitor.places.mutants()


def _code(code: CodeType) -> tuple:
    """What is executed: the byte code without lines and columns."""
    constants = tuple(_code(c) if isinstance(c, CodeType) else (type(c), repr(c)) for c in code.co_consts)
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags, code.co_exceptiontable


def same_bytecode(before: str, after: str) -> bool:
    return _code(compile(before, "source", "exec")) == _code(compile(after, "source", "exec"))
