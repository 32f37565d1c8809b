"""Who may import whom: the house rules, read from the source without running it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import prfaas_ref

ROOT = Path(prfaas_ref.__file__).parent
BASE = {"units", "request", "errors"}
STDLIB = set(sys.stdlib_module_names)
CORE = {"torch", "einops", "numpy", "safetensors", "tqdm"}
TORCH_FREE = {"model.sizes", "model.config", "model.cache_shape", "cache.index", "cache.keys", "cache.allocation"}

# part -> (parts of this package it may import, other packages it may import)
RULES = {
    "units": (set(), set()),
    "errors": (set(), set()),
    "request": ({"units"}, set()),
    "model": (BASE | {"model"}, {"torch", "einops", "safetensors", "numpy"}),
    "cache": (BASE | {"cache", "model.config", "model.sizes"}, {"torch", "safetensors"}),
    "transport": (BASE | {"transport"}, {"xxhash"}),
    "scheduler": (BASE | {"scheduler"} | TORCH_FREE, {"numpy"}),
    "serving": (BASE | {"model", "cache", "transport", "scheduler", "serving"}, CORE),
}
EXTRAS = {"hypothesis": {"cache.conformance"}, "matplotlib": {"scheduler.plots"}}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> set[str]:
    """Every module that this file imports anywhere, but for those imported for type checking only."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    skipped = {
        id(node)
        for guard in ast.walk(tree)
        if isinstance(guard, ast.If) and ast.unparse(guard.test) == "TYPE_CHECKING"
        for node in ast.walk(guard)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module
            found.add(node.module)
    return found


FILES = [path for path in sorted(ROOT.rglob("*.py")) if module_name(path).split(".")[0] in RULES]


def test_every_part_of_the_package_has_a_rule() -> None:
    parts = {module_name(path).split(".")[0] for path in ROOT.rglob("*.py")}
    assert parts - set(RULES) == {"", "__init__", "__main__", "cli", "commands"} & parts


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_follow_the_layers(path: Path) -> None:
    name = module_name(path)
    ours, theirs = RULES[name.split(".")[0]]
    for imported in imports(path):
        top, _, rest = imported.partition(".")
        if top == "prfaas_ref":
            allowed = any(rest == part or rest.startswith(part + ".") for part in ours)
        else:
            extra = any(name.startswith(user) for user in EXTRAS.get(top, ()))
            allowed = top in STDLIB or top in theirs or extra
        assert allowed, f"{name} imports {imported}"


def test_the_scheduler_and_its_allies_start_without_torch() -> None:
    names = [f"prfaas_ref.{module}" for module in sorted(TORCH_FREE)]
    names += [f"prfaas_ref.{module_name(p)}" for p in FILES if module_name(p).startswith(("scheduler", "transport"))]
    names = [name for name in names if not name.endswith("plots")]
    code = f"import importlib, sys; [importlib.import_module(n) for n in {names}]; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
