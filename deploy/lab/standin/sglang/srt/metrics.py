"""/metrics in the Prometheus text format: the names, types and labels that 0.5.11 exposes with DFLASH on a GPU."""

from typing import Any, Dict, List

GLOBAL = {  # name -> type: metrics of the main process, labelled engine_type and model_name
    "prompt_tokens_total": "counter",
    "generation_tokens_total": "counter",
    "num_requests_total": "counter",
    "cached_tokens_total": "counter",
    "time_to_first_token_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "prompt_tokens_histogram": "histogram",
    "generation_tokens_histogram": "histogram",
    "inter_token_latency_seconds": "histogram",
}
BARE = {
    "process_cpu_seconds_total": "counter",
    "http_requests_total": "counter",
    "http_responses_total": "counter",
    "http_requests_active": "gauge",
    "routing_keys_active": "gauge",
}
RANKED = {
    "per_stage_req_latency_seconds": "histogram",
    "queue_time_seconds": "histogram",
    "cuda_graph_passes_total": "counter",
    "realtime_tokens_total": "counter",
}
RANKED_GAUGES = [
    "num_retracted_reqs",
    "num_paused_reqs",
    "max_total_num_tokens",
    "engine_startup_time",
    "engine_load_weights_time",
    "page_size",
    "num_pages",
    "context_len",
    "startup_available_gpu_memory_gb",
    "num_running_reqs",
    "num_queue_reqs",
    "num_grammar_queue_reqs",
    "gen_throughput",
    "cache_hit_rate",
    "decode_sum_seq_lens",
    "token_usage",
    "full_token_usage",
    "swa_token_usage",
    "mamba_usage",
    "num_used_tokens",
    "kv_available_tokens",
    "kv_evictable_tokens",
    "kv_used_tokens",
    "spec_accept_length",
    "spec_accept_rate",
    "num_prefill_prealloc_queue_reqs",
    "num_prefill_inflight_queue_reqs",
    "num_decode_prealloc_queue_reqs",
    "num_decode_transfer_queue_reqs",
    "pending_prealloc_token_usage",
    "utilization",
    "new_token_ratio",
    "is_cuda_graph",
    "num_unique_running_routing_keys",
    "routing_key_running_req_count",
    "routing_key_all_req_count",
]


def exposition(manager: Any, info: Dict[str, Any]) -> str:
    """The whole page; values are real where the stand-in knows them, 0 elsewhere."""
    counts, speculative = manager.counts, bool(manager.args.speculative_algorithm)
    values = {
        "prompt_tokens_total": counts["prompt"],
        "generation_tokens_total": counts["generated"],
        "num_requests_total": counts["requests"],
        "max_total_num_tokens": info["max_total_num_tokens"],
        "num_pages": info["max_total_num_tokens"],
        "kv_available_tokens": info["max_total_num_tokens"],
        "context_len": info["max_req_input_len"] + 6,
        "page_size": 1,
        "num_running_reqs": len(manager.in_flight),
        "spec_accept_length": 2.0 if speculative and counts["steps"] else 0.0,
        "spec_accept_rate": 0.33 if speculative and counts["steps"] else 0.0,
        "time_to_first_token_seconds": counts["requests"],
        "e2e_request_latency_seconds": counts["requests"],
    }
    served = f'engine_type="unified",model_name="{manager.args.served_model_name}"'
    ranked = served + ',moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    lines: List[str] = []
    for kinds, labels in (
        (BARE, ""),
        (GLOBAL, served),
        (RANKED, ranked),
        (dict.fromkeys(RANKED_GAUGES, "gauge"), ranked),
    ):
        for name, kind in kinds.items():
            lines += _metric("sglang:" + name, kind, labels, float(values.get(name, 0)))
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, labels: str, value: float) -> List[str]:
    head = [f"# HELP {name} stand-in", f"# TYPE {name} {kind}"]
    braces = f"{{{labels}}}" if labels else ""
    if kind != "histogram":
        return [*head, f"{name}{braces} {value}"]
    bucket = f'{{{labels}{"," if labels else ""}le="+Inf"}}'
    return [
        *head,
        f"{name}_sum{braces} 0.0",
        f"{name}_bucket{bucket} {value}",
        f"{name}_count{braces} {value}",
    ]
