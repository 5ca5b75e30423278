"""The command line of 0.5.11: every flag with its type and choices (flags.json), and the resolved ServerArgs."""

import argparse
import json
import logging
import os
import sys
from typing import Any, Callable, Dict, List

logger = logging.getLogger(__name__)

# Algorithms whose draft proposes a block, so that they need a draft model and refuse logprobs.
BLOCK_DRAFT_ALGORITHMS = ["DFLASH"]
SPECULATIVE_ALGORITHMS = ["DFLASH", "EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"]
GRPC_PORT_DISTANCE = 10000
SHORT_NAMES = {
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "data_parallel_size": "dp_size",
    "expert_parallel_size": "ep_size",
    "moe_data_parallel_size": "moe_dp_size",
    "attention_context_parallel_size": "attn_cp_size",
}


def _size(text: str) -> int:
    units = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}
    return int(float(text[:-1]) * units[text[-1]]) if text[-1:] in units else int(text)


TYPES: Dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "json": json.loads,
    "size": _size,
}


class ServerArgs:
    """Resolved arguments; `vars()` of it is what /server_info shows. ValueError/OSError as the engine raises them."""

    speculative_algorithm: Any

    def __init__(self, values: Dict[str, Any]) -> None:
        self.__dict__.update(values)
        self._resolve()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"ServerArgs has no argument {name!r}")

    def __repr__(self) -> str:
        return "ServerArgs(" + ", ".join(f"{name}={value!r}" for name, value in vars(self).items()) + ")"

    @property
    def block_draft(self) -> bool:
        """Whether the algorithm drafts blocks (DFLASH and what a series adds)."""
        return self.speculative_algorithm in BLOCK_DRAFT_ALGORITHMS

    def url(self) -> str:
        """Where this server can be reached from its own machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{host}:{self.port}"

    def model_config(self) -> Dict[str, Any]:
        """config.json of the target model. OSError when there is none."""
        return read_model_config(self.model_path)

    def _resolve(self) -> None:
        if not 1 <= self.port + GRPC_PORT_DISTANCE <= 65535:
            grpc = self.port + GRPC_PORT_DISTANCE
            raise ValueError(f"SGLANG_GRPC_PORT ({grpc}) must be between 1 and 65535")
        config = self.model_config()
        unset = {
            "tokenizer_path": self.model_path,
            "served_model_name": self.model_path,
            "device": "cuda",
            "mem_fraction_static": 0.88,
            "chunked_prefill_size": 8192,
            "attention_backend": "fa3",
            "random_seed": 42,
            "page_size": 1,
        }
        for name, value in unset.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        algorithm = self.speculative_algorithm
        if not self.block_draft:
            self.speculative_algorithm = "EAGLE" if algorithm == "NEXTN" else algorithm
            return
        if self.speculative_draft_model_path is None:
            raise ValueError(
                f"{algorithm} speculative decoding requires setting --speculative-draft-model-path."
            )
        if (
            is_hybrid(config)
            and not self.disable_radix_cache
            and self.mamba_scheduler_strategy != "extra_buffer"
        ):
            raise ValueError(f"{algorithm} on a hybrid model needs --disable-radix-cache under no_buffer.")
        logger.warning(
            "Overlap scheduler is disabled when using %s speculative decoding (spec v2 is not supported yet).",
            algorithm,
        )
        self.disable_overlap_schedule = True
        self.speculative_num_steps, self.speculative_eagle_topk, self.speculative_num_draft_tokens = 1, 1, 4


def is_hybrid(config: Dict[str, Any]) -> bool:
    """A model with recurrent layers beside attention (its config names the spacing of the full ones)."""
    return "full_attention_interval" in config or "linear_attention" in config.get("layer_types", [])


def read_model_config(path: str) -> Dict[str, Any]:
    """config.json in a model directory. OSError when it is missing."""
    file = os.path.join(path, "config.json")
    if not os.path.isfile(file):
        raise OSError(f"{path} does not appear to have a file named config.json.")
    with open(file, encoding="utf-8") as stream:
        config: Dict[str, Any] = json.load(stream)
    return config


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    """Every flag of 0.5.11; those of speculative decoding that a series may touch stand here as code."""
    with open(os.path.join(os.path.dirname(__file__), "flags.json"), encoding="utf-8") as stream:
        table = json.load(stream)
    for row in table:
        options = {key: row[key] for key in ("dest", "nargs", "choices", "default", "required") if key in row}
        if row["kind"] == "true":
            parser.add_argument(*row["flags"], action="store_true", dest=row["dest"])
        elif row["kind"] == "deprecated":  # taken, and without effect
            parser.add_argument(*row["flags"], action="store_true", default=argparse.SUPPRESS)
        elif row["kind"] == "bool":
            on, off = row["flags"][0], "--no-" + row["flags"][0][2:]
            parser.add_argument(on, action="store_true", dest=row["dest"], default=row.get("default"))
            parser.add_argument(off, action="store_false", dest=row["dest"])
        else:
            parser.add_argument(*row["flags"], type=TYPES[row["kind"]], **options)
    parser.add_argument(
        "--speculative-algorithm",
        type=str,
        choices=SPECULATIVE_ALGORITHMS,
    )


def prepare_server_args(argv: List[str]) -> ServerArgs:
    """Parse as the engine does: SystemExit 2 with argparse's words for a flag, ValueError or OSError for a value."""
    parser = argparse.ArgumentParser(prog="sglang serve")
    add_cli_args(parser)
    values = vars(parser.parse_args(argv))
    configure_logging(values["log_level"])
    values = {SHORT_NAMES.get(name, name): value for name, value in values.items() if name != "config"}
    return ServerArgs(values)


def configure_logging(level: str, prefix: str = "") -> None:
    """The engine's line format on stderr; `prefix` names the rank."""
    logging.basicConfig(
        level=getattr(logging, level.upper()),
        format=f"[%(asctime)s{prefix}] %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        stream=sys.stderr,
        force=True,
    )
