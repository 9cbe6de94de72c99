// Goal: on a terminal `tandem chat` edits lines, remembers and completes them, takes messages of
// several lines, stops an answer on Ctrl-C and leaves on two or where no router answers, says when
// an answer is not whole, and breaks no word that fits a line. A pseudo-terminal is the user: keys
// in, screen out.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_split.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/terminal_session.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kUp[] = "\033[A";
constexpr char kLeft[] = "\033[D";
constexpr char kCtrlA[] = "\x01";
constexpr char kCtrlC[] = "\x03";
constexpr char kCtrlD[] = "\x04";
constexpr char kAltEnter[] = "\033\r";

class ChatTerminal : public ::testing::Test {
 protected:
  // A step of the cluster's engine takes `step_time`.
  void Start(const std::string& step_time, std::vector<std::string> flags, TerminalSize size = {}) {
    ASSERT_OK_AND_ASSIGN(cluster_,
                         TestCluster::Start({"--engine=hash", "--prefill=0", "--decode=1",
                                             "--kv-blocks=2048", "--hash-step-time=" + step_time}));
    folder_ =
        std::filesystem::path(::testing::TempDir()) / absl::StrCat("chat_terminal_", ::getpid());
    std::filesystem::remove_all(folder_);
    flags_ = {"tandem", "chat", "--router=" + cluster_->address(), "--temperature=0"};
    flags_.insert(flags_.end(), flags.begin(), flags.end());
    size_ = size;
    Open();
  }
  void Open() {
    chat_ = std::make_unique<TerminalSession>(
        flags_, size_, std::map<std::string, std::string>{{"XDG_STATE_HOME", folder_.string()}});
    ASSERT_TRUE(chat_->Await("/help lists commands\n\n> ")) << chat_->screen();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Types a line and returns what the screen shows from it to the next prompt.
  std::string Say(const std::string& keys) {
    chat_->Type(keys + "\n");
    return chat_->Until("\n\n> ");
  }
  // The model's answer to one message.
  std::string Expected(const std::string& text, int tokens) {
    v1::GenerateRequest request;
    v1::ChatMessage& message = *request.mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content(text);
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stop()->set_max_tokens(tokens);
    return cluster_->Generate(request).text;
  }

  std::filesystem::path folder_;
  std::vector<std::string> flags_;
  TerminalSize size_;
  std::unique_ptr<TestCluster> cluster_;
  std::unique_ptr<TerminalSession> chat_;
};

TEST_F(ChatTerminal, KeysEditTheLineThatIsSent) {
  Start("0s", {"--max-tokens=8", "--no-markdown"});
  const std::string expected = Expected("hello", 8);
  // "ello", back to the start, "h" before it.
  EXPECT_THAT(Say(std::string("ello") + kCtrlA + "h"), HasSubstr(expected));
  EXPECT_THAT(Say("/clear"), EndsWith("/clear"));
  EXPECT_THAT(Say(std::string("helo") + kLeft + "l"), HasSubstr(expected));
}

TEST_F(ChatTerminal, HistoryOutlivesTheChatAndIsTheUsersAlone) {
  Start("0s", {"--max-tokens=8", "--no-markdown"});
  const std::string expected = Expected("hello", 8);
  EXPECT_THAT(Say("hello"), HasSubstr(expected));
  chat_->Type(kCtrlD);
  EXPECT_EQ(chat_->Finish(), 0);
  struct stat file {};
  ASSERT_EQ(::stat((folder_ / "tandem" / "chat_history").c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  Open();
  EXPECT_THAT(Say(kUp), HasSubstr(expected));
}

TEST_F(ChatTerminal, TabCompletesCommandsAndListsWhatItCannotChoose) {
  Start("0s", {"--max-tokens=8"});
  chat_->Type("/s\t");
  EXPECT_TRUE(chat_->Await("/summary")) << chat_->screen();
  EXPECT_TRUE(chat_->Await("/system")) << chat_->screen();
  chat_->Type("u\t\n");
  EXPECT_TRUE(chat_->Await("  decode ")) << chat_->screen();
}

TEST_F(ChatTerminal, AMessageMayHaveSeveralLines) {
  Start("0s", {"--max-tokens=8", "--no-markdown"});
  const std::string expected = Expected("one\ntwo", 8);
  EXPECT_THAT(Say("one\\\ntwo"), HasSubstr(expected));
  EXPECT_THAT(Say("/clear"), EndsWith("/clear"));
  EXPECT_THAT(Say("\"\"\"one\ntwo\"\"\""), HasSubstr(expected));
  EXPECT_THAT(Say("/clear"), EndsWith("/clear"));
  EXPECT_THAT(Say(std::string("one") + kAltEnter + "two"), HasSubstr(expected));
  EXPECT_THAT(Say("/clear"), EndsWith("/clear"));
  // A terminal sends pasted line breaks as carriage returns, and the paste may hold control codes.
  EXPECT_THAT(Say("\033[200~one\rt\x01wo\033[201~"), HasSubstr(expected));
}

TEST_F(ChatTerminal, CtrlCStopsAnAnswerAndTheChatGoesOn) {
  Start("20ms", {"--max-tokens=2000"});
  chat_->Type("hello\n");
  ASSERT_TRUE(chat_->Await("hello\n"));
  // The answer has begun when the router has placed it.
  ASSERT_OK(AwaitStatus(cluster_->client(), absl::Seconds(30), [](const auto& status) {
    return status.router().requests_running() == 1 ? "" : "not running";
  }));
  chat_->Type(kCtrlC);
  EXPECT_TRUE(chat_->Await("[stopped; /retry asks again]\n\n> ")) << chat_->screen();
  ASSERT_OK(AwaitQuiet(cluster_->client(), absl::Seconds(30)));
  EXPECT_THAT(Say("/help"), HasSubstr("starts over"));
  chat_->Type(kCtrlC);
  EXPECT_TRUE(chat_->Await("Ctrl-C again leaves")) << chat_->screen();
  chat_->Type(kCtrlC);
  EXPECT_EQ(chat_->Finish(), 0) << chat_->screen();
}

TEST_F(ChatTerminal, CtrlCTwiceLeavesFromAnAnswer) {
  Start("20ms", {"--max-tokens=2000"});
  chat_->Type("hello\n");
  ASSERT_TRUE(chat_->Await("hello\n"));
  ASSERT_OK(AwaitStatus(cluster_->client(), absl::Seconds(30), [](const auto& status) {
    return status.router().requests_running() == 1 ? "" : "not running";
  }));
  chat_->Type(kCtrlC);
  ASSERT_TRUE(chat_->Await("[stopped")) << chat_->screen();
  ASSERT_TRUE(chat_->Await("> ")) << chat_->screen();
  chat_->Type(kCtrlC);
  EXPECT_EQ(chat_->Finish(), 0) << chat_->screen();
}

// A server that takes the connection and says nothing.
TEST(ChatWithoutARouter, CtrlCEndsTheWait) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 16), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  TerminalSession chat({"tandem", "chat",
                        absl::StrCat("--router=127.0.0.1:", ntohs(address.sin_port)),
                        "--history="});
  pollfd connected = {.fd = listener, .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&connected, 1, 30'000), 1);
  chat.Type(kCtrlC);
  EXPECT_EQ(chat.Finish(), 1);
  EXPECT_THAT(chat.screen(), HasSubstr("interrupted"));
  ::close(listener);
}

TEST_F(ChatTerminal, CtrlCGivesUpALineAndNothingIsSent) {
  Start("0s", {"--max-tokens=8"});
  chat_->Type("not this");
  ASSERT_TRUE(chat_->Await("not this"));
  chat_->Type(kCtrlC);
  ASSERT_TRUE(chat_->Await("^C\n\n> ")) << chat_->screen();
  EXPECT_THAT(Say("/retry"), HasSubstr("nothing was asked yet"));
}

TEST_F(ChatTerminal, ACutAnswerSaysSo) {
  Start("0s", {"--max-tokens=8"});
  EXPECT_THAT(Say("hello"), HasSubstr("[cut off after 8 tokens"));
}

TEST_F(ChatTerminal, AnErrorLeavesTheChatOpen) {
  Start("0s", {"--max-tokens=8"});
  EXPECT_THAT(Say("hello"), Not(HasSubstr("unavailable")));
  EXPECT_EQ(cluster_->Stop(), "exit code 0");
  EXPECT_THAT(Say("again"), HasSubstr("router at "));
  chat_->Type(kCtrlD);
  EXPECT_EQ(chat_->Finish(), 0);
}

}  // namespace
}  // namespace tandem::testing
