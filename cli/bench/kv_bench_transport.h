// The transports that `tandem bench kv` compares.
//
//   mapped            copied from the sender's mapped arena; headers over sealed shared memory
//   shm, tcp          UCX, with sealed connections, as nodes have it
//   shm+encrypted, tcp+encrypted   with --kv-encryption
//   shm+unsealed, tcp+unsealed     UCX alone, as no node has it: what the seals cost
//
// Thread safety: free functions from any thread. Owner: none.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/kv/block_arena.h"
#include "common/transfer/kv_transport.h"

namespace tandem::cli {

inline constexpr char kKvBenchTransports[] =
    "mapped, shm, tcp, shm+encrypted, tcp+encrypted, shm+unsealed or tcp+unsealed";

bool IsKvBenchTransport(const std::string& name);
// `arena` outlives the transport. REQUIRES: IsKvBenchTransport(name).
absl::StatusOr<std::unique_ptr<transfer::KvTransport>> NewKvBenchTransport(
    const std::string& name, const kv::BlockArena& arena);

}  // namespace tandem::cli
