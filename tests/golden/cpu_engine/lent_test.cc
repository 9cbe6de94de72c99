// Goal: a sequence that has lent its oldest KV to other engines gives the tokens and
// log-probability bits that it gives when all of its KV is local: for each class, in prompts and in
// generated rows, across the border of a group of partitions, with two creditors, beside other
// sequences. The lent blocks are poisoned at the debtor, so it cannot have read them. A creditor
// that does not answer fails its slice and no other.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>

#include "kernels/api/backend.h"
#include "nlohmann/json.hpp"
#include "tests/golden/cpu_engine/answer.h"
#include "tests/golden/cpu_engine/engine_driver.h"

namespace tandem::engine {
namespace {

constexpr int64_t kBlocks = 400;
constexpr int64_t kOutputTokens = 6;

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

class LentTest : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  void SetUp() override {
    seed_ = std::random_device()();
    random_.seed(seed_);
    std::cout << "seed " << seed_ << "\n";
    kernels::IsaClass isa = kernels::IsaClass::kRef;
    ASSERT_TRUE(kernels::ParseIsaClass(std::get<1>(GetParam()), &isa));
    if (kernels::FindBackend(isa) == nullptr) GTEST_SKIP() << kernels::WhyMissing(isa);
    OpenWithLongContext(std::get<0>(GetParam()));
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
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Engine> NewEngine() {
    CpuEngineOptions options;
    options.isa = std::get<1>(GetParam());
    options.threads = 1;
    auto engine = NewCpuEngine(*checkpoint_, options);
    EXPECT_OK(engine.status());
    EXPECT_OK((*engine)->AllocateKv(kBlocks));
    return *std::move(engine);
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
      for (int layer = 0; layer < layout.num_layers; ++layer) {
        const auto bytes = debtor_->arena().Block(layer, from);
        std::memcpy(creditors_[creditor]->arena().Block(layer, to).data(), bytes.data(),
                    bytes.size());
        // Layers with a window read theirs here; it ends behind the lent units, so they do not
        // notice.
        std::memset(bytes.data(), 0xff, bytes.size());
      }
      loan.blocks.push_back(to);
      from = kNoBlock;
    }
    loan.units = units;
    remote.lent.push_back({id, units});
  }

  // Computes the prompt in chunks, and lends as `lend(computed)` says before each, then generates.
  template <typename LendFn>
  Answer Run(DrivenSequence sequence, int64_t chunk, const LendFn& lend) {
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

constexpr auto kKeepAll = [](DrivenSequence&, RemoteKv&) {};

TEST_P(LentTest, GeneratedRowsKeepTheirBits) {
  const DrivenSequence sequence = NewSequence(300 + static_cast<int64_t>(random_() % 700), 0);
  const Answer expected = Run(sequence, 512, kKeepAll);
  const int32_t units = static_cast<int32_t>((sequence.prompt_tokens - 40) / 256);
  const Answer lent = Run(sequence, 512, [&](DrivenSequence& s, RemoteKv& remote) {
    if (s.computed == s.prompt_tokens && remote.lent.empty()) Lend(s, remote, {0, units}, 0);
  });
  ExpectSame(lent, expected, "lent " + std::to_string(units) + " units");
  EXPECT_GT(peers_.questions, 0);
}

TEST_P(LentTest, PromptRowsAndGroupsKeepTheirBits) {
  const DrivenSequence sequence = NewSequence(4700, 0);
  const Answer expected = Run(sequence, 512, kKeepAll);
  // The first group goes to one creditor in three loans, the tokens after it to another.
  const Answer lent = Run(sequence, 96, [&](DrivenSequence& s, RemoteKv& remote) {
    const int32_t next = remote.lent.empty() ? 0 : remote.lent.back().units.end;
    if (next == 0 && s.computed > 1 * 256 + 40) Lend(s, remote, {0, 1}, 0);
    if (next == 1 && s.computed > 7 * 256 + 40) Lend(s, remote, {1, 7}, 1);
    if (next == 7 && s.computed > 16 * 256 + 40) Lend(s, remote, {7, 16}, 0);
    if (next == 16 && s.computed > 17 * 256 + 40) Lend(s, remote, {16, 17}, 1);
  });
  ExpectSame(lent, expected, "a prompt of 4,700 tokens");
}

TEST_P(LentTest, AWholeGroupUnderOneLoanKeepsItsBits) {
  const DrivenSequence sequence = NewSequence(4500, 0);
  const Answer expected = Run(sequence, 512, kKeepAll);
  const Answer lent = Run(sequence, 512, [&](DrivenSequence& s, RemoteKv& remote) {
    if (s.computed == s.prompt_tokens && remote.lent.empty()) Lend(s, remote, {0, 16}, 0);
  });
  ExpectSame(lent, expected, "a group of 16 units");
}

TEST_P(LentTest, ASilentCreditorFailsItsSliceAlone) {
  DrivenSequence borrower = NewSequence(400, 0), other = NewSequence(77, 40);
  const Answer expected = Run(other, 512, kKeepAll);
  for (DrivenSequence* sequence : {&borrower, &other})
    ASSERT_OK(ComputeRest(debtor_.get(), sequence, 512).status());
  borrower.computed -= 1;  // both compute their last row again, and sample
  other.computed -= 1;
  RemoteKv remote;
  Lend(borrower, remote, {0, 1}, 0);
  peers_.loans.begin()->second.silent = true;
  SequenceSlice slices[] = {SliceOf(borrower, 1), SliceOf(other, 1)};
  slices[0].remote = &remote;
  ASSERT_OK_AND_ASSIGN(const auto sampled, debtor_->Step(slices, [](int) {}));
  EXPECT_EQ(remote.failure.code(), absl::StatusCode::kDeadlineExceeded);
  Answer first;
  first.Add(sampled.at(1));
  ExpectSame(first,
             {{expected.tokens[0]}, {expected.logprobs.begin(), expected.logprobs.begin() + 3}},
             "the other sequence");
}

TEST_P(LentTest, QuestionsOutOfRangeAreRefused) {
  const int32_t per_unit = debtor_->spec().unit_tokens / debtor_->spec().layout.block_tokens;
  const std::vector<BlockId> blocks = TakeBlocks(debtor_->spec(), 0, 256);
  const std::vector<float> q(static_cast<size_t>(attention_[0]->q_floats()));
  std::vector<std::byte> answer(static_cast<size_t>(attention_[0]->AnswerBytes(0, {0, 1}, 1)));
  // Gemma's first layer has a window; the last of these checkpoints' has none or is refused, too.
  const PartialQuery good{.layer = debtor_->spec().window_tokens == 0 ? 0 : 5,
                          .units = {0, 1},
                          .blocks = blocks,
                          .num_rows = 1,
                          .first_position = 300,
                          .q = q};
  ASSERT_EQ(static_cast<int32_t>(blocks.size()), per_unit);
  const auto refused = [&](auto change) {
    PartialQuery query = good;
    change(query);
    const absl::Status status = attention_[0]->Compute(query, absl::MakeSpan(answer));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  };
  const std::vector<BlockId> wrong(blocks.size(), BlockId(static_cast<int32_t>(kBlocks)));
  refused([](PartialQuery& query) { query.layer = -1; });
  refused([](PartialQuery& query) { query.layer = 1000; });
  refused([](PartialQuery& query) { query.units = {1, 1}; });
  refused([](PartialQuery& query) { query.units = {-1, 0}; });
  refused([](PartialQuery& query) { query.first_position = 255; });
  refused([](PartialQuery& query) { query.first_position = INT64_MAX; });
  refused([](PartialQuery& query) { query.num_rows = 0; });
  refused([](PartialQuery& query) { query.num_rows = 2; });
  refused([](PartialQuery& query) { query.blocks = query.blocks.subspan(1); });
  refused([&](PartialQuery& query) { query.blocks = wrong; });
  refused([](PartialQuery& query) { query.q = query.q.subspan(1); });
  answer.pop_back();
  refused([](PartialQuery&) {});
}

INSTANTIATE_TEST_SUITE_P(Tiny, LentTest,
                         ::testing::Combine(::testing::Values("llama", "gemma3"),
                                            ::testing::Values("ref", "avx2", "avx512", "avx512bf16",
                                                              "amx")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param);
                         });

}  // namespace
}  // namespace tandem::engine
