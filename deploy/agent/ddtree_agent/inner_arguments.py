"""The server's arguments against the installed engine's own parser, from its text: importing the engine takes seconds.

Runs in the unit's sandbox, with inner_files alone beside it. Values are told only where they cannot be a secret.
"""

import ast
import os
import re
from typing import Any, Dict, List, Optional

from .inner_files import package_dir, read_text, read_texts

#: Flags without choices or number whose values decide something that a rule asks for.
TOLD = """
--model-path --model --tokenizer-path --tokenizer-mode --speculative-draft-model-path
--speculative-draft-model --host --dist-init-addr --nccl-init-addr --device --cuda-graph-bs
--speculative-algorithm --attention-backend --prefill-attention-backend --decode-attention-backend
--grammar-backend --tool-call-parser --reasoning-parser --mamba-ssm-dtype
--speculative-draft-attention-backend --page-size --disaggregation-mode --load-format --quantization
--kv-cache-dtype --dtype --model-impl --linear-attn-backend --linear-attn-decode-backend
--linear-attn-prefill-backend --mamba-backend --served-model-name
"""
_SECRET = re.compile(r"(?i)key|token$|tokens?-file|secret|passw|credential|admin|auth")
#: Variables that change what the arguments mean. Their values are switches and device lists.
VARIABLES = """
CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN SGLANG_ENABLE_SPEC_V2
SGLANG_USE_MODELSCOPE
"""


def collect(argument: Dict[str, Any]) -> Dict[str, Any]:
    """argument: {args: the server's, skip: [prefix of directories that are no installed engine]}.

    Returns {flags, repeated, stray, known, complete, choices, types, environment, engine}. flags: {name: value},
    true for a bare flag, "" for a value that is not told; known: null where the parser's text was not found.
    """
    package = package_dir("sglang", argument.get("skip") or [])
    parser = read_parser(read_text(os.path.join(package or "", "srt", "server_args.py")), package)
    words = [
        re.sub(r"\$\{(\w+)\}", lambda m: os.environ.get(m.group(1), ""), w)
        for w in argument.get("args") or []
    ]
    flags, repeated, stray = spell(words, parser)
    return {
        "flags": flags,
        "repeated": repeated,
        "stray": stray,
        **parser,
        "environment": {name: os.environ[name] for name in VARIABLES.split() if name in os.environ},
        "engine": engine_facts(package),
    }


def read_parser(text: Optional[str], package: Optional[str] = None) -> Dict[str, Any]:
    """{known: [flag] | null, complete, choices: {flag: [value]}, types: {flag: name}, nargs: {flag: text}}.

    complete is false where the parser is also given to functions elsewhere, which may add flags. package: where the
    modules are that the text imports: some choices are the keys of a mapping in a class of theirs.
    """
    empty: Dict[str, Any] = {"known": None, "complete": False, "choices": {}, "types": {}, "nargs": {}}
    try:
        tree = ast.parse(text or "")
    except (SyntaxError, ValueError):
        return empty
    lists = mappings(tree, package)
    for node in [*tree.body, *ast.walk(tree)]:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values = _strings(node.value, lists)
            if values is not None:
                lists.setdefault(node.targets[0].id, values)
    found: Dict[str, Any] = {**empty, "known": [], "complete": True}
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            _argument(call, lists, found)
        elif isinstance(call.func, ast.Name) and call.func.id.startswith("add_") and call.args:
            found["complete"] = False
    # Without this one it is not the server's parser that was read, or one that is built in another way.
    return found if "--model-path" in found["known"] else empty


def _argument(node: ast.Call, lists: Dict[str, List[str]], found: Dict[str, Any]) -> None:
    names = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    flags = [name for name in names if name.startswith("-")]
    if any(isinstance(one, ast.Starred) for one in node.args):
        found["complete"] = False
    options = {word.arg: word.value for word in node.keywords}
    choices = _strings(options["choices"], lists) if "choices" in options else None
    kind = options.get("type")
    action = options.get("action")
    name = str(
        getattr(action, "value", "") if isinstance(action, ast.Constant) else getattr(action, "attr", "")
    )
    bare = name in ("store_true", "store_false", "store_const", "count", "BooleanOptionalAction")
    deprecated = "Deprecated" in str(getattr(action, "id", ""))
    if name == "BooleanOptionalAction":
        flags += ["--no-" + flag[2:] for flag in flags if flag.startswith("--")]
    found["known"] += flags
    for flag in flags:
        if choices is not None:
            found["choices"][flag] = choices
        if isinstance(kind, ast.Name) and kind.id in ("int", "float"):
            found["types"][flag] = kind.id
        if deprecated:
            found["nargs"][flag] = "deprecated"
        elif bare:
            found["nargs"][flag] = "0"
        elif "nargs" in options:
            found["nargs"][flag] = str(getattr(options["nargs"], "value", "*"))


def mappings(tree: ast.Module, package: Optional[str]) -> Dict[str, List[str]]:
    """{"Class.mapping": its keys} of the classes that the text imports from the package and lists the keys of."""
    wanted = {
        (node.func.value.value.id, node.func.value.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys"
        and isinstance(node.func.value, ast.Attribute) and isinstance(node.func.value.value, ast.Name)
    }  # fmt: skip
    found: Dict[str, List[str]] = {}
    for node in ast.walk(tree) if package else ():
        names = (
            {alias.asname or alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom)
            else set()
        )
        for name, attribute in sorted(wanted):
            if isinstance(node, ast.ImportFrom) and name in names and node.module:
                place = os.path.join(os.path.dirname(str(package)), *node.module.split(".")) + ".py"
                keys = _keys(read_text(place), name, attribute)
                if keys is not None:
                    found[f"{name}.{attribute}"] = keys
    return found


def _keys(text: Optional[str], name: str, attribute: str) -> Optional[List[str]]:
    """The keys of the mapping `attribute` that a class writes out, null where it does not."""
    try:
        tree = ast.parse(text or "")
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if not (isinstance(node, ast.ClassDef) and node.name == name):
            continue
        for line in node.body:
            target = line.target if isinstance(line, ast.AnnAssign) else getattr(line, "targets", [None])[0]
            value = getattr(line, "value", None)
            if isinstance(target, ast.Name) and target.id == attribute and isinstance(value, ast.Dict):
                keys = [one.value for one in value.keys if isinstance(one, ast.Constant)]
                return [str(key) for key in keys] if len(keys) == len(value.keys) else None
    return None


def _strings(node: ast.AST, lists: Dict[str, List[str]]) -> Optional[List[str]]:
    if isinstance(node, ast.Name):
        return lists.get(node.id)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("list", "sorted"):
        return _strings(node.args[0], lists) if len(node.args) == 1 else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys":
        return _strings(node.func.value, lists)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return lists.get(f"{node.value.id}.{node.attr}")
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        values = [one.value for one in node.elts if isinstance(one, ast.Constant)]
        if len(values) == len(node.elts):
            return [str(value) for value in values]
    return None


def spell(words: List[str], parser: Dict[str, Any]) -> "Any":
    """({flag: value}, [flag given twice], [flag after which a word stands that it cannot take]); values that may be
    secret are "". What a shell would take for itself (a redirection, "$@") is no argument."""
    flags: Dict[str, Any] = {}
    repeated: List[str] = []
    stray: List[str] = []
    end = next((i for i, word in enumerate(words) if re.match(r"\d*&?[<>]|&$", word)), len(words))
    words, last, at = words[:end], "", 0
    while at < len(words):
        name, equals, rest = words[at].partition("=")
        at += 1
        if not re.match(r"--?[A-Za-z]", name):
            if last and not name.startswith("$"):  # before all flags: the model of `sglang serve MODEL`
                stray.append(last)
            continue
        values = [rest] if equals else []
        while not equals and at < len(words) and not re.match(r"--?[A-Za-z]", words[at]):
            values.append(words[at])
            at += 1
        last = _whole(name, parser)
        if last in flags and last not in repeated:
            repeated.append(last)
        if parser["nargs"].get(last) == "0" and values and not equals:
            stray += [last] * sum(not value.startswith("$") for value in values)
            values = []
        flags[last] = True if not values else (" ".join(values) if _told(last, parser) else "")
    return flags, repeated, stray


def _whole(name: str, parser: Dict[str, Any]) -> str:
    """argparse takes an unambiguous beginning for the flag."""
    known = parser["known"] or []
    near = [flag for flag in known if flag.startswith(name)]
    return near[0] if name not in known and name.startswith("--") and len(set(near)) == 1 else name


def _told(name: str, parser: Dict[str, Any]) -> bool:
    if name in TOLD.split():
        return True
    return not _SECRET.search(name) and (
        name in parser["choices"] or parser["types"].get(name) in ("int", "float")
    )


def engine_facts(package: Optional[str]) -> Dict[str, Any]:
    """What this engine honours or refuses, from its text; null where the file is not there."""
    text = {
        name: read_text(os.path.join(package or "", "srt", *name.split("/")))
        for name in (
            "server_args.py",
            "models/dflash.py",
            "speculative/ngram_worker.py",
            "managers/scheduler.py",
            "layers/quantization/fp8_utils.py",
            "layers/attention/attention_registry.py",
        )
    }
    draft, args = text["models/dflash.py"], text["server_args.py"]
    guard = re.search(
        r"speculative_algorithm not in \[([^\]]*)\]:?\s+raise ValueError\(\s*\"[^\"]*LoRA", args or ""
    )
    speculative = [
        text["managers/scheduler.py"] or "",
        *read_texts(os.path.join(package or "", "srt", "speculative")),
    ]
    refusal = re.compile(r'does not support[\s"]*grammar')
    return {
        "package": package,
        "draft_layer_types": None if draft is None else "layer_types" in draft,
        "draft_rope_parameters": None if draft is None else bool(re.search("rope_parameters|get_rope_config", draft)),
        "draft_rope_default": _number(re.search(r'"rope_theta", ([\d_.e]+)', draft or "")),
        "ngram_state": None if text["speculative/ngram_worker.py"] is None
        else "mamba" in (text["speculative/ngram_worker.py"] or ""),
        "grammar_refused": any(map(refusal.search, speculative)) if package else None,
        "lora_speculation": re.findall(r'"(\w+)"', guard[1]) if guard else None,
        "hybrid_radix_refused": None if args is None else "is not compatible with radix cache when using" in args,
        "dp_refused": None if args is None
        else [word.upper() for word in re.findall(r"(\w+) speculative decoding does not support dp attention", args)],
        "mixed_chunk_off": None if args is None else "enable_mixed_chunk = False" in args,
        "fp8_marlin": None if text["layers/quantization/fp8_utils.py"] is None
        else "can_auto_enable_marlin_fp8" in (text["layers/quantization/fp8_utils.py"] or ""),
        "blackwell_hybrid": _blackwell(text["layers/attention/attention_registry.py"] or ""),
    }  # fmt: skip


def _blackwell(text: str) -> Optional[List[str]]:
    """The backends of the assertion about hybrid models on Blackwell; null where there is none."""
    found = re.search(r"if is_blackwell\(\):(.{0,900}?)hybrid GDN", text, re.S)
    return sorted(set(re.findall(r"[\"']([a-z0-9_]+)[\"']", found[1]))) or None if found else None


def _number(found: "Optional[re.Match[str]]") -> Optional[float]:
    return float(found[1].replace("_", "")) if found else None
