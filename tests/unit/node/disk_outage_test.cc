// Goal: while a node's storage refuses every block, its log has one warning, however long the
// outage and however often the node tries again; it says when storage works again, and warns of the
// next outage.
#include <gmock/gmock.h>

#include "absl/strings/str_split.h"
#include "tests/unit/node/stored_blocks_fixture.h"

namespace tandem::decode_node {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class DiskOutageTest : public StoredBlocksTest {
 protected:
  // Serves a prompt, whose saves end with `status`, after the pause. Returns what the log has then.
  std::vector<std::string> LinesOf(const std::string& id, const absl::Status& status) {
    now_ += node::StoredBlocks::kPause;
    ::testing::internal::CaptureStderr();
    core_->OnTick(now_);
    Start(Prompt(id, ++prompts_, 3));
    EXPECT_THAT(pending_, SizeIs(3)) << "it does not try";
    for (const storage::StorageCommand& command : std::exchange(pending_, {}))
      if (status.ok())
        Serve(command);
      else
        Answer(Refused(command, status));
    StepAll();
    return absl::StrSplit(::testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty());
  }

  int prompts_ = 0;
};

TEST_F(DiskOutageTest, HasOneWarningThatSaysWhy) {
  const absl::Status full = absl::ResourceExhaustedError("/kv/d0.kv: the disk is full");
  const auto first = LinesOf("a", full);
  ASSERT_THAT(first, SizeIs(1));
  EXPECT_THAT(first[0], HasSubstr("WARN"));
  EXPECT_THAT(first[0],
              HasSubstr("cannot store KV blocks, trying again after a pause tier=disk why="
                        "\"RESOURCE_EXHAUSTED: /kv/d0.kv: the disk is full\" pause=30s"));
  for (int times = 0; times < 10; ++times)
    EXPECT_THAT(LinesOf(absl::StrCat("b", times), full), IsEmpty()) << "pause " << times;
  EXPECT_EQ(resources_->counters().saves_failed(), 33);
  const auto again = LinesOf("c", absl::OkStatus());
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_THAT(again[0], HasSubstr("stores KV blocks again"));
  EXPECT_THAT(again[0], Not(HasSubstr("WARN")));
  EXPECT_THAT(LinesOf("d", full), SizeIs(1));
  ExpectNothingHeld();
}

}  // namespace
}  // namespace tandem::decode_node
