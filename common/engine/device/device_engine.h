// The engine of an accelerator: a checkpoint's forward pass in a device's memory. With a CUDA
// device this is the CUDA engine; tests run the same code on the emulated device.
//
// Steps of one row for each sequence (decoding) run as graphs, captured once for each bucket of row
// counts; padding rows change no other row's bits. Steps with prompt rows are enqueued layer by
// layer, and a second stream mirrors each written layer to the host while later layers compute.
// Tokens are chosen on the device with the bits of the host's sampler on the same logits.
// Thread safety: common/engine/engine.h's. Owner: the node process; the device must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/engine/device/gemm_tiles.h"
#include "common/engine/engine.h"
#include "common/model/checkpoint.h"
#include "kernels/api/device.h"

namespace tandem::engine {

struct DeviceEngineOptions {
  int threads = 0;               // host threads that load and sample; 0 = one per core
  int block_tokens = 32;         // 16, 32, 64, 128 or 256
  int64_t context_tokens = 0;    // at most the checkpoint's; 0 = that
  std::string weights = "auto";  // see ParseDeviceWeights
  std::string kv_type = "bf16";  // "bf16", "int8" or "fp8"
  // Share of the device's memory that weights, buffers and KV may fill.
  double memory_fraction = 0.9;
  // What the node allocates on the device after the KV cache, and DeviceKvBytes leaves free: so
  // many slots for payloads of KV transfers, each as large as this or as a block of one layer; and
  // records of attention, where the node lends or borrows.
  int payload_slots = 0;
  int64_t payload_slot_bytes = 0;
  bool lends = false;
  // Sequences that sample in one step; of at most 256, logits have room before the KV cache is
  // sized. Above 0.
  int32_t max_sequences = 64;
  // Whether the arena mirrors what steps write, for nodes that send KV to others.
  bool mirror_written_kv = true;
  bool use_graphs = true;
  bool sample_on_device = true;  // false: logits are copied out for the host's sampler
  GemmTilesOptions gemm_tiles;   // decides speed and no bit
};

// Loads the weights. The engine does not keep `checkpoint`. Errors: kInvalidArgument for options
// out of range or a checkpoint the kernels cannot run (says what); the device's.
absl::StatusOr<std::unique_ptr<Engine>> NewDeviceEngine(const model::Checkpoint& checkpoint,
                                                        const DeviceEngineOptions& options,
                                                        std::unique_ptr<kernels::Device> device);

// The same on the first CUDA device. Errors: as above; kUnimplemented in a build without CUDA,
// kUnavailable without a driver or device.
absl::StatusOr<std::unique_ptr<Engine>> NewCudaEngine(const model::Checkpoint& checkpoint,
                                                      const DeviceEngineOptions& options);

}  // namespace tandem::engine
