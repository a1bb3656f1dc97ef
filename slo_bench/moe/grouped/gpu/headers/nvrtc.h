// Stands for CUDA's own nvrtc.h: FlashInfer mentions NVRTC in a branch that it never takes (it compiles with nvcc), and
// without this header that branch would need one more library to build and to load.

#pragma once

#include <cstddef>

typedef enum { NVRTC_SUCCESS = 0, NVRTC_ERROR_COMPILATION = 6 } nvrtcResult;
typedef struct slo_no_program* nvrtcProgram;

static inline char const* nvrtcGetErrorString(nvrtcResult) { return "NVRTC is no part of this build"; }

static inline nvrtcResult nvrtcCreateProgram(nvrtcProgram*, char const*, char const*, int, char const* const*,
                                             char const* const*) {
  return NVRTC_ERROR_COMPILATION;
}

static inline nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, char const* const*) { return NVRTC_ERROR_COMPILATION; }

static inline nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, std::size_t*) { return NVRTC_ERROR_COMPILATION; }

static inline nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*) { return NVRTC_ERROR_COMPILATION; }

static inline nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, std::size_t*) { return NVRTC_ERROR_COMPILATION; }

static inline nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*) { return NVRTC_ERROR_COMPILATION; }

static inline nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) { return NVRTC_ERROR_COMPILATION; }
