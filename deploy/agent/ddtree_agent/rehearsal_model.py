"""A checkpoint of few layers and no weights, for a rehearsal: the real one's configs, cut, and links to the rest.

`--json-model-override-args` would do it with one flag, but it reaches target and draft alike, and not what lies nested
(text_config, dflash_config).
"""

import json
import os
import stat
from typing import Any, Dict, List, Optional

from . import inner_model

#: Layers that are kept at least: enough for every shape of work, few enough to be small.
TARGET_LAYERS, DRAFT_LAYERS = 4, 2
_LARGEST = 16 << 20
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".index.json")
#: "Every n-th layer is of another kind", and "the first n layers are": both kinds must be there.
_EVERY = ("full_attention_interval", "sliding_window_pattern", "attn_layer_period", "decoder_sparse_step")
_FIRST = ("first_k_dense_replace", "moe_layer_start_index")
_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
#: Words in the names of keys that hold a value for each layer; a text does so in a pattern alone.
_LAYERED = ("pattern", "layer", "type", "freq")
#: Which layers of the target a draft reads.
_READS = ("target_layer_ids", "eagle_aux_hidden_state_layer_ids")


def directory(given: str, environ: Dict[str, str]) -> Optional[str]:
    """Where a checkpoint lies: itself, or a hub id's cached copy for these variables; None where it is not here."""
    if os.path.isdir(given):
        return given
    return inner_model.snapshot(given, inner_model.hub_cache(environ))


def read(place: str) -> Dict[str, Any]:
    """Its config.json. Raises OSError, or ValueError for anything but an object in a file: a pipe of that name would
    hold the caller, and the host's lock, for ever."""
    handle = os.open(os.path.join(place, "config.json"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("config.json: no regular file")
        text = file.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise ValueError(f"config.json: more than {_LARGEST >> 20} MiB")
    try:
        config = json.loads(text)
    except RecursionError:
        raise ValueError("config.json: nested without end") from None
    if not isinstance(config, dict):
        raise ValueError("config.json: no object")
    return config


def layers(config: Dict[str, Any], least: int) -> int:
    """How many layers hold every kind of layer that the model has, `least` or more where it has as many."""
    text = inner_model.text_of(config)
    total = _total(text)
    need = [
        least,
        *(_number(text.get(key)) for key in _EVERY),
        *(_number(text.get(key)) + 1 for key in _FIRST),
    ]
    for kinds in _by_layer(text, total).values():
        need.append(1 + max(kinds.index(kind) for kind in kinds))
    return min(total, max(need)) if total else 0


def cut(config: Dict[str, Any], count: int) -> Dict[str, Any]:
    """The config with its first `count` layers; what is said layer by layer is cut with them."""
    found: Dict[str, Any] = json.loads(json.dumps(config))
    text = inner_model.text_of(found)
    total = _total(text)
    for key, kinds in _by_layer(text, total).items():
        text[key] = kinds[:count]
    for key in _COUNTS:
        if text.get(key) == total:
            text[key] = count
    return found


def reads(config: Dict[str, Any]) -> int:
    """Of how many of the target's layers a draft reads the hidden states."""
    return max((len(place[key]) for place, key in _reading(config)), default=0)


def reading(config: Dict[str, Any], count: int) -> Dict[str, Any]:
    """A draft's config for a target of `count` layers: it reads as many of them as before, in the same order."""
    found: Dict[str, Any] = json.loads(json.dumps(config))
    for place, key in _reading(found):
        wide = len(place[key])
        place[key] = [index * (count - 1) // wide for index in range(wide)]
    for place in (found, found.get("dflash_config")):
        if isinstance(place, dict) and "num_target_layers" in place:
            place["num_target_layers"] = count
    return found


def make(place: str, config: Dict[str, Any], source: str) -> None:
    """Write the small checkpoint: this config, and a link to everything of `source` that is no weight."""
    os.makedirs(place, mode=0o755)
    real = os.path.realpath(source)
    for name in sorted(os.listdir(real)):
        if name != "config.json" and not name.endswith(_WEIGHTS):
            os.symlink(os.path.join(real, name), os.path.join(place, name))
    with open(os.path.join(place, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=1)


def _total(text: Dict[str, Any]) -> int:
    return next((number for number in (_number(text.get(key)) for key in _COUNTS) if number), 0)


def _by_layer(text: Dict[str, Any], total: int) -> "Dict[str, List[Any]]":
    """What the config says of each layer: a list, or a text of one letter a layer (hybrid_override_pattern)."""
    return {
        key: value
        for key, value in text.items()
        if total > 1
        and len(value if isinstance(value, (list, str)) else ()) == total
        and any(word in key for word in (_LAYERED if isinstance(value, list) else _LAYERED[:1]))
        and key not in _READS
    }


def _reading(config: Dict[str, Any]) -> "List[Any]":
    places = [config, config.get("dflash_config"), config.get("eagle_config")]
    return [
        (place, key)
        for place in places
        if isinstance(place, dict)
        for key in _READS
        if isinstance(place.get(key), list) and place[key]
    ]


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
