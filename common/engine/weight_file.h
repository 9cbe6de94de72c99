// A file of packed weights, so that a start need not dequantise and pack a checkpoint again. It is
// mapped read-only, and every process of the host with the same key shares it. Smaller results of a
// start (the GEMM tiles of device/gemm_tiles.h) are kept in the same form.
//
// Layout, little-endian: a header of kWeightFileHeaderBytes (magic, version, sizes, the key it was
// written for, checksums of payload and header), then the payload. The key says in words what the
// payload depends on; a file with another key holds other weights. The checksum is XXH3-64 over the
// XXH3-64 of every kWeightFileChunkBytes of payload; mapping a file verifies it.
// Files appear whole under their name (temporary file, then link or rename) and are never written
// to afterwards, so any number of processes may write, replace and map them at once.
// Thread safety: functions from any thread; MappedWeights is const. Owner: the engine holds the
// mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/api/parallel.h"

namespace tandem::engine {

inline constexpr uint32_t kWeightFileVersion = 1;
inline constexpr size_t kWeightFileHeaderBytes = 4096;
inline constexpr size_t kWeightFileKeyBytesMax = 3072;
inline constexpr size_t kWeightFileChunkBytes = size_t{4} << 20;

// The file that a caller accepts: written for `key`, with `payload_bytes` bytes of payload.
struct WeightFileWanted {
  std::string key;  // at most kWeightFileKeyBytesMax
  size_t payload_bytes = 0;
};

class MappedWeights {
 public:
  MappedWeights(void* mapping, size_t bytes) : mapping_(mapping), bytes_(bytes) {}
  MappedWeights(const MappedWeights&) = delete;
  MappedWeights& operator=(const MappedWeights&) = delete;
  ~MappedWeights();

  // On a page boundary; constant for the object's life.
  absl::Span<const std::byte> payload() const;

 private:
  void* const mapping_;
  const size_t bytes_;
};

// Maps `path` and verifies all of it. Errors: kNotFound when there is no such file; kDataLoss for a
// file that is not of this format, truncated or damaged; kFailedPrecondition for one of another
// version or written for another key; kUnavailable when the system cannot open or map it. Each says
// what was expected and found.
absl::StatusOr<std::unique_ptr<MappedWeights>> OpenWeightFile(const std::string& path,
                                                              const WeightFileWanted& wanted,
                                                              const kernels::ParallelFor& parallel);

// Writes a file of `payload` for `key` under `path`, for this user's processes, and maps it. If
// another process wrote a file for the same key in the meantime, that file stays and is mapped
// instead; any other file at `path` is replaced. The file system keeps at least as many free bytes
// as the file takes. Errors: kResourceExhausted when there is no room for that, kUnavailable when
// the system does not allow the write; then `path` is unchanged. REQUIRES: payload is not empty.
absl::StatusOr<std::unique_ptr<MappedWeights>> WriteWeightFile(
    const std::string& path, const std::string& key, absl::Span<const std::byte> payload,
    const kernels::ParallelFor& parallel);

}  // namespace tandem::engine
