// Goal: a sequence that has lent its oldest KV to other engines gives the tokens and
// log-probability bits that it gives when all of its KV is local: for each class, in prompts and in
// generated rows, across the border of a group of partitions, with two creditors, beside other
// sequences. The lent blocks are poisoned at the debtor, so it cannot have read them. A creditor
// that does not answer fails its slice and no other.
#include <cstring>

#include "kernels/api/backend.h"
#include "tests/golden/cpu_engine/lent_fixture.h"

namespace tandem::engine {
namespace {

class LentTest : public ::testing::TestWithParam<std::tuple<const char*, const char*>>,
                 public LentFixture {
 protected:
  void SetUp() override {
    kernels::IsaClass isa = kernels::IsaClass::kRef;
    ASSERT_TRUE(kernels::ParseIsaClass(std::get<1>(GetParam()), &isa));
    if (kernels::FindBackend(isa) == nullptr) GTEST_SKIP() << kernels::WhyMissing(isa);
    Open(std::get<0>(GetParam()));
  }

  std::unique_ptr<Engine> NewEngine() override {
    CpuEngineOptions options;
    options.isa = std::get<1>(GetParam());
    options.threads = 1;
    auto engine = NewCpuEngine(*checkpoint_, options);
    EXPECT_OK(engine.status());
    EXPECT_OK((*engine)->AllocateKv(kBlocks));
    return *std::move(engine);
  }

  void Move(Engine& debtor, BlockId from, Engine& creditor, BlockId to, int layer) override {
    const auto bytes = debtor.arena().Block(layer, from);
    std::memcpy(creditor.arena().Block(layer, to).data(), bytes.data(), bytes.size());
    // Layers with a window read theirs here; it ends behind the lent units, so they do not notice.
    std::memset(bytes.data(), 0xff, bytes.size());
  }
};

constexpr auto kKeepAll = [](DrivenSequence&, RemoteKv&) {};

TEST_P(LentTest, GeneratedRowsKeepTheirBits) {
  const DrivenSequence sequence = NewSequence(300 + static_cast<int64_t>(random_() % 700), 0);
  const Answer expected = RunSequence(sequence, 512, kKeepAll);
  const int32_t units = static_cast<int32_t>((sequence.prompt_tokens - 40) / 256);
  const Answer lent = RunSequence(sequence, 512, [&](DrivenSequence& s, RemoteKv& remote) {
    if (s.computed == s.prompt_tokens && remote.lent.empty()) Lend(s, remote, {0, units}, 0);
  });
  ExpectSame(lent, expected, "lent " + std::to_string(units) + " units");
  EXPECT_GT(peers_.questions, 0);
}

TEST_P(LentTest, PromptRowsAndGroupsKeepTheirBits) {
  const DrivenSequence sequence = NewSequence(4700, 0);
  const Answer expected = RunSequence(sequence, 512, kKeepAll);
  // The first group goes to one creditor in three loans, the tokens after it to another.
  const Answer lent = RunSequence(sequence, 96, [&](DrivenSequence& s, RemoteKv& remote) {
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
  const Answer expected = RunSequence(sequence, 512, kKeepAll);
  const Answer lent = RunSequence(sequence, 512, [&](DrivenSequence& s, RemoteKv& remote) {
    if (s.computed == s.prompt_tokens && remote.lent.empty()) Lend(s, remote, {0, 16}, 0);
  });
  ExpectSame(lent, expected, "a group of 16 units");
}

// As of lost units that are computed again: no token before the first row lies here.
TEST_P(LentTest, RowsThatFollowLentUnitsAtOnceKeepTheirBits) {
  if (debtor_->spec().window_tokens > 0) {
    // They would look back on lent tokens.
    DrivenSequence refused = NewSequence(400, 0);
    refused.computed = 256;
    RemoteKv lent;
    lent.lent.push_back({.loan = LoanId(1), .units = {0, 1}});
    SequenceSlice slices[] = {SliceOf(refused, 1)};
    slices[0].remote = &lent;
    EXPECT_TRUE(absl::IsInvalidArgument(debtor_->Step(slices, [](int) {}).status()));
    return;
  }
  const DrivenSequence sequence = NewSequence(1100, 0);
  const Answer expected = RunSequence(sequence, 512, kKeepAll);
  const Answer lent = RunSequence(sequence, 128, [&](DrivenSequence& s, RemoteKv& remote) {
    const int32_t next = remote.lent.empty() ? 0 : remote.lent.back().units.end;
    if (next == 0 && s.computed == 2 * 256) Lend(s, remote, {0, 2}, 0);
    if (next == 2 && s.computed == 3 * 256) Lend(s, remote, {2, 3}, 1);
  });
  ExpectSame(lent, expected, "rows after 2 and 3 lent units");
  EXPECT_GT(peers_.questions, 0);
}

TEST_P(LentTest, ASilentCreditorFailsItsSliceAlone) {
  DrivenSequence borrower = NewSequence(400, 0), other = NewSequence(77, 40);
  const Answer expected = RunSequence(other, 512, kKeepAll);
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
  EXPECT_EQ(remote.late, std::vector<LoanId>{remote.lent.front().loan});
  EXPECT_TRUE(remote.failed.empty()) << "it may answer yet";
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
