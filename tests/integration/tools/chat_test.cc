// Goal: `tandem chat` talks turn by turn with a real cluster: each answer is the one that the whole
// conversation gives, commands change that conversation as they say, and the rate is shown.
#include <gmock/gmock.h>

#include "absl/strings/str_split.h"
#include "tests/testing/child_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kSoon = absl::Seconds(30);

class Chat : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start({"--engine=hash", "--prefill=1", "--decode=1",
                                                       "--kv-blocks=2048"}));
    chat_ = std::make_unique<ChildProcess>(std::vector<std::string>{
        std::string(TANDEM_BINARY_DIR) + "/bin/tandem", "chat", "--router=" + cluster_->address(),
        "--temperature=0", "--max-tokens=12", "--rate"});
  }
  // What the model says after these turns, roles alternating from "user" on.
  std::string Expected(const std::vector<std::string>& turns, const std::string& system = "") {
    v1::GenerateRequest request;
    if (!system.empty()) Add(request, "system", system);
    for (size_t i = 0; i < turns.size(); ++i) {
      Add(request, i % 2 == 0 ? "user" : "assistant", turns[i]);
    }
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stop()->set_max_tokens(12);
    return cluster_->Generate(request).text;
  }
  static void Add(v1::GenerateRequest& request, const std::string& role, const std::string& text) {
    v1::ChatMessage& message = *request.mutable_chat()->add_messages();
    message.set_role(role);
    message.set_content(text);
  }
  // The next answer, which ends with the line of its rate.
  void ExpectAnswer(const std::string& expected) {
    EXPECT_EQ(chat_->ReadLine(expected, kSoon), expected);
    EXPECT_THAT(chat_->ReadLine("[", kSoon), StartsWith("[12 tokens"));
  }

  std::unique_ptr<TestCluster> cluster_;
  std::unique_ptr<ChildProcess> chat_;
};

TEST_F(Chat, TurnsRememberWhatWasSaid) {
  const std::string first = Expected({"hello"});
  ASSERT_FALSE(first.empty());
  chat_->Write("hello");
  ExpectAnswer(first);
  chat_->Write("and more");
  ExpectAnswer(Expected({"hello", first, "and more"}));
  EXPECT_EQ(chat_->Finish(), 0);
}

TEST_F(Chat, CommandsChangeTheConversation) {
  const std::string first = Expected({"hello"});
  chat_->Write("/retry");
  EXPECT_THAT(chat_->ReadLine("nothing", kSoon), HasSubstr("nothing was asked yet"));
  chat_->Write("hello");
  ExpectAnswer(first);
  chat_->Write("/retry");  // greedy: the same answer to the same conversation
  ExpectAnswer(first);
  chat_->Write("other");
  ExpectAnswer(Expected({"hello", first, "other"}));
  chat_->Write("/undo");
  chat_->Write("third");
  ExpectAnswer(Expected({"hello", first, "third"}));
  chat_->Write("/system be brief");
  chat_->Write("hello");
  ExpectAnswer(Expected({"hello"}, "be brief"));
  chat_->Write("/summary");
  EXPECT_THAT(chat_->ReadLine("  decode ", kSoon), HasSubstr("decode-0"));
  chat_->Write("/frobnicate");
  EXPECT_EQ(chat_->ReadLine("unknown", kSoon), "unknown command /frobnicate");
  chat_->Write("/quit");
  EXPECT_EQ(chat_->Finish(), 0);
}

}  // namespace
}  // namespace tandem::testing
