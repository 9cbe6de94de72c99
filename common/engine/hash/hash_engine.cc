#include "common/engine/hash/hash_engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/engine/fork_copies.h"
#include "common/engine/hash/hash_words.h"
#include "common/engine/hash/lent_hashes.h"
#include "common/engine/slice_check.h"
#include "common/model/hash_model.h"
#include "common/runtime/clock.h"

namespace tandem::engine {
namespace {

constexpr TokenId kEosToken = 258;
constexpr TokenId kFirstPrintable = 32, kPrintableCount = 95;

// The tokens that a slice's mask and allowed_token_ids allow, ascending; empty = all. As without a
// mask, printable bytes and the end-of-sequence token are preferred to others.
std::vector<TokenId> Candidates(const SequenceSlice& slice) {
  const std::vector<TokenId>& listed = slice.sampling->allowed_token_ids;
  if (slice.allowed.empty()) return listed;
  std::vector<TokenId> all, usual;
  for (TokenId token = 0; token < static_cast<TokenId>(slice.allowed.size() * 32); ++token) {
    if (((slice.allowed[token / 32] >> (token % 32)) & 1) == 0) continue;
    if (!listed.empty() && !std::binary_search(listed.begin(), listed.end(), token)) continue;
    all.push_back(token);
    const bool printable = token >= kFirstPrintable && token < kFirstPrintable + kPrintableCount;
    if (printable || token == kEosToken) usual.push_back(token);
  }
  return usual.empty() ? all : usual;
}

// `candidates`: the tokens that may be chosen; empty = all.
TokenId TokenOfDraw(const HashEngineOptions& options, absl::Span<const TokenId> candidates,
                    uint64_t draw) {
  const uint64_t high = draw >> 32;
  if (!candidates.empty()) return candidates[high % candidates.size()];
  if (options.eos_every > 0 && draw % static_cast<uint64_t>(options.eos_every) == 0)
    return kEosToken;
  return kFirstPrintable + static_cast<TokenId>(high % kPrintableCount);
}

// Made-up log-probabilities of a draw's token and of `num_top` others.
SampledToken WithLogprobs(const HashEngineOptions& options, TokenId token, uint64_t draw,
                          int num_top) {
  SampledToken sampled;
  sampled.token = token;
  sampled.logprob = -static_cast<float>(draw & 0xff) / 256;
  for (int i = 0; i < num_top; ++i) {
    sampled.top_logprobs.push_back({.token = (token + i) % options.vocab_size,
                                    .logprob = sampled.logprob - static_cast<float>(i)});
  }
  return sampled;
}

// `banned` is ascending.
SampledToken Choose(const HashEngineOptions& options, uint64_t fold, int64_t position,
                    const request::SamplingParams& sampling, int32_t sequence_index,
                    absl::Span<const TokenId> candidates, absl::Span<const TokenId> banned) {
  constexpr int kRedrawsMax = 1000;  // then almost certainly no other token can be chosen
  uint64_t draw = Combine(fold, static_cast<uint64_t>(position));
  if (sampling.temperature > 0) {
    draw = Combine(Combine(draw, sampling.seed), static_cast<uint64_t>(sequence_index));
  }
  TokenId token = TokenOfDraw(options, candidates, draw);
  for (uint64_t redraw = 1; redraw <= kRedrawsMax; ++redraw) {
    if (!std::binary_search(banned.begin(), banned.end(), token)) break;
    token = TokenOfDraw(options, candidates, Combine(draw, redraw));
  }
  if (!sampling.logprobs.has_value()) return {.token = token};
  return WithLogprobs(options, token, draw, *sampling.logprobs);
}

class HashEngine : public Engine {
 public:
  HashEngine(const HashEngineOptions& options, EngineSpec spec, Waiter& waiter, const Clock& clock)
      : options_(options),
        spec_(std::move(spec)),
        words_per_token_(options.kv_bytes_per_token_layer / 8),
        waiter_(waiter),
        clock_(clock),
        lent_(spec_) {}

  const EngineSpec& spec() const override { return spec_; }

  absl::StatusOr<int64_t> ProfileStepBytes(int64_t max_batch_tokens) override {
    return max_batch_tokens * static_cast<int64_t>(sizeof(uint64_t));
  }

  void SetWindowSlots(int64_t slots) override { window_slots_ = slots; }

  absl::Status AllocateKv(int64_t num_blocks) override {
    ASSIGN_OR_RETURN(arena_, kv::BlockArena::Create(spec_.layout, num_blocks, options_.kv_memory,
                                                    window_slots_));
    return absl::OkStatus();
  }

  kv::BlockArena& arena() override { return *arena_; }

  std::unique_ptr<PartialAttention> NewPartialAttention() override {
    return NewHashPartialAttention(spec_, options_.kv_bytes_per_token_layer, *arena_);
  }
  void SetRemoteAttention(RemoteAttention* peers) override { lent_.SetPeers(peers); }

  absl::StatusOr<std::vector<SampledToken>> Step(absl::Span<const SequenceSlice> slices,
                                                 LayerDone layer_done) override {
    TANDEM_CHECK(arena_ != nullptr, "Step before AllocateKv");
    const absl::Time began = simulates_time() ? clock_.Now() : absl::Time();
    RETURN_IF_ERROR(CheckSlices(slices, spec_, *arena_));
    for (const BlockCopy& copy : ForkCopies(slices, spec_.layout.block_tokens)) {
      for (int layer = 0; layer < options_.num_layers; ++layer)
        arena_->CopyBlock(layer, copy.from, copy.to);
    }
    lent_.Begin(slices);
    HashRows(slices);
    const absl::Time computed_from = WaitOutTheStep(began);
    for (int layer = 0; layer < options_.num_layers; ++layer) {
      WriteLayer(slices, layer);
      layer_done(layer);
      if (!spec_.layout.IsWindowed(layer)) lent_.Ask(slices, layer);
    }
    std::vector<SampledToken> sampled;
    size_t row = 0;
    for (const SequenceSlice& slice : slices) {
      if (slice.prompt_scores != nullptr)
        ScorePrompt(slice, absl::MakeConstSpan(hashes_).subspan(row));
      row += static_cast<size_t>(slice.num_new);
      if (!slice.sample) continue;
      if (slice.remote != nullptr && !slice.remote->failure.ok()) {
        sampled.emplace_back();
        continue;
      }
      const Folded folded = Fold(slice);
      if (folded.damaged.has_value()) {
        sampled.push_back({.damaged = folded.damaged});
        continue;
      }
      const size_t prompt = std::min(static_cast<size_t>(slice.prompt_tokens), slice.tokens.size());
      const std::vector<TokenId> banned = request::BannedTokens(
          *slice.sampling, slice.stop, slice.eos_token_ids, slice.tokens.subspan(prompt));
      sampled.push_back(Choose(options_, folded.fold, static_cast<int64_t>(slice.tokens.size()),
                               *slice.sampling, slice.sequence_index, Candidates(slice), banned));
    }
    if (simulates_time()) after_wait_ = clock_.Now() - computed_from;
    return sampled;
  }

 private:
  bool simulates_time() const {
    return options_.step_time > absl::ZeroDuration() || options_.row_time > absl::ZeroDuration();
  }
  // Waits until a step that began at `began` has taken its simulated time, less what the engine
  // itself takes after the wait, as it did in the last step. Returns the time then.
  absl::Time WaitOutTheStep(absl::Time began) {
    if (!simulates_time()) return began;
    const absl::Duration time =
        options_.step_time + options_.row_time * static_cast<double>(hashes_.size());
    const absl::Duration left = time - after_wait_ - (clock_.Now() - began);
    if (left > absl::ZeroDuration()) waiter_.Wait(left);
    return clock_.Now();
  }
  // `hashes`: of the slice's rows, and more.
  void ScorePrompt(const SequenceSlice& slice, absl::Span<const uint64_t> hashes) const {
    const int64_t end = std::min(slice.num_computed + slice.num_new, slice.prompt_tokens - 1);
    for (int64_t i = slice.num_computed; i < end; ++i) {
      const TokenId next = slice.tokens[i + 1];
      slice.prompt_scores->push_back(WithLogprobs(
          options_, next, NextHash(hashes[i - slice.num_computed], next), slice.prompt_logprobs));
    }
  }
  // The bytes of one token in one layer: words_per_token_ words.
  std::byte* TokenBytes(const SequenceSlice& slice, int layer, int64_t token) const {
    const int32_t block_tokens = spec_.layout.block_tokens;
    return arena_->Block(layer, slice.blocks[token / block_tokens]).data() +
           (token % block_tokens) * words_per_token_ * 8;
  }

  bool WindowHolds(const SequenceSlice& slice) const {
    const kv::BlockLayout& layout = spec_.layout;
    const int64_t begin =
        layout.windowed() ? slice.num_computed - layout.window_tokens + 1 : slice.num_computed;
    for (int64_t i = std::max<int64_t>(0, begin); i < slice.num_computed; ++i) {
      const uint64_t hash = ReadWord(TokenBytes(slice, 0, i), 0);
      for (const int32_t layer : layout.windowed_layers) {
        if (!WordsAre(TokenBytes(slice, layer, i), words_per_token_, LayerWord(hash, layer)))
          return false;
      }
    }
    return true;
  }

  // hashes_ = the hashes of all new rows, slice after slice, continuing from what the blocks hold.
  void HashRows(absl::Span<const SequenceSlice> slices) {
    hashes_.clear();
    for (const SequenceSlice& slice : slices) {
      const std::optional<uint64_t> lent = lent_.LastHash(slice);
      uint64_t hash = StartHash();
      if (lent.has_value())
        hash = *lent;
      else if (slice.num_computed > 0)
        hash = ReadWord(TokenBytes(slice, 0, slice.num_computed - 1), 0);
      if (!WindowHolds(slice)) hash = ~hash;
      for (int64_t i = 0; i < slice.num_new; ++i) {
        hash = NextHash(hash, slice.tokens[slice.num_computed + i]);
        hashes_.push_back(hash);
      }
    }
  }

  void WriteLayer(absl::Span<const SequenceSlice> slices, int layer) {
    size_t row = 0;
    for (const SequenceSlice& slice : slices) {
      for (int64_t i = 0; i < slice.num_new; ++i) {
        const uint64_t word = LayerWord(hashes_[row++], layer);
        std::byte* bytes = TokenBytes(slice, layer, slice.num_computed + i);
        for (int64_t w = 0; w < words_per_token_; ++w) {
          std::memcpy(bytes + w * 8, &word, sizeof(word));
        }
      }
    }
  }

  // Folds everything that the sequence's blocks hold into one number; or returns the first block in
  // which a layer does not match layer 0 or the words of one token differ.
  struct Folded {
    uint64_t fold = 0;
    std::optional<BlockId> damaged;
  };
  Folded Fold(const SequenceSlice& slice) const {
    uint64_t fold = StartHash();
    const absl::Span<const uint64_t> lent = lent_.Of(slice);
    for (const uint64_t hash : lent) fold = Combine(fold, hash);
    for (int64_t i = std::ssize(lent); i < static_cast<int64_t>(slice.tokens.size()); ++i) {
      const uint64_t hash = ReadWord(TokenBytes(slice, 0, i), 0);
      fold = Combine(fold, hash);
      const bool in_window = i > std::ssize(slice.tokens) - 1 - spec_.layout.window_tokens;
      const int layers = options_.num_layers - (in_window ? 0 : options_.windowed_layers);
      for (int layer = 0; layer < layers; ++layer) {
        if (!WordsAre(TokenBytes(slice, layer, i), words_per_token_, LayerWord(hash, layer)))
            [[unlikely]]
          return {.damaged = slice.blocks[i / spec_.layout.block_tokens]};
      }
    }
    return {.fold = fold};
  }

  const HashEngineOptions options_;
  const EngineSpec spec_;
  const int64_t words_per_token_;
  Waiter& waiter_;
  const Clock& clock_;
  absl::Duration
      after_wait_;  // what the last step took after its wait; zero without simulated time
  int64_t window_slots_ = 0;
  std::unique_ptr<kv::BlockArena> arena_;
  std::vector<uint64_t> hashes_;  // of the running step's rows
  LentHashes lent_;
};

absl::Status CheckOptions(const HashEngineOptions& options) {
  if (options.windowed_layers < 0 || options.windowed_layers >= std::max(1, options.num_layers) ||
      (options.windowed_layers > 0) != (options.window_tokens > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "windowed_layers: ", options.windowed_layers, " of ", options.num_layers, " with ",
        options.window_tokens, " window_tokens, expected fewer than all, and tokens for some"));
  }
  if (options.num_layers < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_layers: ", options.num_layers, ", expected >= 1"));
  }
  if (options.block_tokens < 1 || 256 % options.block_tokens != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_tokens: ", options.block_tokens, ", expected a divisor of 256"));
  }
  if (options.kv_bytes_per_token_layer < 8 || options.kv_bytes_per_token_layer % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_bytes_per_token_layer: ", options.kv_bytes_per_token_layer,
                     ", expected a positive multiple of 8"));
  }
  if (options.unit_tokens < options.block_tokens ||
      options.unit_tokens % options.block_tokens != 0) {
    return absl::InvalidArgumentError(absl::StrCat("unit_tokens: ", options.unit_tokens,
                                                   ", expected a multiple of block_tokens, ",
                                                   options.block_tokens));
  }
  if (options.vocab_size <= kEosToken) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocab_size: ", options.vocab_size, ", expected > ", kEosToken));
  }
  if (options.context_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("context_tokens: ", options.context_tokens, ", expected >= 1"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> NewHashEngine(const HashEngineOptions& options,
                                                      Waiter& waiter, const Clock& clock) {
  RETURN_IF_ERROR(CheckOptions(options));
  EngineSpec spec;
  spec.model_name = std::string(model::kHashModelName);
  spec.model_fingerprint = std::string(model::kHashModelFingerprint);
  spec.numerics_id = absl::StrCat("hash1-l", options.num_layers, "-b", options.block_tokens, "-kv",
                                  options.kv_bytes_per_token_layer, "-eos", options.eos_every);
  spec.vocab_size = options.vocab_size;
  spec.context_tokens = options.context_tokens;
  spec.unit_tokens = options.unit_tokens;
  spec.layout = {.num_layers = options.num_layers,
                 .block_tokens = options.block_tokens,
                 .layer_block_bytes = options.block_tokens * options.kv_bytes_per_token_layer};
  for (int32_t i = options.num_layers - options.windowed_layers; i < options.num_layers; ++i)
    spec.layout.windowed_layers.push_back(i);
  spec.window_tokens = spec.layout.window_tokens = options.window_tokens;
  if (spec.layout.windowed()) absl::StrAppend(&spec.numerics_id, "-win", options.window_tokens);
  return std::make_unique<HashEngine>(options, std::move(spec), waiter, clock);
}

SampledToken HashEngineSample(const HashEngineOptions& options, absl::Span<const TokenId> tokens,
                              const request::SamplingParams& sampling, int32_t sequence_index) {
  uint64_t hash = StartHash(), fold = StartHash();
  for (const TokenId token : tokens) {
    hash = NextHash(hash, token);
    fold = Combine(fold, hash);
  }
  return Choose(options, fold, static_cast<int64_t>(tokens.size()), sampling, sequence_index,
                sampling.allowed_token_ids, {});
}

TokenId HashEngineNextToken(const HashEngineOptions& options, absl::Span<const TokenId> tokens,
                            const request::SamplingParams& sampling, int32_t sequence_index) {
  return HashEngineSample(options, tokens, sampling, sequence_index).token;
}

}  // namespace tandem::engine
