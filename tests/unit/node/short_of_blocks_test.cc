// Goal: a prompt that would be refused anyway, because sequences wait for memory or too many are
// here, is refused before a fetch or a load from storage takes blocks for it: these would be
// missing to the sequences that wait.
#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/node/stored_blocks_fixture.h"

namespace tandem::decode_node {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

constexpr int kKind = 5, kStored = 2;  // of the prompt that comes last, and its blocks in storage

class ShortOfBlocksTest : public StoredBlocksTest {
 protected:
  // Part of a prompt of three blocks lies in storage, and not in memory.
  void Store() {
    Serve("stored", kKind, kStored);
    Crowd();
    ASSERT_EQ(OnDiskOnly().size(), static_cast<size_t>(kStored));
  }
  // Two answers of up to seven blocks each: the second gives its blocks to the first, and waits.
  void RunShort() {
    for (const std::string id : {"a", "b"}) {
      v1::NodeCommand command = Run(id, 40, -1);
      v1::SequenceSpec& sequence = *command.mutable_start_decode()->mutable_sequence();
      sequence.mutable_stop()->set_max_tokens(60);
      sequence.mutable_stop()->set_ignore_eos(true);
      sequence.set_cache_salt(id);
      Keep(Send(command));
    }
    while (resources_->counters().preemptions() == 0) StepAndServe();
    ASSERT_TRUE(resources_->scheduler().short_of_blocks());
    ASSERT_GE(resources_->scheduler().block_counts().available(), kStored + 1);
  }
  void StepAndServe() {
    Keep(Step());
    ServeAll();
  }
  // Sends the prompt, and returns why it was refused.
  absl::Status Refusal(const v1::NodeCommand& command) {
    node::NodeActions actions = Send(command);
    const absl::Status refusal = DecodeCoreTest::Refusal(actions);
    for (const storage::StorageCommand& stored : actions.storage)
      EXPECT_FALSE(std::holds_alternative<storage::LoadBlocks>(stored));
    EXPECT_EQ(actions.transfer.size(), 0u);
    Keep(std::move(actions));
    return refusal;
  }
  static v1::NodeCommand Fetching(v1::NodeCommand command) {
    v1::StartDecode& run = *command.mutable_start_decode();
    run.set_fetch_blocks(kStored);
    run.set_fetch_from_node_id("x");
    run.set_fetch_from_incarnation(1);
    return command;
  }
};

TEST_F(ShortOfBlocksTest, NothingIsLoadedWhileASequenceWaits) {
  Store();
  RunShort();
  EXPECT_THAT(Refusal(Prompt("c", kKind, kStored)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("wait for blocks")));
}

TEST_F(ShortOfBlocksTest, NothingIsFetchedWhileASequenceWaits) {
  RunShort();
  EXPECT_THAT(Refusal(Fetching(Prompt("c", kKind, kStored))),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("wait for blocks")));
}

TEST_F(ShortOfBlocksTest, NothingIsFetchedOrLoadedBeyondTheLimitOfSequences) {
  Store();
  for (int i = 0; i < 4; ++i) Keep(Send(Run(absl::StrCat("r", i), 4)));
  EXPECT_THAT(Refusal(Prompt("c", kKind, kStored)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("slots")));
  EXPECT_THAT(Refusal(Fetching(Prompt("d", kKind + 1, kStored))),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("slots")));
}

}  // namespace
}  // namespace tandem::decode_node
