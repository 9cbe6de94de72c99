#include "common/engine/cpu/weight_cache.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/engine/aligned_buffer.h"
#include "common/telemetry/log.h"
#include "common/telemetry/start_log.h"
#include "xxhash.h"

namespace tandem::engine {
namespace {

std::string Hex(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad16)); }

std::string Digest(absl::string_view text) { return Hex(XXH3_64bits(text.data(), text.size())); }

// A digest of how the backend packs a small matrix of each type. A change of layout or rounding
// changes the digest, so the code needs no version number.
std::string PackingDigest(const WeightCacheSubject& subject) {
  // Neither size is a multiple of any panel, group or vector.
  constexpr int64_t kRows = 70, kColumns = 331;
  std::vector<float> rows(kRows * kColumns);
  uint32_t state = 1;
  for (float& value : rows) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-34f;
  }
  std::string digests;
  for (const kernels::WeightType type : subject.types) {
    const kernels::MatrixShape shape = {kRows, kColumns, type};
    AlignedBuffer packed(subject.backend->packed_bytes(shape));
    subject.backend->pack_rows({shape, 0, kRows, rows.data(), packed.data()});
    absl::StrAppend(&digests,
                    Hex(XXH3_64bits(packed.data(), subject.backend->packed_bytes(shape))));
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
