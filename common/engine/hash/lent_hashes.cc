#include "common/engine/hash/lent_hashes.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/engine/hash/hash_words.h"
#include "common/engine/partial_check.h"

namespace tandem::engine {
namespace {

// A query says nothing here; one float of one row stands for it.
constexpr float kQuery = 0;
constexpr int64_t kQueryFloats = 1;

// Words of an answer about `units` of one layer.
int64_t AnswerWords(int layer, const UnitSpan& units, int32_t unit_tokens) {
  return int64_t{units.size()} * (layer == 0 ? unit_tokens : 1);
}

class HashPartialAttention final : public PartialAttention {
 public:
  HashPartialAttention(const EngineSpec& spec, int64_t kv_bytes_per_token_layer,
                       const kv::BlockArena& arena)
      : spec_(spec), words_per_token_(kv_bytes_per_token_layer / 8), arena_(arena) {}

  int64_t q_floats() const override { return kQueryFloats; }
  int64_t AnswerBytes(int32_t layer, const UnitSpan& units, int32_t) const override {
    return AnswerWords(layer, units, spec_.unit_tokens) * 8;
  }

  absl::Status Compute(const PartialQuery& query, absl::Span<std::byte> answer) override {
    RETURN_IF_ERROR(CheckQuery(query, {.num_layers = spec_.layout.num_layers,
                                       .unit_tokens = spec_.unit_tokens,
                                       .block_tokens = spec_.layout.block_tokens,
                                       .num_blocks = arena_.num_blocks(),
                                       .q_floats = kQueryFloats}));
    RETURN_IF_ERROR(CheckAnswer(query, spec_.layout.IsWindowed(query.layer),
                                static_cast<int64_t>(answer.size()),
                                AnswerBytes(query.layer, query.units, query.num_rows)));
    const int32_t block_tokens = spec_.layout.block_tokens;
    uint64_t fold = StartHash();
    for (int64_t i = 0; i < int64_t{query.units.size()} * spec_.unit_tokens; ++i) {
      const BlockId block = query.blocks[static_cast<size_t>(i / block_tokens)];
      const int64_t offset = i % block_tokens * words_per_token_ * 8;
      const uint64_t hash = ReadWord(arena_.Block(0, block).data() + offset, 0);
      if (!WordsAre(arena_.Block(query.layer, block).data() + offset, words_per_token_,
                    LayerWord(hash, query.layer))) {
        return absl::DataLossError(
            absl::StrCat("lent block ", block.value(), " does not hold its tokens' KV"));
      }
      fold = Combine(fold, hash);
      if (query.layer == 0) {
        std::memcpy(answer.data() + i * 8, &hash, sizeof(hash));
      } else if ((i + 1) % spec_.unit_tokens == 0) {
        std::memcpy(answer.data() + i / spec_.unit_tokens * 8, &fold, sizeof(fold));
      }
    }
    return absl::OkStatus();
  }

 private:
  const EngineSpec& spec_;
  const int64_t words_per_token_;
  const kv::BlockArena& arena_;
};

}  // namespace

void LentHashes::Begin(absl::Span<const SequenceSlice> slices) {
  hashes_.clear();
  for (const SequenceSlice& slice : slices) {
    if (slice.remote == nullptr) continue;
    slice.remote->Begin();
    int64_t units = 0;
    for (const LentUnits& lent : slice.remote->lent) units += lent.units.size();
    hashes_[slice.remote].resize(static_cast<size_t>(units * spec_.unit_tokens));
  }
}

void LentHashes::Ask(absl::Span<const SequenceSlice> slices, int layer) {
  std::vector<RemotePart> parts;
  std::vector<RemoteKv*> owners;
  std::vector<std::vector<uint64_t>> folds;
  for (const SequenceSlice& slice : slices) {
    if (slice.remote == nullptr || !slice.remote->failure.ok()) continue;
    for (const LentUnits& lent : slice.remote->lent) {
      const auto words = static_cast<size_t>(AnswerWords(layer, lent.units, spec_.unit_tokens));
      // The words of higher layers are compared by the creditor, and say no more here.
      uint64_t* answer = layer == 0
                             ? &hashes_[slice.remote][size_t(lent.units.first) * spec_.unit_tokens]
                             : folds.emplace_back(words).data();
      parts.push_back({.lent = lent,
                       .layer = layer,
                       .num_rows = 1,
                       .first_position = slice.num_computed,
                       .q = &kQuery,
                       .q_stride = kQueryFloats,
                       .q_floats = kQueryFloats,
                       .answer = absl::MakeSpan(reinterpret_cast<std::byte*>(answer), words * 8)});
      owners.push_back(slice.remote);
    }
  }
  if (parts.empty()) return;
  TANDEM_CHECK(peers_ != nullptr, "a slice has lent KV, and there is no RemoteAttention");
  peers_->Ask(absl::MakeSpan(parts));
  peers_->Collect(absl::MakeSpan(parts));
  for (size_t i = 0; i < parts.size(); ++i) owners[i]->Take(parts[i].lent, parts[i].status);
}

std::optional<uint64_t> LentHashes::LastHash(const SequenceSlice& slice) {
  if (slice.remote == nullptr || slice.remote->lent.empty()) return std::nullopt;
  const LentUnits& last = slice.remote->lent.back();
  if (slice.num_computed != int64_t{last.units.end} * spec_.unit_tokens) return std::nullopt;
  TANDEM_CHECK(peers_ != nullptr, "a slice has lent KV, and there is no RemoteAttention");
  std::vector<uint64_t> hashes(
      static_cast<size_t>(AnswerWords(/*layer=*/0, last.units, spec_.unit_tokens)));
  RemotePart part{.lent = last,
                  .num_rows = 1,
                  .first_position = slice.num_computed,
                  .q = &kQuery,
                  .q_stride = kQueryFloats,
                  .q_floats = kQueryFloats,
                  .answer = absl::MakeSpan(reinterpret_cast<std::byte*>(hashes.data()),
                                           hashes.size() * sizeof(uint64_t))};
  peers_->Ask({&part, 1});
  peers_->Collect({&part, 1});
  slice.remote->Take(last, part.status);
  return hashes.back();
}

absl::Span<const uint64_t> LentHashes::Of(const SequenceSlice& slice) const {
  const auto it = hashes_.find(slice.remote);
  return it == hashes_.end() ? absl::Span<const uint64_t>() : absl::MakeConstSpan(it->second);
}

std::unique_ptr<PartialAttention> NewHashPartialAttention(const EngineSpec& spec,
                                                          int64_t kv_bytes_per_token_layer,
                                                          const kv::BlockArena& arena) {
  return std::make_unique<HashPartialAttention>(spec, kv_bytes_per_token_layer, arena);
}

}  // namespace tandem::engine
