// The fixture of the tests of lent KV: a debtor and two creditors of a tiny checkpoint with a long
// context, creditors that answer at once, and lending of whole units. Thread safety: one thread.
#pragma once

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/golden/cpu_engine/answer.h"
#include "tests/golden/cpu_engine/engine_driver.h"

namespace tandem::engine {

// Answers from the arenas of other engines, at once.
class LocalCreditors final : public RemoteAttention {
 public:
  struct Loan {
    PartialAttention* attention = nullptr;
    UnitSpan units;
    std::vector<BlockId> blocks;
    bool silent = false;
  };
  std::map<LoanId, Loan> loans;
  int64_t questions = 0;

  void Ask(absl::Span<RemotePart>) override {}
  void Collect(absl::Span<RemotePart> parts) override {
    for (RemotePart& part : parts) {
      const Loan& loan = loans.at(part.lent.loan);
      if (loan.silent) {
        part.status = absl::DeadlineExceededError("silent");
        continue;
      }
      ++questions;
      std::vector<float> q;
      for (int32_t row = 0; row < part.num_rows; ++row)
        q.insert(q.end(), part.q + row * part.q_stride,
                 part.q + row * part.q_stride + part.q_floats);
      part.status = loan.attention->Compute({.layer = part.layer,
                                             .units = part.lent.units,
                                             .blocks = loan.blocks,
                                             .num_rows = part.num_rows,
                                             .first_position = part.first_position,
                                             .q = q},
                                            part.answer);
    }
  }
};

class LentFixture {
 protected:
  static constexpr int64_t kBlocks = 400;
  static constexpr int64_t kOutputTokens = 6;

  virtual ~LentFixture() { std::filesystem::remove_all(folder_); }
  // An engine of `checkpoint_` with `kBlocks` blocks.
  virtual std::unique_ptr<Engine> NewEngine() = 0;
  // Copies a layer of a block from the debtor to a creditor, and poisons the debtor's.
  virtual void Move(Engine& debtor, BlockId from, Engine& creditor, BlockId to, int layer) = 0;

  void Open(const std::string& name) {
    seed_ = std::random_device()();
    random_.seed(seed_);
    std::cout << "seed " << seed_ << "\n";
    OpenWithLongContext(name);
    debtor_ = NewEngine();
    for (int i = 0; i < 2; ++i) {
      creditors_.push_back(NewEngine());
      attention_.push_back(creditors_.back()->NewPartialAttention());
    }
    debtor_->SetRemoteAttention(&peers_);
  }

  // The tiny checkpoints have contexts of 256 tokens, one unit.
  void OpenWithLongContext(const std::string& name) {
    const std::filesystem::path from = testing::GoldenPath("tiny/" + name);
    folder_ =
        std::filesystem::path(::testing::TempDir()) / ("lent_" + name + std::to_string(::getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::copy(from, folder_, std::filesystem::copy_options::recursive);
    nlohmann::json config;
    std::ifstream(from / "config.json") >> config;
    config["max_position_embeddings"] = 8192;
    std::ofstream(folder_ / "config.json") << config;
    ASSERT_OK_AND_ASSIGN(checkpoint_, model::Checkpoint::Open(folder_.string()));
  }
  DrivenSequence NewSequence(int64_t prompt_tokens, int32_t first_block) {
    DrivenSequence sequence;
    sequence.prompt_tokens = prompt_tokens;
    for (int64_t i = 0; i < prompt_tokens; ++i)
      sequence.tokens.push_back(static_cast<TokenId>(random_() % 144));
    sequence.sampling.temperature = 0.9;
    sequence.sampling.seed = random_();
    sequence.sampling.logprobs = 2;
    sequence.blocks = TakeBlocks(debtor_->spec(), first_block, prompt_tokens + kOutputTokens);
    return sequence;
  }

  // Moves units [first, end) to a creditor, at other block ids, and poisons the debtor's copies.
  void Lend(DrivenSequence& sequence, RemoteKv& remote, UnitSpan units, size_t creditor) {
    const kv::BlockLayout& layout = debtor_->spec().layout;
    const int32_t per_unit = debtor_->spec().unit_tokens / layout.block_tokens;
    const LoanId id(next_loan_++);
    LocalCreditors::Loan& loan = peers_.loans[id];
    loan.attention = attention_[creditor].get();
    for (int32_t i = units.first * per_unit; i < units.end * per_unit; ++i) {
      const BlockId to(static_cast<int32_t>(kBlocks) - 1 - next_block_++);
      BlockId& from = sequence.blocks[static_cast<size_t>(i)];
      for (int layer = 0; layer < layout.num_layers; ++layer)
        Move(*debtor_, from, *creditors_[creditor], to, layer);
      loan.blocks.push_back(to);
      from = kNoBlock;
    }
    loan.units = units;
    remote.lent.push_back({id, units});
  }

  // Computes the prompt in chunks, and lends as `lend(computed)` says before each, then generates.
  template <typename LendFn>
  Answer RunSequence(DrivenSequence sequence, int64_t chunk, const LendFn& lend) {
    Answer answer;
    RemoteKv remote;
    for (int64_t outputs = 0; outputs < kOutputTokens;) {
      lend(sequence, remote);
      const int64_t left = static_cast<int64_t>(sequence.tokens.size()) - sequence.computed;
      SequenceSlice slice = SliceOf(sequence, std::min(chunk, left));
      if (!remote.lent.empty()) slice.remote = &remote;
      const auto result = debtor_->Step(absl::MakeConstSpan(&slice, 1), [](int) {});
      EXPECT_OK(result.status());
      EXPECT_OK(remote.failure);
      if (!result.ok()) return answer;
      sequence.computed += slice.num_new;
      if (!slice.sample) continue;
      answer.Add(result->at(0));
      sequence.tokens.push_back(result->at(0).token);
      ++outputs;
    }
    return answer;
  }

  uint32_t seed_ = 0;
  std::mt19937_64 random_;
  std::filesystem::path folder_;
  std::unique_ptr<model::Checkpoint> checkpoint_;
  std::unique_ptr<Engine> debtor_;
  std::vector<std::unique_ptr<Engine>> creditors_;
  std::vector<std::unique_ptr<PartialAttention>> attention_;
  LocalCreditors peers_;
  uint64_t next_loan_ = 1;
  int32_t next_block_ = 0;
};

}  // namespace tandem::engine
