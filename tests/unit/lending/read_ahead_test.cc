// Goal: between two questions a creditor fetches what the last one would read in the next layer, in
// the order of the question, no more than it may, and nothing of an older question; the time counts
// for its share of a processor.
#include "common/lending/read_ahead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "common/lending/compute_share.h"
#include "tests/unit/lending/lending_world.h"

namespace tandem::lending {
namespace {

using testing::ElementsAre;
using testing::Pair;

constexpr int64_t kBlockBytes = 100;

// Remembers what was fetched, as (asked layer, block).
class FetchingAttention final : public FakeAttention {
 public:
  explicit FetchingAttention(int64_t block_bytes)
      : FakeAttention(/*gate=*/nullptr), block_bytes_(block_bytes) {}
  int64_t FetchForNextLayer(int32_t layer, absl::Span<const BlockId> blocks) override {
    for (const BlockId block : blocks) fetched.emplace_back(layer, block.value());
    return block_bytes_ * static_cast<int64_t>(blocks.size());
  }

  std::vector<std::pair<int32_t, int32_t>> fetched;

 private:
  const int64_t block_bytes_;
};

void Add(ReadAhead& ahead, int32_t layer, std::vector<BlockId> blocks) {
  const auto owner = std::make_shared<const std::vector<BlockId>>(std::move(blocks));
  ahead.Add(layer, owner, *owner);
}

void FetchAll(ReadAhead& ahead) {
  while (ahead.has_more()) ahead.FetchSome();
}

TEST(ReadAhead, FetchesTheBlocksOfAQuestionInItsOrderOneAtATime) {
  FetchingAttention attention(kBlockBytes);
  ReadAhead ahead(attention, 100 * kBlockBytes);
  EXPECT_FALSE(ahead.has_more());
  Add(ahead, 2, {BlockId(7), BlockId(4)});
  Add(ahead, 2, {});
  Add(ahead, 2, {BlockId(9)});
  ahead.FetchSome();
  EXPECT_THAT(attention.fetched, ElementsAre(Pair(2, 7)));
  FetchAll(ahead);
  EXPECT_THAT(attention.fetched, ElementsAre(Pair(2, 7), Pair(2, 4), Pair(2, 9)));
}

TEST(ReadAhead, ForgetsAnOlderQuestion) {
  FetchingAttention attention(kBlockBytes);
  ReadAhead ahead(attention, 100 * kBlockBytes);
  Add(ahead, 0, {BlockId(1), BlockId(2), BlockId(3)});
  ahead.FetchSome();
  ahead.Restart();
  EXPECT_FALSE(ahead.has_more());
  Add(ahead, 1, {BlockId(5)});
  FetchAll(ahead);
  EXPECT_THAT(attention.fetched, ElementsAre(Pair(0, 1), Pair(1, 5)));
}

TEST(ReadAhead, StopsAtItsBoundsUntilTheNextQuestion) {
  FetchingAttention attention(kBlockBytes);
  ReadAhead ahead(attention, 3 * kBlockBytes);
  for (int question = 1; question <= 2; ++question) {
    ahead.Restart();
    Add(ahead, 0, BlocksFrom(0, 10));
    FetchAll(ahead);
    EXPECT_EQ(attention.fetched.size(), 3u * question);
  }
  ReadAhead parts(attention, int64_t{1} << 40);
  attention.fetched.clear();
  for (size_t i = 0; i < 2 * ReadAhead::kPartsMax; ++i) Add(parts, 0, {BlockId(1)});
  FetchAll(parts);
  EXPECT_EQ(attention.fetched.size(), ReadAhead::kPartsMax);
}

TEST(ReadAhead, DoesNothingWhereThereIsNothingToGain) {
  FetchingAttention no_bytes(0);
  ReadAhead useless(no_bytes, 100 * kBlockBytes);
  Add(useless, 0, BlocksFrom(0, 10));
  FetchAll(useless);
  EXPECT_EQ(no_bytes.fetched.size(), 1u);

  FetchingAttention attention(kBlockBytes);
  ReadAhead off(attention, 0);
  Add(off, 0, BlocksFrom(0, 10));
  EXPECT_FALSE(off.has_more());
}

TEST(ReadAhead, TheServiceFetchesAfterItHasAnswered) {
  const engine::UnitSpan units = {.first = 0, .end = 4};
  Gate gate;
  CreditorNode::Options options;
  options.gate = &gate;
  CreditorNode creditor(options);
  DebtorNode debtor({});
  debtor.Borrow(creditor, 1, units, 0);
  const auto random = NewSeededRandom(5);
  Layer layer(3);
  layer.Add(1, units, 0, units, 1, kQFloats, *random);
  layer.Exchange(*debtor.links);
  EXPECT_TRUE(layer.IsRight(0));
  gate.AwaitFetched(static_cast<size_t>(units.size()) * kUnitBlocks);
}

// Answers take no time on this clock; reading ahead takes more than the share that is saved.
TEST(ReadAhead, TheServicesFetchesCountForItsShare) {
  const engine::UnitSpan units = {.first = 0, .end = 4};
  ManualClock clock;
  Gate gate;
  gate.while_fetching = [&clock] { clock.Advance(absl::Milliseconds(100)); };
  CreditorNode::Options options;
  options.gate = &gate;
  options.clock = &clock;
  options.compute_share = 0.1;
  CreditorNode creditor(options);
  DebtorNode debtor({});
  debtor.Borrow(creditor, 1, units, 0);
  const auto random = NewSeededRandom(6);
  Layer first(2), second(3);
  for (Layer* layer : {&first, &second}) layer->Add(1, units, 0, units, 1, kQFloats, *random);
  first.Exchange(*debtor.links);
  EXPECT_TRUE(first.IsRight(0));
  EXPECT_EQ(creditor.service->counters().delayed, 0);
  gate.AwaitFetched(static_cast<size_t>(units.size()) * kUnitBlocks);
  debtor.links->Ask(absl::MakeSpan(second.parts));
  const absl::Time give_up = absl::Now() + absl::Seconds(20);
  LendingServiceCounters counters;
  while (counters.delayed == 0 && counters.answers < 2 && absl::Now() < give_up)
    counters = creditor.service->counters();
  EXPECT_EQ(counters.delayed, 1);
  EXPECT_EQ(counters.answers, 1);
  clock.Advance(ComputeShare::kDelayMax);
  debtor.links->Collect(absl::MakeSpan(second.parts));
  EXPECT_TRUE(second.IsRight(0));
}

}  // namespace
}  // namespace tandem::lending
