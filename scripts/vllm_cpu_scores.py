"""Is a sampled token's log-probability what teacher forcing gives it? vllm_cpu_scores.py URL MODEL TOLERANCE

Samples replies at temperature 1 with token ids, then asks for `prompt_logprobs` of prompt and reply as one prompt:
token-exact, nothing is rendered or tokenised twice. Decoding and prefilling run different kernels, hence a tolerance
for each token: the coarser the numbers that the server computes with, the larger.
"""

import sys

import httpx

from harness.bundled import cache_folder
from harness.prompting import opening
from harness.tasks.pocket import Pocket

REPLIES, TOKENS = 6, 24


def main(url: str, model: str, tolerance: float) -> int:
    with httpx.Client(base_url=url, timeout=600, trust_env=False) as http:
        differences = [value for number in range(REPLIES) for value in differences_of(http, model, number)]
    worst, total = max(map(abs, differences)), sum(differences)
    print(
        f"{model}: {REPLIES} replies, {len(differences)} tokens: largest difference {worst:.5f}, "
        f"mean {total / len(differences):+.6f} (natural logarithm a token; tolerance {tolerance:g})"
    )
    return 0 if worst <= tolerance else 1


def differences_of(http: httpx.Client, model: str, number: int) -> list[float]:
    """Sampled less teacher-forced log-probability, token by token, of one reply."""
    task = Pocket(cache_folder()).tasks()[number]
    asked = {"model": model, "messages": opening(task, "text"), "temperature": 1.0, "seed": number, "logprobs": True}
    answer = post(http, "/chat/completions", {**asked, "max_tokens": TOKENS, "return_token_ids": True})
    choice, prompt = answer["choices"][0], answer["prompt_token_ids"]
    sampled = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    ids = choice["token_ids"][: len(sampled)]
    forced = {"model": model, "prompt": [*prompt, *ids], "max_tokens": 1, "prompt_logprobs": 0, "temperature": 0}
    scores = post(http, "/completions", forced)["choices"][0]["prompt_logprobs"][len(prompt) :]
    given = [entry[str(token)]["logprob"] for entry, token in zip(scores, ids, strict=True)]
    return [one - other for one, other in zip(sampled, given, strict=True)]


def post(http: httpx.Client, path: str, body: dict) -> dict:
    answer = http.post(http.base_url.join(str(http.base_url).rstrip("/") + path), json=body)
    answer.raise_for_status()
    return answer.json()


sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
