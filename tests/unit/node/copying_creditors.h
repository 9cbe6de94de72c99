// Creditors of a hash engine's test that answer as other nodes do. Thread safety: one thread.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/hash/hash_engine.h"
#include "common/engine/remote_attention.h"
#include "tests/testing/status_matchers.h"

namespace tandem::decode_node {

// Creditors that compute over copies of what they were lent.
class CopyingCreditors final : public engine::RemoteAttention {
 public:
  struct Loan {
    std::string creditor;
    std::vector<BlockId> blocks;
  };
  explicit CopyingCreditors(const engine::HashEngineOptions& options)
      : engine_(*engine::NewHashEngine(options)) {
    EXPECT_OK(engine_->AllocateKv(kBlocks));
    attention_ = engine_->NewPartialAttention();
  }
  void Keep(LoanId id, std::string creditor, absl::Span<const BlockId> blocks,
            const kv::BlockArena& from, int layers) {
    Loan loan{.creditor = std::move(creditor), .blocks = {}};
    for (const BlockId block : blocks) {
      const BlockId to(next_block_++);
      for (int layer = 0; layer < layers; ++layer) {
        const auto bytes = from.Block(layer, block);
        std::copy(bytes.begin(), bytes.end(), engine_->arena().Block(layer, to).begin());
      }
      loan.blocks.push_back(to);
    }
    loans[id] = std::move(loan);
  }
  void Ask(absl::Span<engine::RemotePart>) override {}
  void Collect(absl::Span<engine::RemotePart> parts) override {
    for (engine::RemotePart& part : parts) {
      const Loan& loan = loans.at(part.lent.loan);
      part.status = absl::UnavailableError("silent");
      if (silent.contains(loan.creditor)) continue;
      part.status = absl::DeadlineExceededError("late");
      if (late.contains(loan.creditor)) continue;
      part.status = attention_->Compute({.layer = part.layer,
                                         .units = part.lent.units,
                                         .blocks = loan.blocks,
                                         .num_rows = part.num_rows,
                                         .first_position = part.first_position,
                                         .q = absl::MakeConstSpan(part.q, 1)},
                                        part.answer);
    }
  }
  std::map<LoanId, Loan> loans;
  std::set<std::string> silent, late;  // creditors

 private:
  static constexpr int64_t kBlocks = 1000;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<engine::PartialAttention> attention_;
  int32_t next_block_ = 0;
};

}  // namespace tandem::decode_node
