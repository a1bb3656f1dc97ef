// A plain C interface to FlashInfer's grouped GEMM with FP8 block scales (SM90), built from the sources of its wheel.
//
// The runner takes BF16 rows, which it quantises per row and 128 columns, and E4M3 weights with a scale per block of
// 128 x 128, and gives BF16 rows: what FlashInfer's fused MoE calls for each of its two matrix stages. No source of
// FlashInfer is changed.

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <tuple>

#include "tensorrt_llm/deep_gemm/compiler.cuh"
#include "tensorrt_llm/kernels/cutlass_kernels/fp8_blockscale_gemm/fp8_blockscale_gemm.h"

namespace {

namespace jit = deep_gemm::jit;

using Runner = tensorrt_llm::kernels::fp8_blockscale_gemm::CutlassFp8BlockScaleGemmRunner<__nv_bfloat16, __nv_fp8_e4m3,
                                                                                          __nv_bfloat16>;

constexpr int kBlockK = 128;

thread_local char last_error[512] = "";

// No exception may leave a C function: its text is kept, and `failed` returned.
template <typename Result, typename Work>
Result guarded(Result failed, Work work) {
  try {
    return work();
  } catch (std::exception const& error) {
    std::snprintf(last_error, sizeof last_error, "%s", error.what());
  } catch (...) {
    std::snprintf(last_error, sizeof last_error, "an exception of an unknown kind");
  }
  return failed;
}

jit::GemmConfig config_of(int64_t n, int64_t k, int64_t groups, int64_t estimate, int64_t sms, int is_swapped) {
  return is_swapped ? jit::get_best_gemm_config(n, estimate, k, groups, sms, false, true)
                    : jit::get_best_gemm_config(estimate, n, k, groups, sms);
}

}  // namespace

extern "C" {

char const* slo_last_error() { return last_error; }

// The folder that has deep_gemm/*.cuh. Until it is set FlashInfer launches another, slower kernel.
int slo_set_include_dir(char const* folder) {
  return guarded(1, [&] {
    jit::Compiler::setIncludeDirs({std::filesystem::path(folder)});
    return 0;
  });
}

// FlashInfer's own choice for an estimate, in its order: rows and columns of a tile, stages of its pipeline.
int slo_tile(int64_t n, int64_t k, int64_t groups, int64_t estimate, int64_t sms, int is_swapped, int* tile) {
  return guarded(1, [&] {
    auto const config = config_of(n, k, groups, estimate, sms, is_swapped);
    tile[0] = std::get<0>(config);
    tile[1] = std::get<1>(config);
    tile[2] = std::get<2>(config);
    return 0;
  });
}

// Compile that choice into the cache on disk.
int slo_compile(int64_t n, int64_t k, int64_t groups, int64_t estimate, int64_t sms, int is_swapped) {
  return guarded(1, [&] {
    auto const [block_m, block_n, stages, multicast, shared] = config_of(n, k, groups, estimate, sms, is_swapped);
    jit::getGlobalCompiler().build(n, k, block_m, block_n, kBlockK, groups, stages, multicast,
                                   deep_gemm::GemmType::GroupedWithOffset, is_swapped != 0);
    return 0;
  });
}

void* slo_runner_new() {
  return guarded<void*>(nullptr, [] { return new Runner(); });
}

void slo_runner_delete(void* runner) { delete static_cast<Runner*>(runner); }

// Bytes of workspace for tokens x top_k rows. As in the fused MoE, the estimate is the tokens from here on.
int64_t slo_workspace_bytes(void* runner, int64_t tokens, int64_t top_k, int64_t n, int64_t k, int64_t groups) {
  return guarded<int64_t>(-1, [&] {
    return static_cast<int64_t>(static_cast<Runner*>(runner)->getWorkspaceSize(tokens, n, k, top_k, groups));
  });
}

// Another estimate under the same capacity: sizing for `estimate` rows sets it; sizing for all rows puts back what that
// shrank, and leaves an estimate alone that is not 0. One above all rows would make the capacity grow.
int slo_set_estimate(void* runner, int64_t estimate, int64_t rows, int64_t n, int64_t k, int64_t groups) {
  return guarded(1, [&] {
    if (estimate < 1 || estimate > rows) throw std::invalid_argument("an estimate is 1 to all rows");
    auto* const mine = static_cast<Runner*>(runner);
    mine->getWorkspaceSize(estimate, n, k, 1, groups);
    mine->getWorkspaceSizeBase(rows, n, k, groups);
    return 0;
  });
}

void slo_set_workspace(void* runner, void* workspace) {
  static_cast<Runner*>(runner)->configureWorkspace(static_cast<char*>(workspace));
}

// One matrix stage. offsets: on the device, where each group's rows begin, and where the last one's end.
int slo_grouped_gemm(void* runner, void* out, void const* rows, void const* weights, float const* scales,
                     int64_t const* offsets, int64_t groups, int64_t n, int64_t k, void* stream) {
  return guarded(1, [&] {
    static_cast<Runner*>(runner)->moeGemm(out, rows, weights, offsets, groups, n, k, static_cast<cudaStream_t>(stream),
                                          nullptr, scales);
    return 0;
  });
}

}  // extern "C"
