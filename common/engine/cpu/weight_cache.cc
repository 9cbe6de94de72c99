#include "common/engine/cpu/weight_cache.h"

#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/engine/aligned_buffer.h"
#include "common/telemetry/log.h"
#include "common/telemetry/start_log.h"
#include "xxhash.h"

namespace tandem::engine {
namespace {

std::string Hex(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad16)); }

std::string Digest(absl::string_view text) { return Hex(XXH3_64bits(text.data(), text.size())); }

// The matrix that PackingDigest packs. Neither size is a multiple of any panel, group or vector;
// rows of kQ4K are whole blocks.
constexpr int64_t kSampleRows = 70, kSampleColumns = 331;
constexpr int64_t kSampleBlocks = 2;

uint32_t NextRandom(uint32_t* state) { return *state = *state * 1664525u + 1013904223u; }

std::vector<float> SampleRows() {
  std::vector<float> rows(kSampleRows * kSampleColumns);
  uint32_t state = 1;
  for (float& value : rows) {
    value = static_cast<float>(static_cast<int32_t>(NextRandom(&state))) * 0x1p-34f;
  }
  return rows;
}

// `count` elements of random bytes.
template <typename T>
std::vector<T> SampleBytes(int64_t count) {
  std::vector<T> elements(static_cast<size_t>(count));
  std::vector<uint8_t> bytes(elements.size() * sizeof(T));
  uint32_t state = 1;
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(NextRandom(&state) >> 24);
  std::memcpy(elements.data(), bytes.data(), bytes.size());
  return elements;
}

std::vector<kernels::Q4KBlock> SampleQ4K() {
  auto blocks = SampleBytes<kernels::Q4KBlock>(kSampleRows * kSampleBlocks);
  for (kernels::Q4KBlock& block : blocks) {
    for (uint8_t& scale : block.scales) scale &= 63;
    for (uint8_t& min : block.mins) min &= 63;
  }
  return blocks;
}

// A digest of how the backend packs a small matrix of each type, kInt4 both from rows and from
// given groups. A change of layout or rounding changes the digest, so the code needs no version
// number.
std::string PackingDigest(const WeightCacheSubject& subject) {
  const std::vector<float> rows = SampleRows();
  const auto groups = SampleBytes<kernels::Int4Group>(
      kSampleRows * ((kSampleColumns + kernels::kInt4GroupSize - 1) / kernels::kInt4GroupSize));
  const std::vector<kernels::Q4KBlock> blocks = SampleQ4K();
  std::string digests;
  const auto add = [&](kernels::PackRowsArgs args) {
    const size_t bytes = subject.backend->packed_bytes(args.shape);
    AlignedBuffer packed(bytes);
    args.num_rows = kSampleRows;
    args.packed = packed.data();
    subject.backend->pack_rows(args);
    absl::StrAppend(&digests, Hex(XXH3_64bits(packed.data(), bytes)));
  };
  for (const kernels::WeightType type : subject.types) {
    if (type == kernels::WeightType::kQ4K) {
      add({.shape = {kSampleRows, kSampleBlocks * kernels::kQ4KBlockSize, type},
           .blocks = blocks.data()});
      continue;
    }
    const kernels::MatrixShape shape = {kSampleRows, kSampleColumns, type};
    add({.shape = shape, .rows = rows.data()});
    if (type == kernels::WeightType::kInt4) add({.shape = shape, .groups = groups.data()});
  }
  return Digest(digests);
}

std::string KeyText(const model::Checkpoint& checkpoint, const WeightCacheSubject& subject) {
  std::string versions;
  for (const model::CheckpointFile& file : checkpoint.files()) {
    absl::StrAppend(&versions, file.bytes, " ", file.modified_ns, "\n");
  }
  return absl::StrCat("model=", checkpoint.fingerprint(), " files=", Digest(versions),
                      " backend=", subject.backend->name, " weights=", subject.format,
                      " packing=", PackingDigest(subject), " plan=", Digest(subject.plan));
}

}  // namespace

WeightCache::WeightCache(const model::Checkpoint& checkpoint, const WeightCacheOptions& options,
                         const WeightCacheSubject& subject) {
  const bool automatic = options.where == "auto";
  if (options.where == "off" || options.where.empty() || checkpoint.files().empty() ||
      (automatic && subject.bytes < kWeightCacheAutoBytes)) {
    return;
  }
  wanted_ = {KeyText(checkpoint, subject), subject.bytes};
  std::error_code ignored;
  std::filesystem::path model =
      std::filesystem::absolute(checkpoint.files().front().path, ignored).lexically_normal();
  const std::string suffix =
      absl::StrCat(".", subject.backend->name, ".", subject.format, ".packed");
  const std::string name = model.filename().string();
  // In a shared folder different models may have one name.
  const std::string distinct = absl::StrCat(name, ".", Digest(model.string()), suffix);
  if (automatic) {
    paths_.push_back((model.parent_path() / absl::StrCat(name, suffix)).string());
    if (!options.user_folder.empty()) {
      paths_.push_back((std::filesystem::path(options.user_folder) / distinct).string());
    }
  } else {
    paths_.push_back((std::filesystem::path(options.where) / distinct).string());
  }
}

std::unique_ptr<MappedWeights> WeightCache::Find(const kernels::ParallelFor& parallel) const {
  for (const std::string& path : paths_) {
    auto mapped = OpenWeightFile(path, wanted_, parallel);
    if (mapped.ok()) {
      LogStart("packed weights mapped", {{"path", path}, {"bytes", wanted_.payload_bytes}});
      return *std::move(mapped);
    }
    if (!absl::IsNotFound(mapped.status())) {
      Log(LogLevel::kWarning, "cannot use packed weights, packing them again",
          {{"why", mapped.status().message()}});
    }
  }
  return nullptr;
}

std::unique_ptr<MappedWeights> WeightCache::Keep(absl::Span<const std::byte> packed,
                                                 const kernels::ParallelFor& parallel) const {
  for (size_t i = 0; i < paths_.size(); ++i) {
    // The checkpoint's own folder exists; others are made when first needed.
    const std::filesystem::path folder = std::filesystem::path(paths_[i]).parent_path();
    std::error_code ignored;
    std::filesystem::create_directories(folder, ignored);
    auto mapped = WriteWeightFile(paths_[i], wanted_.key, packed, parallel);
    if (mapped.ok()) {
      LogStart("packed weights written for the next start",
               {{"path", paths_[i]}, {"bytes", packed.size()}});
      return *std::move(mapped);
    }
    const bool last = i + 1 == paths_.size();
    Log(last ? LogLevel::kWarning : LogLevel::kInfo, "cannot write packed weights",
        {{"why", mapped.status().message()}});
  }
  return nullptr;
}

}  // namespace tandem::engine
