"""Small mistakes, one at a time: every mutant that a module of the product can have.

A mutant is one expression or statement replaced by another that a tired programmer could have written: a comparison
that is off by one or turned round, `and` for `or`, a dropped `not`, a condition that is always true or never, a fixed
return value, a forgotten call or assignment, a number off by one, two arguments in the wrong order.

What is left alone cannot be noticed, or says nothing if it is: annotations, decorators, docstrings and texts, what is
logged, `assert` (it states what holds anyway, as does ``zip(..., strict=True)``), `check_invariants`, `__repr__`,
bodies of protocols and overloads. What the type checker refuses is no mutant either: a forgotten ``await``, or None
where a function promises a truth value.

Text outside the replaced expression stays as it is, so the difference is what the programmer would have typed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

#: Comparison -> what it is mistaken for.
COMPARISONS: dict[type[ast.cmpop], Sequence[type[ast.cmpop]]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPPOSITE_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
#: Their bodies are not the product's behaviour: two of them are parts of the metadata's `check_invariants`.
LEFT_ALONE_FUNCTIONS = {"check_invariants", "check_record", "check_together", "__repr__", "__str__"}
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
#: Calls whose order of arguments is a declaration.
DECLARING_CALLS = {"NewType", "TypeVar", "Struct", "namedtuple", "cast", "isinstance", "issubclass"}


#: Kind of what is left alone, but has a place in the draw.
ASSERTION = "assertion"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One replacement in the text of a module."""

    #: Path from the root of the tree, with slashes.
    path: str
    #: Dotted name of the innermost function or class; empty at module level.
    function: str
    #: Where the innermost statement begins: it is what a test must execute to notice. From 1.
    line: int
    #: What kind of mistake, in a word or two.
    kind: str
    #: Bytes of the file that are replaced.
    begin: int
    end: int
    before: str
    after: str
    #: True in a function: run when it is called, not when the module is imported.
    is_in_function: bool

    @property
    def name(self) -> str:
        """The same for the same mistake in the same text."""
        return f"{self.path}:{self.line}:{self.begin}: {self.kind}: {self.after}"

    def applied(self, source: bytes) -> bytes:
        return source[: self.begin] + self.after.encode() + source[self.end :]


def mutants_of(path: str, source: str) -> list[Mutant]:
    """All mutants of a module, in the order of its text; assertions among them."""
    finder = _Finder(path, source)
    finder.module(ast.parse(source, filename=path))
    return finder.found


def sample(mutants: Sequence[Mutant], count: int, seed: int, package: str) -> list[Mutant]:
    """So many of them, at most one to a line; a greater count adds to what a smaller one chooses.

    Where an assertion is drawn, the next one takes its place: which others are drawn is the same with it and without.
    """
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for mutant in mutants:
        by_line.setdefault((mutant.path, mutant.line), []).append(mutant)
    chance = Random(f"{seed} {package}")
    lines = list(by_line.values())
    chance.shuffle(lines)
    drawn = [chance.choice(of_line) for of_line in lines]
    return [mutant for mutant in drawn if mutant.kind != ASSERTION][:count]


class _Finder:
    def __init__(self, path: str, source: str) -> None:
        self.found: list[Mutant] = []
        self._path = path
        self._source = source.encode()
        #: Line (from 0) -> byte at which it begins.
        self._begins = [0, *accumulate(len(line) for line in self._source.splitlines(keepends=True))]
        self._names: list[str] = []
        self._statement: ast.stmt | None = None
        self._function_depth = 0
        #: The innermost function says that it returns a truth value.
        self._is_predicate = False

    # --- where

    def module(self, tree: ast.Module) -> None:
        self._body(tree.body)

    def _body(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            outer, self._statement = self._statement, statement
            self._visit_statement(statement)
            self._statement = outer

    def _visit_statement(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node)
            case ast.ClassDef():
                if not any(_word(base) in {"Protocol", "TypedDict", "ABC"} for base in node.bases):
                    self._named(node.name, node.body)
            case ast.Assert() | ast.Import() | ast.ImportFrom() | ast.Raise():
                pass
            case ast.Expr() if isinstance(node.value, ast.Constant) or _is_log_call(node.value):
                pass
            case ast.If() if _word(node.test) == "TYPE_CHECKING":
                pass
            case _:
                self._mutate_statement(node)
                self._children(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        is_overload = any(_word(each) in {"overload", "abstractmethod"} for each in node.decorator_list)
        if node.name in LEFT_ALONE_FUNCTIONS or is_overload:
            return
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self._expression(default)
        outer, self._is_predicate = self._is_predicate, node.returns is not None and _word(node.returns) == "bool"
        self._function_depth += 1
        self._named(node.name, node.body)
        self._function_depth -= 1
        self._is_predicate = outer

    def _named(self, name: str, body: Sequence[ast.stmt]) -> None:
        self._names.append(name)
        self._body(body)
        self._names.pop()

    def _children(self, node: ast.AST) -> None:
        """Everything below that is behaviour."""
        for name, value in ast.iter_fields(node):
            if name in {"annotation", "returns", "decorator_list"}:
                continue
            values = value if isinstance(value, list) else [value]
            if values and all(isinstance(each, ast.stmt) for each in values):
                self._body(values)
                continue
            for each in values:
                if isinstance(each, ast.expr):
                    self._expression(each)
                elif isinstance(each, ast.keyword) and each.arg == "strict" and isinstance(each.value, ast.Constant):
                    self._add(ASSERTION, each.value, str(not each.value.value))
                elif isinstance(each, ast.AST):
                    self._children(each)

    def _expression(self, node: ast.expr) -> None:
        # Inside a formatted text this version of Python does not know the places of expressions.
        if isinstance(node, ast.JoinedStr) or _is_log_call(node):
            return
        for kind, replacement in _replacements(node):
            self._add(kind, node, f"({replacement})" if _needs_brackets(node) else replacement)
        self._children(node)

    # --- what

    def _mutate_statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=ast.Call()):
                self._add("call removed", node, "None")
            case ast.AugAssign():
                self._add("assignment removed", node, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) if self._function_depth:
                if self._names[-1] != "__init__":
                    self._add("assignment removed", node, "pass")
            case ast.Delete():
                self._add("deletion removed", node, "pass")
            case ast.If(test=test):
                self._add("condition fixed", test, "True")
                self._add("condition fixed", test, "False")
            case ast.While(test=test) if not isinstance(test, ast.Constant):
                self._add("condition fixed", test, "False")
            case ast.Return(value=ast.Constant(value=bool() as value) as constant) if self._is_predicate:
                # As the constant itself is mistaken. Twice, lest the draw of what comes after it depends on the rule.
                self._add("return value", constant, str(not value))
            case ast.Return(value=ast.expr() as value) if not _is_none(value):
                self._add("return value", value, "None")
            case ast.Break():
                self._add("loop", node, "continue")
            case ast.Continue():
                self._add("loop", node, "break")

    def _add(self, kind: str, node: ast.expr | ast.stmt, after: str) -> None:
        assert self._statement is not None
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = self._begins[node.lineno - 1] + node.col_offset
        end = self._begins[node.end_lineno - 1] + node.end_col_offset
        before = self._source[begin:end].decode()
        if before == after:
            return
        self.found.append(
            Mutant(
                self._path,
                ".".join(self._names),
                self._statement.lineno,
                kind,
                begin,
                end,
                before,
                after,
                self._function_depth > 0,
            )
        )


def _replacements(node: ast.expr) -> Iterator[tuple[str, str]]:
    """Kind and text of what this expression is mistaken for."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            for other in COMPARISONS[type(operator)]:
                yield "comparison", ast.unparse(ast.Compare(left, [other()], [right]))
        case ast.BoolOp(op=operator, values=values):
            turned: ast.boolop = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "and / or", ast.unparse(ast.BoolOp(turned, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not dropped", f"bool({ast.unparse(operand)})"
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=ast.Constant(value=int())):
            yield "off by one", ast.unparse(left)
        case ast.BinOp(left=left, op=ast.Add(), right=right) if not _is_text(left) and not _is_text(right):
            yield "sum", ast.unparse(ast.BinOp(left, ast.Sub(), right))
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            yield "sum", ast.unparse(ast.BinOp(left, ast.Add(), right))
        case ast.Constant(value=bool() as value):
            yield "constant", str(not value)
        case ast.Constant(value=int() | float() as value):
            yield "constant", str(value + 1)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield "condition turned", ast.unparse(ast.IfExp(test, orelse, body))
        case ast.Call():
            yield from _call_replacements(node)


def _call_replacements(node: ast.Call) -> Iterator[tuple[str, str]]:
    word = _word(node.func)
    if isinstance(node.func, ast.Name) and word in OPPOSITE_CALLS:
        yield "opposite call", ast.unparse(ast.Call(ast.Name(OPPOSITE_CALLS[word]), node.args, node.keywords))
    match node.args:
        case [first, second, *rest] if word not in DECLARING_CALLS | OPPOSITE_CALLS.keys():
            # Of different forms they are of different types, as a rule, and the type checker objects.
            if isinstance(first, ast.Name | ast.Attribute) and type(first) is type(second):
                yield "arguments swapped", ast.unparse(ast.Call(node.func, [second, first, *rest], node.keywords))


def _word(node: ast.AST) -> str:
    """The last word of a name, as ``Protocol`` of ``typing.Protocol[T]``."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return _word(value)
        case ast.Call(func=function):
            return _word(function)
    return ""


def _is_log_call(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=method)):
            return method in LOG_METHODS and "log" in _word(owner).lower()
    return False


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _needs_brackets(node: ast.expr) -> bool:
    return isinstance(node, ast.Compare | ast.BoolOp | ast.BinOp | ast.IfExp)
