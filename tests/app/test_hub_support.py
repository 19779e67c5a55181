"""What is said of a family that runs, and of one that runs without having been checked."""

from __future__ import annotations

import pytest

from app.backend.hub.support import Supported, support_of_config


@pytest.mark.parametrize(
    ("model_type", "state", "words"),
    [
        ("sdar", Supported.YES, "SDAR models run here"),
        ("Fast_dLLM_Qwen", Supported.YES, "Fast-dLLM v2 models run here"),
        ("qwen_dlm", Supported.UNKNOWN, "has not been checked against its released files"),
        ("nemotron_dllm", Supported.NOT_YET, "not built yet"),
        ("qwen3", Supported.NO, "not a diffusion language model"),
    ],
)
def test_a_config_is_judged_by_the_engines_own_words(
    model_type: str, state: Supported, words: str
) -> None:
    found = support_of_config({"model_type": model_type, "architectures": ["X"]})
    assert found.state == state
    assert words in found.reason
