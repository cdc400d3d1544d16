"""The labels of `vllm:cache_config_info` in vLLM 0.32: every field of its CacheConfig as text."""

from __future__ import annotations

from llmtop.demo.blocks import NULL_BLOCKS
from llmtop.demo.profile import Profile

_FIXED = {
    "_block_size_resolved": "True",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "enable_prefix_caching": "True",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_memory_bytes": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}


def cache_config(profile: Profile, engines: int) -> tuple[tuple[str, str], ...]:
    """The labels of one engine; `num_gpu_blocks` is the sum over all engines, as vLLM says it, the tokens
    are one's.
    """
    config = profile.engine
    blocks = config.kv_tokens // config.block_size + NULL_BLOCKS
    labels = _FIXED | {
        "block_size": str(config.block_size),
        "effective_attention_block_size": str(config.block_size),
        "gpu_memory_utilization": str(config.gpu_memory_utilization),
        "kv_cache_size_tokens": str(config.kv_tokens),
        "kv_cache_max_concurrency": str(config.kv_tokens / profile.model.max_model_len),
        "num_gpu_blocks": str(blocks * engines),
    }
    return tuple(labels.items())
