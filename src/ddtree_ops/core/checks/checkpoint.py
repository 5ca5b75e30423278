"""Rules about model files: whole, readable by the service, of a kind that this environment can load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ddtree_ops.core.checks.argument_facts import ARGUMENTS, Arguments, judged
from ddtree_ops.core.checks.checkpoint_facts import CHECKPOINTS, WEIGHTS, Checkpoints, Hub, Side, Weights
from ddtree_ops.core.checks.rule import Rule
from ddtree_ops.core.facts_live import Launch
from ddtree_ops.core.finding import Finding, block, ok, warn

if TYPE_CHECKING:
    from ddtree_ops.core.facts_live import Live
    from ddtree_ops.core.wanted import Wanted

#: Filesystems whose reads cross a network, or a program in user space.
_REMOTE = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "ceph",
    "9p",
    "virtiofs",
    "fuse",
    "gluster",
    "beegfs",
    "gpfs",
    "afs",
    "ocfs",
)
#: Methods that read quantised weights and cannot make them.
_NEED_CHECKPOINT = (
    "awq",
    "gptq",
    "marlin",
    "modelopt",
    "compressed",
    "moe_wna16",
    "qoq",
    "petit",
    "auto-round",
)
#: Methods that the engine takes for one another: the checkpoint's name to names of --quantization.
_SAME_METHOD = ("awq", "gptq", "modelopt", "compressed", "fp8", "w8a8", "mxfp4")


def arguments(live: Live, wanted: Wanted) -> Arguments | None:
    """The arguments that a deploy is about; None where they are unknown."""
    found = live.of(ARGUMENTS)
    return judged(found, wanted) if isinstance(found, Arguments) else None


def interpreter(live: Live) -> str:
    """The engine's Python, for a remedy."""
    return live.launch.interpreter if isinstance(live.launch, Launch) else "python3"


def sides(found: Checkpoints) -> Iterator[tuple[str, Side]]:
    """(name in hosts.yaml, checkpoint) of those that the service names."""
    for name, side in (("model", found.target), ("draft", found.draft)):
        if side is not None:
            yield name, side


def whole(found: Weights, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """Every weight file is there and as long as its own header says."""
    seen = live.of(CHECKPOINTS)
    said: list[Finding] = []
    for name, files in (("target", found.target), ("draft", found.draft)):
        side = getattr(seen, name) if isinstance(seen, Checkpoints) else None
        place = side.path if side else f"the {name}"
        args = arguments(live, wanted)
        if files is None:
            continue
        if args and args.text("--load-format") in ("dummy", "remote"):
            said.append(
                ok("weights", f"{place}: no file is read (--load-format {args.text('--load-format')})")
            )
            continue
        if files.faulty:
            file, why = files.faults[0]
            more = f", and {files.faulty - 1} more files have faults" if files.faulty > 1 else ""
            remedy = f"ssh {wanted.host} ls -lL {place}/{file}, then download or copy that file again"
            said.append(block("weights", f"{place}/{file} {why}{more}", remedy))
        elif files.format is None:
            remedy = f"ssh {wanted.host} ls -l {place}, then copy the whole checkpoint"
            said.append(block("weights", f"{place} has no weights: no safetensors, bin or GGUF file", remedy))
        elif files.unchecked:
            text = f"{place}: {files.unchecked} of {files.files} weight files not read in time"
            said.append(warn("weights", text, f"ddtree-ops doctor --host {wanted.host}"))
        else:
            said.append(ok("weights", f"{place}: {files.files} files, {files.bytes / 1e9:.1f} GB, all whole"))
    return said


def access(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """What root can read the service's user may not, or its sandbox may hide."""
    said = []
    for name, side in sides(found):
        who = getattr(live.user, "name", None) or "the service's user"
        as_root = getattr(getattr(live.model, "target" if name == "model" else "draft", None), "exists", None)
        if side.denied:
            text = f"{who} may not enter {side.denied} on the way to {side.path}"
            said.append(block("model-access", text, f"ssh {wanted.host} chmod o+rx {side.denied}"))
        elif side.error:
            remedy = f"ssh {wanted.host} head -c 300 {side.path}/config.json, then copy it again"
            said.append(block("model-access", f"{side.path}: {side.error}", remedy))
        elif side.exists is False and as_root:
            text = f"{side.path} is there for root, but not inside the unit's sandbox (ProtectHome=, PrivateTmp=, "
            remedy = f"ReadOnlyPaths={side.path} or ProtectHome=read-only in a drop-in of {wanted.service}"
            said.append(block("model-access", text + "InaccessiblePaths=)", remedy))
        elif side.exists is False:
            text = f"{side.path} does not exist for {who}"
            said.append(block("model-access", text, f"hosts.yaml: {name}: for {wanted.host}"))
        else:
            said.append(ok("model-access", f"{who} can read {side.path}"))
    return said


def hub(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """A hub id starts from a cached copy, and without the network, or it does not start."""
    return [_hub(name, side, found.hub, wanted) for name, side in sides(found) if side.hub]


def _hub(name: str, side: Side, cache: Hub, wanted: Wanted) -> Finding:
    local = f"hosts.yaml: {name}: a local directory, and Environment=HF_HUB_OFFLINE=1 for {wanted.service}"
    if side.directory is None:
        at = f"{side.path} has no copy in the unit's cache {cache.cache}"
        if cache.offline:
            return block("hub", f"{at}, and the unit is offline (HF_HUB_OFFLINE)", local)
        if not cache.token:
            text = f"{at}, and no HF_TOKEN reaches the unit: a gated repository refuses, a public one is downloaded "
            return block("hub", text + "while nothing serves", local)
        return warn("hub", f"{at}: it would be downloaded while nothing serves", local)
    if cache.writable is False and not cache.offline:
        text = f"{side.path} is cached, but {cache.cache} is read-only for the unit, and the hub client writes there"
        remedy = f"hosts.yaml: {name}: {side.directory}, or Environment=HF_HUB_OFFLINE=1 for {wanted.service}"
        return block("hub", text, remedy)
    if not cache.offline:
        text = f"{side.path} is cached, but every start asks the hub first"
        return warn("hub", text, f"Environment=HF_HUB_OFFLINE=1 in a drop-in of {wanted.service}")
    return ok("hub", f"{side.path} is served from {side.directory}, offline")


def tokenizer(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """The target brings its tokenizer, or another is named."""
    side, args = found.target, arguments(live, wanted)
    if side is None or not side.known or (args and args.has("--skip-tokenizer-init", "--tokenizer-path")):
        return []
    remedy = f"copy tokenizer.json and tokenizer_config.json into {side.path}, or --tokenizer-path"
    if side.tokenizer_faults:
        return [block("tokenizer", f"{side.path}: {side.tokenizer_faults[0]}", remedy)]
    if side.tokenizer_class_known is False:
        text = f"{side.path}: tokenizer_class {side.tokenizer_class} is unknown to transformers {found.transformers}"
        made = block if not (found.transformers or "").startswith("5.") else warn
        return [
            made(
                "tokenizer", text, f"a transformers release that has {side.tokenizer_class}, on {wanted.host}"
            )
        ]
    if side.tokenizer_needs:
        text = f"{side.path} has no tokenizer.json, and {side.tokenizer_needs} is not installed to read what it has"
        return [
            block(
                "tokenizer",
                text,
                f"{interpreter(live)} -m pip install {side.tokenizer_needs}, on {wanted.host}",
            )
        ]
    files = [name for name in side.tokenizer if not name.endswith(".py")]
    if not side.tokenizer:
        return [block("tokenizer", f"{side.path} has no tokenizer file", remedy)]
    return [ok("tokenizer", f"{side.path}: {', '.join((files or side.tokenizer)[:3])}")]


def kind(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """The environment's transformers knows the model_type, the engine its class."""
    args = arguments(live, wanted)
    trusted = args is None or args.has("--trust-remote-code")
    return [_kind(side, found, trusted, wanted) for _, side in sides(found) if side.known]


def _kind(side: Side, found: Checkpoints, trusted: bool, wanted: Wanted) -> Finding:
    name, version = side.model_type or "no model_type", found.transformers or "unknown"
    if side.type_known is False and not (side.remote_code and trusted):
        if side.remote_code:
            text = f"{side.path}: {name} is loaded by the checkpoint's own code, which --trust-remote-code must allow"
            return block("model-type", text, "--trust-remote-code in the unit, if you trust that code")
        text = f"{side.path}: model_type {name} is unknown to transformers {version} and to the engine's own configs"
        return block(
            "model-type", text, f"install the transformers release that has {name}, on {wanted.host}"
        )
    if side.class_known is False:
        names = ", ".join(side.architectures)
        text = f"{side.path}: the engine has no class {names}, only transformers' own may serve it"
        return warn("model-type", text, "ddtree-ops doctor --explain model-type")
    if side.type_known is None or side.class_known is None:
        text = f"{side.path}: whether {name} ({', '.join(side.architectures)}) can be loaded is unknown"
        return warn("model-type", text, f"ddtree-ops doctor --host {wanted.host}")
    return ok("model-type", f"{side.path}: {name}, known to transformers {version}")


def place(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """Weights on a network filesystem load slowly, page by page."""
    said = []
    for _, side in sides(found):
        if not side.known:
            continue
        if side.filesystem is None:
            said.append(
                warn(
                    "model-place", f"{side.path}: its filesystem is unknown", f"findmnt -T {side.path}, there"
                )
            )
        elif side.filesystem.startswith(_REMOTE):
            text = (
                f"{side.path} is on {side.filesystem}: a load may take many minutes without a line in the log"
            )
            said.append(warn("model-place", text, f"copy {side.path} to a local NVMe of {wanted.host}"))
        else:
            said.append(ok("model-place", f"{side.path} is on {side.filesystem}"))
    return said


def quantization(found: Checkpoints, live: Live, wanted: Wanted) -> Sequence[Finding]:
    """--quantization names the method that the checkpoint was made with, and the draft does not inherit it unasked."""
    side, args = found.target, arguments(live, wanted)
    asked = args.text("--quantization") if args else None
    if side is None or not side.known or not (asked or side.quantization):
        return []
    if asked and side.quantization and not _same_method(side.quantization, asked):
        text = f"{side.path} is quantised with {side.quantization}, the arguments say --quantization {asked}"
        return [
            block(
                "quantization",
                text,
                f"remove --quantization {asked} from the unit: the checkpoint says it itself",
            )
        ]
    if asked and side.quantization is None and asked.startswith(_NEED_CHECKPOINT):
        text = f"{side.path} is not quantised, and --quantization {asked} reads a checkpoint that is"
        return [block("quantization", text, f"a checkpoint quantised with {asked}, or --quantization fp8")]
    own = args.text("--speculative-draft-model-quantization") if args else None
    if args and asked and own is None and args.algorithm and found.draft and found.draft.quantization is None:
        text = f"--quantization {asked} goes for the draft {found.draft.path} too, which is not quantised"
        made = block if asked.startswith(_NEED_CHECKPOINT) else warn
        return [made("quantization", text, "--speculative-draft-model-quantization unquant in the unit")]
    return [
        ok(
            "quantization",
            f"{side.path}: {side.quantization or 'not quantised'}, asked for: {asked or 'nothing'}",
        )
    ]


def _same_method(own: str, asked: str) -> bool:
    a, b = own.lower().replace("_", "-"), asked.lower().replace("_", "-")
    if a.startswith("compressed") and b.startswith("w8a8"):
        return True
    return a == b or any(a.startswith(name) and b.startswith(name) for name in _SAME_METHOD)


RULES: tuple[Rule[Any], ...] = (
    Rule(
        "model-access",
        CHECKPOINTS,
        access,
        "The agent reads as root and the service does not: a directory that is 0700, or hidden by ProtectHome=, fails "
        "only after the old server is gone.",
    ),
    Rule(
        "hub",
        CHECKPOINTS,
        hub,
        "A hub id without a cached copy downloads (or is refused) while nothing serves; a read-only cache fails even "
        "when everything is in it.",
        ("F112", "F114"),
    ),
    Rule(
        "weights",
        WEIGHTS,
        whole,
        "A truncated shard, an LFS pointer or a missing part fails minutes into the load, with a parser's error.",
        ("F111",),
    ),
    Rule(
        "tokenizer",
        CHECKPOINTS,
        tokenizer,
        "A checkpoint copied without its tokenizer loads all its weights first.",
    ),
    Rule(
        "model-type",
        CHECKPOINTS,
        kind,
        "An older transformers raises KeyError on a model_type that it does not know, or asks for an upgrade.",
        ("F110",),
    ),
    Rule(
        "model-place",
        CHECKPOINTS,
        place,
        "Network filesystems can read at a few megabytes a second and say nothing: the start looks hung.",
        ("F132",),
    ),
    Rule(
        "quantization",
        CHECKPOINTS,
        quantization,
        "The engine refuses a --quantization that contradicts the checkpoint.",
    ),
)
