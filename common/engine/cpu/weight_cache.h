// Keeps packed weights in files between starts (weight_file.h): chooses the files' folders, names
// and keys. No problem here fails a start: if a file cannot be used, the engine packs the weights
// again; if the weights cannot be written, it uses them from memory; the log says why. Thread
// safety: one thread. Owner: the engine that loads weights.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/engine/weight_file.h"
#include "common/model/checkpoint.h"
#include "kernels/api/backend.h"

namespace tandem::engine {

struct WeightCacheOptions {
  // "off"; a folder; or "auto": the checkpoint's folder where that can be written, else
  // user_folder, and only for weights of at least kWeightCacheAutoBytes.
  std::string where = "off";
  std::string user_folder;  // empty: none
};

// "auto" writes no file for fewer bytes of packed weights than this: packing them takes only tens
// of milliseconds.
inline constexpr size_t kWeightCacheAutoBytes = size_t{64} << 20;

// Everything except the checkpoint that packed bytes depend on.
struct WeightCacheSubject {
  const kernels::Backend* backend = nullptr;
  std::string format;  // part of the file's name, e.g. "int8"
  std::string plan;    // which tensors lie where, in words
  size_t bytes = 0;
  std::vector<kernels::WeightType> types;  // the types that occur
};

class WeightCache {
 public:
  WeightCache(const model::Checkpoint& checkpoint, const WeightCacheOptions& options,
              const WeightCacheSubject& subject);

  // The packed weights of an earlier start, or of another process; nullptr when there are none.
  std::unique_ptr<MappedWeights> Find(const kernels::ParallelFor& parallel) const;
  // Writes `packed` to a file that the next start finds, and maps it; nullptr when that fails.
  std::unique_ptr<MappedWeights> Keep(absl::Span<const std::byte> packed,
                                      const kernels::ParallelFor& parallel) const;

 private:
  WeightFileWanted wanted_;
  std::vector<std::string> paths_;  // best first; none: no cache
};

}  // namespace tandem::engine
