from dataclasses import replace

import numpy as np
import pytest

from traffic.errors import UsageError
from traffic.step_time import EngineSettings, Pace, batch_shape


def test_a_step_is_the_slower_of_weights_and_compute_plus_cache_and_overhead() -> None:
    settings = EngineSettings(
        overhead_s=0.005,
        dense_read_s=0.001,
        expert_read_s=0.01,
        num_experts=4,
        experts_per_token=2,
        kv_read_s_per_token=1e-6,
        compute_s_per_token=1e-4,
    )
    assert settings.step_s(2, 1000) == pytest.approx(0.001 + 0.01 * 0.75 + 0.001 + 0.005)
    assert settings.step_s(500, 0) == pytest.approx(0.05 + 0.005)


def test_a_better_kernel_makes_every_step_faster_by_its_share() -> None:
    default, better = EngineSettings(), EngineSettings(step_time_factor=0.97)
    for tokens, kv_tokens in ((1, 10), (70, 90_000), (4000, 120_000)):
        assert better.step_s(tokens, kv_tokens) == pytest.approx(0.97 * default.step_s(tokens, kv_tokens))


def test_the_defaults_resemble_one_gpu_with_a_small_mixture_of_experts() -> None:
    settings = EngineSettings()
    assert 0.008 <= settings.step_s(1, 1000) <= 0.012
    assert 25_000 <= 8192 / settings.step_s(8192, 8192) <= 40_000


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": 100, "max_num_seqs": 101}, "max_num_batched_tokens"),
        ({"kv_cache_tokens": 100}, "kv_cache_tokens"),
        ({"overhead_s": 0.0}, "overhead_s"),
        ({"experts_per_token": 129}, "experts_per_token"),
    ],
)
def test_settings_that_could_never_run_are_refused(change: dict[str, float], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        replace(EngineSettings(), **change)  # type: ignore[arg-type]


def test_without_noise_the_factor_is_exactly_one() -> None:
    pace = Pace(EngineSettings(step_noise_share=0.0, wander_share=0.0), 0, 0, 0.0)
    assert [pace.factor(now_s) for now_s in (0.0, 3.0, 5000.0)] == [1.0, 1.0, 1.0]


def test_noise_depends_on_seed_and_start_alone() -> None:
    def factors(seed: int, start: int) -> list[float]:
        pace = Pace(EngineSettings(), seed, start, 0.0)
        return [pace.factor(step * 0.03) for step in range(10_000)]

    assert factors(0, 1) == factors(0, 1)
    assert factors(0, 1) != factors(1, 1)
    assert factors(0, 1) != factors(0, 2)
    assert np.std(np.log(factors(0, 0))) == pytest.approx(0.014, abs=0.004)


def test_drift_is_common_to_all_starts_and_linear_in_time() -> None:
    settings = EngineSettings(step_noise_share=0.0, wander_share=0.0, drift_share_per_hour=0.02)
    for start in range(3):
        assert Pace(settings, 0, start, 0.0).factor(1800.0) == pytest.approx(1.01)
        assert Pace(settings, 0, start, 1800.0).factor(1800.0) == 1.0


def test_starts_differ_by_a_lasting_offset_of_the_size_asked_for() -> None:
    settings = EngineSettings(step_noise_share=0.0, wander_share=0.0, start_offset_share=0.01)
    paces = [Pace(settings, 0, start, 0.0) for start in range(200)]
    offsets = np.log([pace.factor(0.0) for pace in paces])
    assert np.std(offsets) == pytest.approx(0.01, rel=0.2)
    assert np.log([pace.factor(900.0) for pace in paces]) == pytest.approx(offsets)


def test_slow_noise_is_remembered_for_seconds_and_forgotten_in_minutes() -> None:
    pace = Pace(EngineSettings(step_noise_share=0.0), 0, 0, 0.0)
    walk = np.log([pace.factor(float(second)) for second in range(20_000)])
    assert np.corrcoef(walk[:-1], walk[1:])[0, 1] > 0.9
    assert abs(np.corrcoef(walk[:-120], walk[120:])[0, 1]) < 0.15
    assert np.std(walk) == pytest.approx(EngineSettings().wander_share, rel=0.15)


def test_batch_shapes_are_those_of_vllm_graphs_and_rounded_prefills() -> None:
    assert [batch_shape(tokens, 0) for tokens in (1, 2, 3, 5, 9, 17, 70, 257)] == [1, 2, 4, 8, 16, 24, 72, 272]
    assert [batch_shape(tokens, 1) for tokens in (10, 257, 1024, 1025, 8000)] == [-256, -512, -1024, -2048, -8192]
