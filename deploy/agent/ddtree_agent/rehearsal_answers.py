"""A few answers of a rehearsal, each token held against the target's own: what a prefill of the same prefix gives.

A prefill runs no draft and no tree, and takes no KV that one left: it is the chain that a tree must follow. Dummy
weights hardly look at their context: what this sees are kernels that give nonsense on this GPU, and commits that lose
or double a token. It does not see a wrong mask; a shadow rollout and the parity gate are for that.
"""

import http.client
import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List

PROMPTS, TOKENS, AT_ONCE = 4, 12, 4
#: bfloat16 may flip a near-tie between shapes of a batch: two of 44 tokens may differ. Seen on two H200 at tp 2 (full,
#: shadow, a hybrid) and on a CPU: 44 of 44.
SAME = 0.95
_LIMIT_S = 120.0
Generate = Callable[[List[int], int], List[int]]


def compare(generate: Generate) -> Dict[str, Any]:
    """{prompts, tokens: compared, same, first: the first difference in words or null, ok}. Raises OSError,
    ValueError or HTTPException where a request fails."""
    prompts = [
        [65 + (number * 7 + step * (number + 2)) % 50 for step in range(6 + number)]
        for number in range(PROMPTS)
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outputs = list(pool.map(lambda prompt: generate(prompt, TOKENS), prompts))
        short = [len(output) for output in outputs if len(output) != TOKENS]
        if short:
            raise ValueError(f"{short[0]} tokens came where {TOKENS} were asked for")
        cases = [(prompt, output, at) for prompt, output in zip(prompts, outputs) for at in range(1, TOKENS)]
        own = list(pool.map(lambda case: generate([*case[0], *case[1][: case[2]]], 1), cases))
    wrong = [
        f"token {at} of the answer to prompt {prompts.index(prompt)} is {output[at]}, the target's own is {said[:1]}"
        for (prompt, output, at), said in zip(cases, own)
        if said[:1] != [output[at]]
    ]
    same = len(cases) - len(wrong)
    return {
        "prompts": PROMPTS,
        "tokens": len(cases),
        "same": same,
        "first": wrong[0] if wrong else None,
        "ok": same >= SAME * len(cases),
    }


def over_http(port: int) -> Generate:
    """Greedy answers of the server on this port (token ids in, token ids out), never through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def generate(prompt: List[int], tokens: int) -> List[int]:
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        # answers and prefills share no prefix in the engine's cache: else both would rest on KV that a tree committed
        asked = {"input_ids": prompt, "sampling_params": sampling, "extra_key": f"rehearsal-{tokens}"}
        body = json.dumps(asked).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/generate", body, {"Content-Type": "application/json"}
        )
        try:
            with opener.open(request, timeout=_LIMIT_S) as reply:
                found = json.load(reply)
        except http.client.HTTPException as error:  # cut in the middle
            raise ValueError(f"{type(error).__name__}: {error}") from None
        ids = found.get("output_ids") if isinstance(found, dict) else None
        if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
            raise ValueError("an answer without output_ids")
        return [int(token) for token in ids]

    return generate
