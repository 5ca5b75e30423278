"""Facts about the Python code that a checkpoint brings with it: are its files there, and what they import.

Runs in the unit's sandbox: it imports the standard library and inner_files alone. No code of a checkpoint is run: it
is parsed.
"""

import ast
import importlib.util
import json
import os
from typing import Any, Dict, List, Set, Tuple

from .inner_files import checkpoint_place

#: What the engine loads through transformers' dynamic modules; the model class itself is the engine's own.
_LOADED = ("AutoConfig", "AutoTokenizer", "AutoProcessor", "AutoImageProcessor")
_CONFIGS = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")
_PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
_TEXT_MAX = 4 << 20
_FILES_MAX = 40


def collect(argument: Dict[str, Any]) -> Dict[str, Any]:
    """argument: {target, draft: a directory or a hub id, cache: the hub's}.

    Returns {target, draft: {files, missing, elsewhere, needs, processor}, or null where there is no directory}.
    """
    cache = argument.get("cache") or ""
    found = {}
    for name in ("target", "draft"):
        place = checkpoint_place(argument.get(name), cache)
        found[name] = code(place, cache) if place and os.path.isdir(place) else None
    return found


def code(place: str, cache: str) -> Dict[str, Any]:
    """files: modules that its configs name and that are there; missing: those that are not; elsewhere: repositories
    that they come from, without a cached copy; needs: packages that they import and that are not installed."""
    named, elsewhere = _named(place)
    files, missing, needs = _follow(place, named)
    return {
        "files": files,
        "missing": missing,
        "elsewhere": sorted(repo for repo in elsewhere if checkpoint_place(repo, cache) in (None, repo)),
        "needs": needs,
        "processor": [name for name in _PROCESSORS if os.path.isfile(os.path.join(place, name))],
    }


def _named(place: str) -> Tuple[List[str], Set[str]]:
    """(modules in the directory, other repositories) that the auto_map of a config names."""
    modules: List[str] = []
    elsewhere: Set[str] = set()
    for name in _CONFIGS:
        try:
            auto = json.loads(_text(os.path.join(place, name))).get("auto_map") or {}
            values = [auto[key] for key in _LOADED if key in auto] if isinstance(auto, dict) else [auto]
        except (OSError, ValueError, AttributeError):
            continue
        flat = [one for value in values for one in (value if isinstance(value, list) else [value])]
        for reference in flat:
            if not isinstance(reference, str) or "." not in reference:
                continue
            repo, _, rest = reference.rpartition("--")
            if repo:
                elsewhere.add(repo)
            else:
                modules.append(rest.split(".")[0] + ".py")
    return sorted(set(modules)), elsewhere


def _follow(place: str, modules: List[str]) -> Tuple[List[str], List[str], List[str]]:
    """(files, missing files, packages not installed) of these modules and of what they import beside them."""
    files: List[str] = []
    missing: List[str] = []
    packages: Set[str] = set()
    waiting = list(modules)
    while waiting and len(files) + len(missing) < _FILES_MAX:
        name = waiting.pop(0)
        if name in files or name in missing:
            continue
        try:
            tree = ast.parse(_text(os.path.join(place, name)))
        except (OSError, ValueError, SyntaxError):
            if not os.path.isfile(os.path.join(place, name)):
                missing.append(name)
            continue
        files.append(name)
        beside, outside = _imports(tree)
        waiting += sorted(beside)
        packages |= outside
    return files, missing, sorted(package for package in packages if not _installed(package))


def _imports(tree: ast.AST) -> Tuple[Set[str], Set[str]]:
    """(files beside it, packages) that a module imports whatever happens: nothing below `try` or `if`."""
    beside: Set[str] = set()
    outside: Set[str] = set()
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Try, ast.If)):
            continue
        if isinstance(node, ast.Import):
            outside |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            outside.add(node.module.split(".")[0])
        elif isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
            beside.add(node.module.split(".")[0] + ".py")
        waiting += list(ast.iter_child_nodes(node))
    return beside, outside


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError, AttributeError):
        return True  # half there: not for us to say


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(_TEXT_MAX)
