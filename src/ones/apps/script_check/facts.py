"""What a script does, as far as its syntax tree shows it: calls, loops, classes, names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

#: methods of optimizers, schedulers and losses that a training loop calls
_METHODS = ("step", "zero_grad", "backward", "unscale_")
_ACCUMULATION = ("accum", "update_freq", "grad_acc")
_STEP_LIMITS = (
    "max_train_steps",
    "max_steps",
    "max_iters",
    "num_steps",
    "total_steps",
    "train_steps",
)


class Loop(NamedTuple):
    line: int
    source: str  # of its head


@dataclass(frozen=True, slots=True)
class Call:
    name: str  # with imports resolved: torch.optim.SGD; of a variable: optimizer.step
    line: int
    loops: tuple[Loop, ...]  # around it, the outermost first
    arguments: tuple[str, ...] = ()  # source of the positional ones
    keywords: tuple[str, ...] = ()

    @property
    def receiver(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def method(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(slots=True)
class Facts:
    modules: set[str] = field(default_factory=set)  # imported, in full
    calls: list[Call] = field(default_factory=list)
    bases: dict[str, int] = field(default_factory=dict)  # base classes -> line
    made_by: dict[str, str] = field(default_factory=dict)  # variable -> the call that made it
    breaks: list[int] = field(default_factory=list)  # in loops
    modulo_steps: list[int] = field(default_factory=list)  # updates under `if n % k == 0`
    names: set[str] = field(default_factory=set)
    loops: list[Loop] = field(default_factory=list)
    sets_rate: list[int] = field(default_factory=list)  # lines that set the "lr" of a group

    def imports(self, *packages: str) -> bool:
        return any(m == p or m.startswith(f"{p}.") for m in self.modules for p in packages)

    def named(self, *endings: str) -> Iterator[Call]:
        """Calls with one of these names, or with a longer path that ends so."""
        for call in self.calls:
            if any(call.name == e or call.name.endswith(f".{e}") for e in endings):
                yield call

    def has_base(self, *endings: str) -> bool:
        return any(b == e or b.endswith(f".{e}") for b in self.bases for e in endings)

    def methods(self, name: str) -> list[Call]:
        return [call for call in self.calls if call.method == name and call.receiver]

    @property
    def accumulates(self) -> bool:
        words = any(part in name for name in self.names for part in _ACCUMULATION)
        return bool(self.modulo_steps) or words

    @property
    def limits_steps(self) -> bool:
        return any(limit in self.names for limit in _STEP_LIMITS)


def facts_of(tree: ast.Module) -> Facts:
    reader = _Reader()
    reader.visit(tree)
    return reader.facts


class _Reader(ast.NodeVisitor):
    def __init__(self) -> None:
        self.facts = Facts()
        self._aliases: dict[str, str] = {}
        self._loops: tuple[Loop, ...] = ()
        self._modulo = 0

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.facts.modules.add(alias.name)
            self._aliases[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        self.facts.modules.add(module)
        for alias in node.names:
            self._aliases[alias.asname or alias.name] = f"{module}.{alias.name}"

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for base in node.bases:
            if name := self._name(base):
                self.facts.bases[name] = node.lineno
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.facts.names.add(node.id.lower())

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.facts.names.add(node.attr.lower())
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assigned(target, node.value)
        self.generic_visit(node)

    def _assigned(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=False):
                self._assigned(one, other)
        elif isinstance(target, ast.Subscript) and ast.unparse(target.slice) == "'lr'":
            self.facts.sets_rate.append(target.lineno)
        elif isinstance(value, ast.Call) and (made_by := self._name(value.func)):
            self.facts.made_by[ast.unparse(target)] = made_by

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        head = f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
        self._loop(Loop(node.lineno, head), [node.target, *node.body, *node.orelse])

    def visit_While(self, node: ast.While) -> None:
        loop = Loop(node.lineno, f"while {ast.unparse(node.test)}")
        self._loop(loop, [node.test, *node.body, *node.orelse])

    def _loop(self, loop: Loop, nodes: list[ast.expr | ast.stmt]) -> None:
        self.facts.loops.append(loop)
        before, self._loops = self._loops, (*self._loops, loop)
        for node in nodes:
            self.visit(node)
        self._loops = before

    def visit_Break(self, node: ast.Break) -> None:
        self.facts.breaks.append(node.lineno)

    def visit_If(self, node: ast.If) -> None:
        has_modulo = any(
            isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)
            for part in ast.walk(node.test)
        )
        self.visit(node.test)
        self._modulo += has_modulo
        for part in node.body:
            self.visit(part)
        self._modulo -= has_modulo
        for part in node.orelse:
            self.visit(part)

    def visit_Call(self, node: ast.Call) -> None:
        if name := self._name(node.func):
            arguments = tuple(ast.unparse(argument) for argument in node.args)
            keywords = tuple(keyword.arg for keyword in node.keywords if keyword.arg)
            call = Call(name, node.lineno, self._loops, arguments, keywords)
            self.facts.calls.append(call)
            if self._modulo and self._loops and call.method == "step":
                self.facts.modulo_steps.append(node.lineno)
        self.generic_visit(node)

    def _name(self, node: ast.expr) -> str:
        """The dotted name of an expression, with imports resolved; empty if it has none."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            parts.append(self._aliases.get(node.id, node.id))
        elif parts and parts[0] in _METHODS:
            parts.append(ast.unparse(node))  # such as criterion(x, y).backward()
        else:
            return ""
        return ".".join(reversed(parts))
