"""Keys, tokens and passwords never reach a screen, a report or a file."""

from __future__ import annotations

import pytest

from llmtop.contract.secrets import mask, own_environment, tool_environment

SECRET = "s3cr3tVALUE99"


@pytest.mark.parametrize(
    "text",
    [
        f"vllm serve m --api-key {SECRET} --port 8000",
        f"vllm serve m --api-key={SECRET}",
        f"vllm serve m --hf_token {SECRET}",
        f"non-default args: {{'api_key': ['{SECRET}'], 'port': 8000}}",
        f"Namespace(api_key='{SECRET}', port=8000)",
        f"VLLM_API_KEY={SECRET} vllm serve m",
        f"HF_TOKEN={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"authorization: bearer {SECRET}",
        f"http://user:{SECRET}@host:8000/v1",
        f"https://{SECRET}@host/",
        f"GET /v1/models?api_key={SECRET}&x=1",
        f"https://host/m?X-Amz-Signature={SECRET}",
        f"https://host/m?access_token={SECRET}#frag",
        f'{{"password": "{SECRET}"}}',
        f"hf_{SECRET}",
        f"sk-proj-{SECRET}",
    ],
)
def test_secrets_are_masked(text: str) -> None:
    assert SECRET not in mask(text)
    assert "***" in mask(text)


@pytest.mark.parametrize(
    "text",
    [
        "Please set a HF_TOKEN to enable higher rate limits",
        "GPU KV cache size: 849,942 tokens, Maximum concurrency for 32,768 tokens per request: 25.94x",
        "max_num_batched_tokens=8192 max_tokens_per_mm_item (2496) tokenizer='org/model'",
        "non-default args: {'api_key': None, 'port': 8000}",
        "Starting vLLM server on http://0.0.0.0:8000",
        "--kv-cache-memory=8538253005 --max-num-seqs 8",
        "torch.compile took 25.60 s in total",
    ],
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert mask(text) == text


def test_masking_twice_changes_nothing() -> None:
    once = mask(f"--api-key {SECRET} Bearer {SECRET} hf_{SECRET}")
    assert mask(once) == once


ENVIRON = {"PATH": "/bin", "LC_ALL": "C", "SSL_CERT_FILE": "ca.pem", "DOCKER_HOST": "ssh://h", "SSH_AUTH_SOCK": "/s"}
SECRETS = {"HF_TOKEN": "1", "VLLM_API_KEY": "2", "PASSWORD": "3", "db_password": "4", "AWS_SECRET_ACCESS_KEY": "5"}


def test_a_tool_is_told_no_variable_with_the_name_of_a_secret() -> None:
    assert tool_environment(ENVIRON | SECRETS) == ENVIRON


def test_a_process_of_our_own_is_told_what_it_needs_and_what_it_is_to_read() -> None:
    told = {name: ENVIRON[name] for name in ("PATH", "LC_ALL", "SSL_CERT_FILE")}
    assert own_environment(ENVIRON | SECRETS) == told
    assert own_environment(ENVIRON | SECRETS, "HF_TOKEN", None) == told | {"HF_TOKEN": "1"}
