"""The vision encoder's import; these benchmarks have no images."""

from typing import Any


def cudnn_batch_prefill_with_kv_cache(*_: Any, **__: Any) -> None:
    raise NotImplementedError("flashinfer is a stub on the benchmark machine")
