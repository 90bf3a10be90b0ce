"""The direction of imports (docs/architecture.md): a room may only know the rooms before it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import coterie

SOURCE = Path(coterie.__file__).parent

BASE = {"tensors", "randomness"}
WORDS = BASE | {"message", "states", "method"}
MAY_KNOW = {
    "tensors": set(),
    "randomness": {"tensors"},
    "message": BASE,
    "states": BASE | {"message"},
    "method": BASE | {"message", "states"},
    "models": BASE,
    "data": BASE,
    "metrics": BASE,
    "attribution": BASE,
    "reduce": BASE | {"message"},
    "privacy": BASE | {"message"},
    "attacks": BASE | {"message"},
    "methods": WORDS | {"attribution", "models"},
    "engine": WORDS | {"reduce", "privacy", "attacks", "models", "data", "metrics"},
    "report": {"metrics"},
    "options": set(),
}
FREE = {"recipes", "cli", "__init__", "__main__"}  # only these see both methods and engine
THIRD_PARTY_CORE = {"torch", "numpy", "sklearn", "scipy", "safetensors", "rich"}


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(tree: ast.AST, *, top_level_only: bool = False) -> list[str]:
    nodes = tree.body if top_level_only and isinstance(tree, ast.Module) else ast.walk(tree)
    found: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_rooms_know_only_the_rooms_before_them() -> None:
    wrong = []
    for path in modules():
        here = room(path)
        if here in FREE:
            continue
        for name in imported(ast.parse(path.read_text())):
            if name.startswith("coterie."):
                there = name.split(".")[1]
                if there != here and there not in MAY_KNOW[here]:
                    wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_a_method_knows_no_other_method_but_the_base() -> None:
    wrong = []
    for path in sorted((SOURCE / "methods").rglob("*.py")):
        if path == SOURCE / "methods" / "__init__.py":
            continue
        own = path.relative_to(SOURCE / "methods").parts[0].removesuffix(".py")
        for name in imported(ast.parse(path.read_text())):
            if name.startswith("coterie.methods.") and name.split(".")[2] not in (own, "fedavg"):
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_core_imports_no_extra_and_never_torchvision() -> None:
    import sys

    allowed = THIRD_PARTY_CORE | set(sys.stdlib_module_names) | {"coterie"}
    wrong = []
    for path in modules():
        tree = ast.parse(path.read_text())
        wrong += [f"{path.name}: {n}" for n in imported(tree, top_level_only=True) if n.split(".")[0] not in allowed]
        wrong += [f"{path.name}: {n}" for n in imported(tree) if n.split(".")[0] == "torchvision"]
    assert not wrong, "\n".join(wrong)


def test_no_pickle_and_no_long_file() -> None:
    wrong = []
    for path in modules():
        text = path.read_text()
        wrong += [f"{path.name} uses {word}" for word in ("import pickle", "torch.load(", "allow_pickle=True", "eval(") if f" {word}" in text]
        if len(text.splitlines()) > 400:
            wrong.append(f"{path.name} has {len(text.splitlines())} lines")
    assert not wrong, "\n".join(wrong)


def test_what_a_worker_imports_leaves_slow_libraries_alone() -> None:
    """scikit-learn takes longer to import than all of the package, and every worker would wait for it."""
    found = "import sys, coterie.methods, coterie.engine.run; print([m for m in ('sklearn', 'scipy.stats', 'torchvision') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", found], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
