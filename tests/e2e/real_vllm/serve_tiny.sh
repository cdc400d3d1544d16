#!/usr/bin/env bash
# serve_tiny.sh PORT [vllm args...] : serve a tiny random Llama with a real vLLM on the CPU, in the foreground.
#   VENV=dir     a venv made by install.sh                    MODEL=dir   where the model lies or is built (1-2 s)
#   BLOCKS=96    KV-cache blocks of 32 tokens each: full at about 16 requests of 64 + 128 tokens
#   SEQS=32      --max-num-seqs
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); port=${1:?usage: serve_tiny.sh PORT [vllm args...]}; shift
: "${VENV:?a venv made by install.sh}" "${MODEL:?a folder for the model}"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export VLLM_TARGET_DEVICE=cpu VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
unset PYTHONDONTWRITEBYTECODE PYTHONPATH   # the first would compile vLLM anew in three processes at every start
[ -f "$MODEL/model.safetensors" ] || "$VENV/bin/python" "$here/make_tiny.py" "$MODEL" >&2
exec "$VENV/bin/vllm" serve "$MODEL" --host 127.0.0.1 --port "$port" --served-model-name tiny \
  --max-model-len 1024 --block-size 32 --num-gpu-blocks-override "${BLOCKS:-96}" --max-num-seqs "${SEQS:-32}" \
  --dtype float32 --enforce-eager "$@"
