"""Every import of the package, read from the sources without running them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tamis"


@dataclass(frozen=True)
class Import:
    """One import.

    Attributes:
        module: the importing module, e.g. "tamis.runner.inputs".
        target: what it imports, e.g. "tamis.engine.plan" or "torch.nn"; of `from x import y` it is "x.y" when that
            is a module of the package, else "x".
        line: in the importing file.
        at_import: whether it runs when the module is imported: not inside a function, not under TYPE_CHECKING.
    """

    module: str
    target: str
    line: int
    at_import: bool

    @property
    def place(self) -> str:
        """Part of the package that imports: its first folder, or the module's name at the root."""
        return part(self.module)

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def part(module: str) -> str:
    """First folder below tamis, or the root module's own name ("tamis" for the package's __init__)."""
    return module.split(".")[1] if "." in module else module


def sources() -> list[Path]:
    """Every Python file of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    """tamis/cache/layout.py → tamis.cache.layout; an __init__.py has its folder's name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_imports() -> list[Import]:
    """All imports of all modules, those inside functions, under TYPE_CHECKING and by `import_module` included."""
    modules = {module_name(path) for path in sources()}
    return [found for path in sources() for found in _file_imports(path, modules)]


def _file_imports(path: Path, modules: set[str]) -> Iterator[Import]:
    module = module_name(path)
    # What a relative import counts from: the folder, which for an __init__.py is the module itself.
    folder = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def visit(node: ast.AST, at_import: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            runs = at_import and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                runs = False
            for target in _targets(child, folder, modules):
                yield Import(module, target, child.lineno, runs)
            yield from visit(child, runs)

    return visit(ast.parse(path.read_text(encoding="utf-8"), str(path)), True)


def _targets(node: ast.AST, folder: str, modules: set[str]) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [name.name for name in names]
        case ast.ImportFrom(module=source, names=names, level=level):
            above = folder.split(".")
            base = ".".join([*above[: len(above) - level + 1], *([source] if source else [])]) if level else source
            full = [f"{base}.{name.name}" for name in names]
            return [name if name in modules else str(base) for name in full]
        case ast.Call(func=func, args=[ast.Constant(value=str(target)), *_]):
            return [target] if ast.unparse(func).endswith(("import_module", "__import__")) else []
    return []
