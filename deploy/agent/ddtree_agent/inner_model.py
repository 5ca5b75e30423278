"""Facts about target and draft as the service itself sees them: configs, tokenizer, the hub.

Runs in the unit's sandbox, with inner_files alone beside it. The weights are inner_weights.py's.
"""

import json
import os
import re
from typing import Any, Dict, List, Optional

from .inner_files import JSON_MAX, LFS, package_dir, read_json, read_text, read_texts

NAMED = 8
_HYBRID_WORDS = ("linear_attention", "mamba", "recurrent", "gated_delta")
_HYBRID_KEYS = (
    "full_attention_interval",
    "linear_conv_kernel_dim",
    "mamba_d_state",
    "mamba_d_conv",
    "ssm_cfg",
)
_TOKENIZERS = re.compile(
    r"tokenizer\.(json|model(\.v\d+)?)|vocab\.(json|txt)|(tiktoken|spiece|sentencepiece\.bpe)\.model"
    r"|.*\.tiktoken|tekken\.json|tokenization_\w+\.py|.*\.gguf"
)
#: Tokenizer files that transformers can read only with this library, where there is no tokenizer.json.
_SLOW = {"tokenizer.model": "sentencepiece", "spiece.model": "sentencepiece", "tiktoken.model": "tiktoken"}
_PLAIN = """
num_hidden_layers hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim vocab_size
sliding_window use_sliding_window max_position_embeddings kv_lora_rank qk_rope_head_dim n_routed_experts num_experts
num_local_experts linear_num_value_heads linear_num_key_heads linear_key_head_dim linear_value_head_dim
linear_conv_kernel_dim full_attention_interval mamba_ssm_dtype draft_vocab_size target_hidden_size
num_nextn_predict_layers
"""


def collect(argument: Dict[str, Any]) -> Dict[str, Any]:
    """argument: {target, draft: path or hub id or null, skip: [prefix of directories that are no installed engine]}.

    Returns {target, draft: side | null, same, hub, transformers}.
    """
    hub = hub_facts(os.environ)
    library = Library(argument.get("skip") or [])
    found = {
        name: side(str(argument[name]), hub, library) if argument.get(name) else None
        for name in ("target", "draft")
    }
    places = [one["directory"] for one in found.values() if one and one.get("directory")]
    draft, target = found["draft"], found["target"]
    if draft and target and target.get("directory") and draft.get("dflash"):
        word = draft["dflash"].get("mask_token") or "<|MASK|>"
        draft["mask_token_in_target"] = _holds(os.path.join(target["directory"], "tokenizer.json"), word)
    return {
        **found,
        "same": len(places) == 2 and os.path.realpath(places[0]) == os.path.realpath(places[1]),
        "hub": hub,
        "transformers": library.transformers_version(),
    }


def side(given: str, hub: Dict[str, Any], library: "Library") -> Dict[str, Any]:
    """One checkpoint. {path, hub: bool, exists, directory, …}; `denied`: what this user may not read, or null."""
    answer: Dict[str, Any] = {"path": given, "hub": False, "exists": True, "directory": given, "denied": None}
    if os.path.isfile(given) and given.endswith(".gguf"):
        return {**answer, "directory": os.path.dirname(given), "gguf": True}
    if not os.path.isdir(given):
        denied = _denied(given)
        if denied or not _hub_id(given):
            return {**answer, "exists": None if denied else False, "denied": denied, "directory": None}
        place = snapshot(given, str(hub["cache"]))
        answer.update(hub=True, exists=None, directory=place)
        if place is None:
            return answer
    place = str(answer["directory"])
    try:
        names = sorted(os.listdir(place))
        config = read_json(os.path.join(place, "config.json"))
    except PermissionError as error:
        return {**answer, "denied": error.filename}
    except (OSError, ValueError) as error:
        return {**answer, "error": f"config.json: {error}"}
    if not isinstance(config, dict):
        return {**answer, "error": "config.json: no object"}
    return {
        **answer,
        **describe(config),
        **library.knows(config),
        "tokenizer": [name for name in names if _TOKENIZERS.fullmatch(name)][:20],
        "tokenizer_faults": _tokenizer_faults(place, names),
        **library.tokenizer(place, names),
        "filesystem": filesystem(place),
    }


def describe(config: Dict[str, Any]) -> Dict[str, Any]:
    """The keys of a config.json that decide how the engine serves it, text_config taken for a multimodal one."""
    text = text_of(config)
    kinds = [str(kind) for kind in text.get("layer_types") or text.get("layers_block_type") or []]
    rope = _dict(text.get("rope_parameters"))
    scaling = _dict(text.get("rope_scaling")) or rope
    quantization = config.get("quantization_config") or text.get("quantization_config")
    found: Dict[str, Any] = {key: text.get(key) for key in _PLAIN.split()}
    joined = config.get("eagle_aux_hidden_state_layer_ids") or _dict(config.get("eagle_config")).get(
        "eagle_aux_hidden_state_layer_ids"
    )
    dflash = dict(_dict(config.get("dflash_config")))
    for key in ("target_layer_ids", "block_size", "num_target_layers"):
        if key not in dflash and config.get(key) is not None:
            dflash[key] = config[key]
    wanted = ("target_layer_ids", "block_size", "num_target_layers", "mask_token", "mask_token_id")
    found.update(
        architectures=config.get("architectures") or [],
        model_type=config.get("model_type"),
        text_model_type=text.get("model_type"),
        layer_types={kind: kinds.count(kind) for kind in sorted(set(kinds))},
        hybrid=is_hybrid(config, text),
        multimodal="vision_config" in config or "audio_config" in config,
        dtype=text.get("dtype")
        or text.get("torch_dtype")
        or config.get("dtype")
        or config.get("torch_dtype"),
        quantization=quantization.get("quant_method") if isinstance(quantization, dict) else None,
        tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        remote_code=bool(config.get("auto_map")),
        rope_theta=text.get("rope_theta"),
        rope_parameters_theta=rope.get("rope_theta"),
        rope_factor=scaling.get("factor"),
        rope_original=scaling.get("original_max_position_embeddings"),
        eagle_layers=len(joined) if isinstance(joined, list) and joined else None,
        dflash={key: dflash.get(key) for key in wanted} if dflash else None,
    )
    return found


def _dict(value: Any) -> Dict[str, Any]:
    return value if isinstance(value, dict) else {}


def text_of(config: Dict[str, Any]) -> Dict[str, Any]:
    """The language model's part of a config."""
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        below = config.get(key)
        if isinstance(below, dict):
            return text_of(below)
    return config


def is_hybrid(config: Dict[str, Any], text: Dict[str, Any]) -> bool:
    """Whether some layers carry a recurrent state (GDN, Mamba): by layer types or such models' keys."""
    kinds = [str(kind) for kind in text.get("layer_types") or text.get("layers_block_type") or []]
    if any(word in kind for kind in kinds for word in _HYBRID_WORDS):
        return True
    return any(text.get(key) or config.get(key) for key in _HYBRID_KEYS)


def _tokenizer_faults(place: str, names: List[str]) -> List[str]:
    """Tokenizer files that are empty, LFS pointers or no JSON."""
    faults = []
    for name in names:
        if not _TOKENIZERS.fullmatch(name) or name.endswith((".gguf", ".py")):
            continue
        try:
            with open(os.path.join(place, name), "rb") as file:
                head = file.read(64)
                file.seek(max(0, os.fstat(file.fileno()).st_size - 64))
                tail = file.read().rstrip()
        except OSError as error:
            faults.append(f"{name} cannot be read: {error.strerror}")
            continue
        if not head:
            faults.append(f"{name} is empty (0 bytes)")
        elif head.startswith(LFS):
            faults.append(f"{name} is a Git LFS pointer")
        elif name.endswith(".json") and not (head.lstrip()[:1] in (b"{", b"[") and tail[-1:] in (b"}", b"]")):
            faults.append(f"{name} is no whole JSON")
    return faults[:NAMED]


def hub_cache(environ: Any) -> str:
    """The hub client's cache directory for these variables."""
    return str(
        environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or f"{_hub_home(environ)}/hub"
    )


def _hub_home(environ: Any) -> str:
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME", "/root"), ".cache")
    return str(environ.get("HF_HOME") or os.path.join(cache, "huggingface"))


def hub_facts(environ: Any) -> Dict[str, Any]:
    """Where the hub's cache is for this user and what decides whether it is used. Names of variables, no values."""
    cache = hub_cache(environ)
    yes = ("1", "true", "yes", "on")
    offline = [
        name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if environ.get(name, "").lower() in yes
    ]
    token = bool(environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN"))
    stored = environ.get("HF_TOKEN_PATH") or os.path.join(_hub_home(environ), "token")
    return {
        "cache": cache,
        "exists": os.path.isdir(cache),
        "writable": os.access(cache, os.W_OK) if os.path.isdir(cache) else None,
        "offline": bool(offline),
        "token": token or os.access(stored, os.R_OK),
        "variables": sorted(
            n for n in environ if n.startswith(("HF_", "HUGGING", "TRANSFORMERS_", "MODELSCOPE"))
        ),
    }


def snapshot(name: str, cache: str) -> Optional[str]:
    """The directory of a hub id's cached copy, None where there is none with a config."""
    base = os.path.join(cache, "models--" + name.replace("/", "--"))
    try:
        with open(os.path.join(base, "refs", "main"), encoding="ascii") as file:
            found = [file.read(64).strip()]
    except (OSError, ValueError):
        try:
            found = sorted(os.listdir(os.path.join(base, "snapshots")))
        except OSError:
            return None
    places = [os.path.join(base, "snapshots", one) for one in found]
    return next((place for place in places if os.path.exists(os.path.join(place, "config.json"))), None)


def filesystem(path: str) -> Optional[str]:
    """The type of the filesystem that holds path (/proc/self/mountinfo, proc(5))."""
    real = os.path.realpath(path) + "/"
    best, kind = -1, None
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                left, _, right = line.partition(" - ")
                point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), left.split()[4])
                if real.startswith(point.rstrip("/") + "/") and len(point) >= best:
                    best, kind = len(point), right.split()[0]
    except (OSError, IndexError):
        return None
    return kind


class Library:
    """What the interpreter's transformers and engine can load, from their text: importing them takes seconds."""

    def __init__(self, skip: List[str]) -> None:
        self.transformers = package_dir("transformers", skip)
        self.engine = package_dir("sglang", skip)

    def knows(self, config: Dict[str, Any]) -> Dict[str, Any]:
        """{type_known, class_known: bool, or null where that cannot be told}."""
        kind, names = config.get("model_type"), config.get("architectures") or []
        return {
            "type_known": self._type(str(kind)) if kind else None,
            "class_known": self._class([str(name) for name in names]) if names else None,
        }

    def transformers_version(self) -> Optional[str]:
        text = read_text(os.path.join(self.transformers or "", "__init__.py"))
        found = re.search(r'^__version__ = "([^"]+)"', text or "", re.M)
        return found[1] if found else None

    def tokenizer(self, place: str, names: List[str]) -> Dict[str, Any]:
        """{tokenizer_class, tokenizer_class_known: bool, tokenizer_needs: a library that is missing, chat_template:
        bool}, or null each."""
        try:
            said = read_json(os.path.join(place, "tokenizer_config.json"))
            name = str(said.get("tokenizer_class") or "") or None
            template: Optional[bool] = bool(said.get("chat_template"))
        except (OSError, ValueError, AttributeError):
            name = template = None
        # tekken.json brings its own way to write a chat.
        if any(
            one.startswith(("chat_template.", "tekken.json", "additional_chat_templates")) for one in names
        ):
            template = True
        slow = [] if "tokenizer.json" in names else [one for one in names if one in _SLOW]
        lacks = [_SLOW[one] for one in slow if package_dir(_SLOW[one], []) is None]
        return {
            "tokenizer_class": name,
            "tokenizer_class_known": self._tokenizer_class(name) if name and self.transformers else None,
            "tokenizer_needs": lacks[0] if lacks and self.transformers else None,
            "chat_template": template,
        }

    def _tokenizer_class(self, name: str) -> Optional[bool]:
        base = str(self.transformers)
        texts = [read_text(os.path.join(base, "models", "auto", "tokenization_auto.py")), *read_texts(base)]
        if texts[0] is None:
            return None
        plain = name[:-4] if name.endswith("Fast") else name
        found = re.compile(r"\b%s(Fast)?\b" % re.escape(plain))
        return any(found.search(text) for text in texts if text)

    def _type(self, kind: str) -> Optional[bool]:
        auto = os.path.join(self.transformers or "", "models", "auto")
        texts = [
            read_text(os.path.join(auto, name)) for name in ("configuration_auto.py", "auto_mappings.py")
        ]
        if self.transformers is None or texts[0] is None:
            return None
        if any(f'"{kind}"' in text for text in texts if text):
            return True
        utils = os.path.join(self.engine or "", "srt", "utils", "hf_transformers")
        if any(f'"{kind}"' in text for text in read_texts(utils)):
            return True
        own = re.compile("model_type[^=\\n]*=\\s*[\"']%s[\"']" % re.escape(kind))
        return any(own.search(text) for text in read_texts(os.path.join(self.engine or "", "srt", "configs")))

    def _class(self, names: List[str]) -> Optional[bool]:
        texts = read_texts(os.path.join(self.engine or "", "srt", "models"))
        if not texts:
            return None
        found = re.compile(
            r"^class (%s)\b|EntryClass.*\b(%s)\b" % ((("|".join(map(re.escape, names))),) * 2), re.M
        )
        return any(found.search(text) for text in texts)


def _holds(path: str, word: str) -> Optional[bool]:
    """Whether a JSON file has this string; null where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return json.dumps(word)[1:-1].encode() in file.read(JSON_MAX)
    except OSError:
        return None


def _hub_id(given: str) -> bool:
    return not given.startswith(("/", ".", "~")) and given.count("/") == 1


def _denied(path: str) -> Optional[str]:
    """The first directory on the way that this user may not enter."""
    real = os.path.abspath(path)
    parts = real.split("/")
    for i in range(1, len(parts)):
        place = "/".join(parts[:i]) or "/"
        if os.path.isdir(place) and not os.access(place, os.X_OK):
            return place
    return None
