// Goal: a device engine that has lent a sequence's oldest KV to other device engines gives the
// tokens and log-probability bits that it gives when all of its KV is local: in prompts and in
// generated rows, with two creditors, beside other sequences, with KV of several types, whether
// creditors' blocks arrive in the arena or in device memory. The lent blocks are poisoned at the
// debtor. A creditor that does not answer fails its slice and no other.
#include "tests/golden/cpu_engine/lent_fixture.h"
#include "tests/golden/device_engine/device_engines.h"

namespace tandem::engine {
namespace {

class DeviceLentTest
    : public ::testing::TestWithParam<std::tuple<const char*, DeviceKind, const char*>>,
      public LentFixture {
 protected:
  void SetUp() override {
    if (DeviceIsMissing(kind())) GTEST_SKIP() << "needs a GPU: " << kernels::DescribeCuda();
    mirrors_ = std::random_device()() % 2 == 0;
    std::cout << (mirrors_ ? "mirrors" : "does not mirror") << " device memory in the arena\n";
    Open(std::get<0>(GetParam()));
  }
  DeviceKind kind() const { return std::get<1>(GetParam()); }

  std::unique_ptr<Engine> NewEngine() override {
    DeviceEngineOptions options;
    options.threads = 1;
    options.block_tokens = 64;
    options.kv_type = std::get<2>(GetParam());
    auto engine = NewEngineOn(kind(), *checkpoint_, options);
    EXPECT_OK(engine.status());
    EXPECT_OK((*engine)->AllocateKv(kBlocks));
    (*engine)->UseHostMirror(mirrors_);
    return *std::move(engine);
  }

  static char* BlockOf(Engine& engine, BlockId block, int layer) {
    return engine.device_blocks()->regions[static_cast<size_t>(layer)] +
           block.value() * engine.spec().layout.layer_block_bytes;
  }
  void Move(Engine& debtor, BlockId from, Engine& creditor, BlockId to, int layer) override {
    const size_t bytes = static_cast<size_t>(debtor.spec().layout.layer_block_bytes);
    std::vector<char> block(bytes);
    ASSERT_OK_AND_ASSIGN(auto stream, debtor.device_blocks()->device->NewStream());
    stream->CopyOut(block.data(), BlockOf(debtor, from, layer), bytes);
    stream->Fill(BlockOf(debtor, from, layer), 0xff, bytes);
    ASSERT_OK(stream->Synchronize());
    if (mirrors_) {
      std::memcpy(creditor.arena().Block(layer, to).data(), block.data(), bytes);
      creditor.arena().MarkArrived(to);
      return;
    }
    ASSERT_OK_AND_ASSIGN(auto other, creditor.device_blocks()->device->NewStream());
    other->CopyIn(BlockOf(creditor, to, layer), block.data(), bytes);
    ASSERT_OK(other->Synchronize());
  }

  bool mirrors_ = true;
};

constexpr auto kKeepAll = [](DrivenSequence&, RemoteKv&) {};

TEST_P(DeviceLentTest, PromptAndGeneratedRowsKeepTheirBits) {
  const DrivenSequence sequence = NewSequence(620 + static_cast<int64_t>(random_() % 100), 0);
  const Answer expected = RunSequence(sequence, 512, kKeepAll);
  // The first unit goes to one creditor before the prompt's last chunks, the second to another
  // before the first generated row.
  const Answer lent = RunSequence(sequence, 150, [&](DrivenSequence& s, RemoteKv& remote) {
    const int32_t next = remote.lent.empty() ? 0 : remote.lent.back().units.end;
    if (next == 0 && s.computed > 256 + 40) Lend(s, remote, {0, 1}, 0);
    if (next == 1 && s.computed > 2 * 256 + 40) Lend(s, remote, {1, 2}, 1);
  });
  ExpectSame(lent, expected, "lent two units");
  EXPECT_GT(peers_.questions, 0);
}

// As of lost units that are computed again: no token before the first row lies here.
TEST_P(DeviceLentTest, RowsThatFollowLentUnitsAtOnceKeepTheirBits) {
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
  const DrivenSequence sequence = NewSequence(700, 0);
  const Answer expected = RunSequence(sequence, 512, kKeepAll);
  const Answer lent = RunSequence(sequence, 128, [&](DrivenSequence& s, RemoteKv& remote) {
    const int32_t next = remote.lent.empty() ? 0 : remote.lent.back().units.end;
    if (next == 0 && s.computed == 256) Lend(s, remote, {0, 1}, 0);
    if (next == 1 && s.computed == 2 * 256) Lend(s, remote, {1, 2}, 1);
  });
  ExpectSame(lent, expected, "rows after one and two lent units");
  EXPECT_GT(peers_.questions, 0);
}

TEST_P(DeviceLentTest, ASilentCreditorFailsItsSliceAlone) {
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

TEST_P(DeviceLentTest, QuestionsOutOfRangeAreRefused) {
  const std::vector<BlockId> blocks = TakeBlocks(debtor_->spec(), 0, 256);
  const std::vector<float> q(static_cast<size_t>(attention_[0]->q_floats()));
  std::vector<std::byte> answer(static_cast<size_t>(attention_[0]->AnswerBytes(0, {0, 1}, 1)));
  const PartialQuery good{.layer = debtor_->spec().window_tokens == 0 ? 0 : 5,
                          .units = {0, 1},
                          .blocks = blocks,
                          .num_rows = 1,
                          .first_position = 300,
                          .q = q};
  const auto refused = [&](auto change) {
    PartialQuery query = good;
    change(query);
    const absl::Status status = attention_[0]->Compute(query, absl::MakeSpan(answer));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  };
  const std::vector<BlockId> wrong(blocks.size(), BlockId(static_cast<int32_t>(kBlocks)));
  refused([](PartialQuery& query) { query.layer = 1000; });
  refused([](PartialQuery& query) { query.first_position = 255; });
  refused([&](PartialQuery& query) { query.blocks = wrong; });
  if (debtor_->spec().window_tokens > 0) refused([](PartialQuery& query) { query.layer = 0; });
  answer.pop_back();
  refused([](PartialQuery&) {});
}

INSTANTIATE_TEST_SUITE_P(Tiny, DeviceLentTest,
                         ::testing::Values(std::tuple("llama", DeviceKind::kEmulated, "bf16"),
                                           std::tuple("gemma3", DeviceKind::kEmulatedHopper,
                                                      "bf16"),
                                           std::tuple("qwen3", DeviceKind::kEmulated, "int8"),
                                           std::tuple("llama", DeviceKind::kCuda, "bf16"),
                                           std::tuple("qwen3", DeviceKind::kCuda, "fp8")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  DeviceKindName(std::get<1>(info.param)) + "_" +
                                  std::get<2>(info.param);
                         });

}  // namespace
}  // namespace tandem::engine
