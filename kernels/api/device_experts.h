// A mixture of experts on a device, in four steps. route_experts chooses each row's experts;
// sort_by_expert orders the choices by expert, so that each expert's choices are consecutive;
// grouped_gemm multiplies each choice by its expert's matrix; combine_experts sums a row's choices
// again. A choice's index in the sorted order is its place. DeviceOps enqueues each step.
//
// All pointers are device memory, except where a comment says otherwise; the caller owns that
// memory and keeps it unchanged until the enqueued work is done. Thread safety: the stream's.
// Errors: the stream's status; a broken REQUIRES ends the process.
#pragma once

#include <cstdint>

#include "kernels/api/bf16.h"

namespace tandem::kernels {

constexpr int32_t kExpertsMax = 256;
constexpr int32_t kExpertsPerRowMax = 32;

// Each row's top_k most likely experts, ties to the lower index. Weights are softmax over all
// experts, or over the chosen ones (Mixtral; Qwen3-MoE's norm_topk_prob).
struct DeviceRouteArgs {
  const float* logits = nullptr;  // [rows][num_experts]; NaN counts as the lowest
  int32_t rows = 0;
  int32_t num_experts = 0;  // ≤ kExpertsMax
  int32_t top_k = 0;        // ≤ kExpertsPerRowMax, ≤ num_experts
  bool renormalise = false;
  int32_t* experts = nullptr;  // [rows][top_k], ascending
  float* weights = nullptr;    // [rows][top_k]
};

struct DeviceSortByExpertArgs {
  const int32_t* experts = nullptr;  // [num_choices]: [rows][top_k] as DeviceRouteArgs left them
  int32_t num_choices = 0;           // rows · top_k
  int32_t top_k = 0;
  int32_t num_experts = 0;
  // [num_experts + 1]: expert e's places are [offsets[e], offsets[e + 1]).
  int32_t* offsets = nullptr;
  int32_t* rows = nullptr;    // [num_choices]: the row of a place's choice
  int32_t* places = nullptr;  // [num_choices]: the place of a choice
};

// y[i, n] = Σ_k x[i, k] · w[e, n, k], where e is the expert of place i.
struct DeviceGroupedGemmArgs {
  const Bf16Bits* x = nullptr;       // [·][k], 16-byte boundary
  const int32_t* gather = nullptr;   // [rows]: row of x for row i; nullptr: row i
  const Bf16Bits* w = nullptr;       // [num_experts][n][k], 16-byte boundary
  const int32_t* offsets = nullptr;  // [num_experts + 1], ascending from 0 to `rows`
  int32_t num_experts = 0;
  int32_t rows = 0;
  int32_t n = 0;
  int32_t k = 0;       // a multiple of 8
  float* y = nullptr;  // [rows][n]
};

// out[r] (+)= Σ_j weights[r, j] · y[places[r, j]], j ascending.
struct DeviceCombineArgs {
  const float* y = nullptr;         // [rows · top_k][size]
  const int32_t* places = nullptr;  // [rows][top_k]
  const float* weights = nullptr;   // [rows][top_k]
  int32_t rows = 0;
  int32_t top_k = 0;
  int32_t size = 0;
  bool add_to_out = false;
  float* out = nullptr;  // [rows][size]
};

}  // namespace tandem::kernels
