"""Facts about the checkpoints that the service names: are they whole, and what kind of model they are."""

import json
import os
from typing import Any, Dict, List, Optional

from .inner_model import hub_cache, is_hybrid, text_of
from .layout import OPT
from .unitenv import Launch

TARGET = ("--model-path", "--model")
DRAFT = ("--speculative-draft-model-path", "--speculative-draft-model")


def models(request: Dict[str, Any], launch: Optional[Launch], show: Dict[str, str]) -> Dict[str, Any]:
    """{target, draft: summary | null, target_hybrid, context_length, block_size}."""
    base = show.get("WorkingDirectory", "").lstrip("!-") or "/"
    flag = launch.value if launch else lambda *names: None
    asked = named(request, launch)
    found = {"target": summary(asked["target"], base), "draft": summary(asked["draft"], base)}
    main, side = found["target"] or {}, found["draft"] or {}
    context = flag("--context-length")
    return {
        **found,
        "target_hybrid": main.get("hybrid"),
        "context_length": int(context) if context and context.isdigit() else None,
        "block_size": side.get("block_size"),
    }


def named(request: Dict[str, Any], launch: Optional[Launch]) -> Dict[str, Any]:
    """inner_model's argument: the checkpoints as the service names them."""
    flag = launch.value if launch else lambda *names: None
    target, draft = request.get("model") or flag(*TARGET), request.get("draft") or flag(*DRAFT)
    return {"target": target, "draft": draft, "skip": [OPT + "/"]}


def stored(
    request: Dict[str, Any], launch: Optional[Launch], env: Dict[str, str], home: Optional[str]
) -> Dict[str, Any]:
    """inner_weights' argument. Touches no file: a dead mount would hold up every section that runs inside the unit."""
    asked = named(request, launch)
    return {
        "target": asked["target"],
        "draft": asked["draft"],
        "cache": hub_cache({"HOME": home or "/root", **env}),
    }


def summary(path: Optional[str], base: str) -> Optional[Dict[str, Any]]:
    """A checkpoint directory in short: {path, local, exists, config…, missing_shards: [name]}.

    A name that is no directory and looks like `owner/model` is a hub id: local is false and nothing is known.
    """
    if not path:
        return None
    place = os.path.join(base, path)
    if not os.path.isdir(place):
        hub = not path.startswith(("/", ".", "~")) and path.count("/") == 1
        return {"path": path, "local": not hub, "exists": None if hub else False}
    try:
        with open(os.path.join(place, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError) as error:
        return {"path": path, "local": True, "exists": True, "error": f"config.json: {error}"}
    return {
        "path": path,
        "local": True,
        "exists": True,
        **describe(config),
        "missing_shards": _missing(place),
    }


def describe(config: Dict[str, Any]) -> Dict[str, Any]:
    """What a config.json says that decides how the engine may speculate."""
    text = text_of(config)
    kinds = text.get("layer_types") or text.get("layers_block_type") or []
    dflash = config.get("dflash_config") if isinstance(config.get("dflash_config"), dict) else None
    return {
        "architectures": config.get("architectures"),
        "model_type": config.get("model_type"),
        "layers": text.get("num_hidden_layers"),
        "layer_types": sorted({str(kind) for kind in kinds}),
        "hybrid": is_hybrid(config, text),
        "max_position_embeddings": text.get("max_position_embeddings"),
        "block_size": (dflash or {}).get("block_size") or config.get("block_size"),
        "dflash_config": dflash,
        "vocab_size": text.get("vocab_size"),
    }


def _missing(place: str) -> List[str]:
    try:
        with open(os.path.join(place, "model.safetensors.index.json"), encoding="utf-8") as file:
            names = set(json.load(file)["weight_map"].values())
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, AttributeError):
        return ["model.safetensors.index.json"]
    return sorted(name for name in names if not os.path.isfile(os.path.join(place, str(name))))[:20]
