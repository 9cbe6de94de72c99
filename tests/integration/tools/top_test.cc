// Goal: on a terminal `tandem top` shows a router's cluster, takes keys and new sizes, outlives a
// router that goes away and returns, and gives the terminal back. A pseudo-terminal is the user; a
// service of the test's own is the router, so that every figure is known.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tandem/v1/client.grpc.pb.h"
#include "tests/testing/program_run.h"
#include "tests/testing/terminal_session.h"
#include "tests/testing/vt52_screen.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

// A router of one busy decode node and 30 requests.
class FakeRouter final : public v1::Tandem::Service {
 public:
  // `port` 0: any that is free.
  explicit FakeRouter(int port = 0) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeRouter() override { server_->Shutdown(std::chrono::system_clock::now()); }
  int port() const { return port_; }

  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                         v1::GetStatusResponse* response) override {
    response->set_router_id("router-7");
    response->mutable_router()->set_requests_running(30);
    v1::NodeStatus& node = *response->add_nodes();
    node.set_node_id("decode-0");
    node.set_role("decode");
    node.set_state("ready");
    node.mutable_load()->set_blocks_used(10);
    node.mutable_load()->set_blocks_free(10);
    node.mutable_load()->set_sequences_waiting(9);
    return grpc::Status::OK;
  }
  grpc::Status ListRequests(grpc::ServerContext*, const v1::ListRequestsRequest*,
                            v1::ListRequestsResponse* response) override {
    for (int i = 0; i < 30; ++i)
      response->add_requests()->set_request_id(absl::StrCat("request-", i));
    return grpc::Status::OK;
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class Top : public ::testing::Test {
 protected:
  void Open(TerminalSize size = {}) {
    ASSERT_NE(router_->port(), 0);
    port_ = router_->port();
    size_ = size;
    top_ = std::make_unique<TerminalSession>(
        std::vector<std::string>{"tandem", "top", absl::StrCat("--router=127.0.0.1:", port_),
                                 "--every=100ms"},
        size, std::map<std::string, std::string>{{"TERM", "vt52"}});
    ASSERT_TRUE(Shows({"router-7", "9 waiting", "q quits"})) << Screen();
  }
  std::string Screen() const {
    return Vt52Screen::After(top_->written(), size_.columns, size_.rows);
  }
  // Whether the screen comes to show all of `texts` at once.
  bool Shows(const std::vector<std::string>& texts) {
    return top_->AwaitThat([&](const std::string& written) {
      const std::string shown = Vt52Screen::After(written, size_.columns, size_.rows);
      return std::all_of(texts.begin(), texts.end(),
                         [&](const std::string& text) { return absl::StrContains(shown, text); });
    });
  }
  bool Hides(const std::string& text) {
    return top_->AwaitThat([&](const std::string& written) {
      return !absl::StrContains(Vt52Screen::After(written, size_.columns, size_.rows), text);
    });
  }

  std::unique_ptr<FakeRouter> router_ = std::make_unique<FakeRouter>();
  int port_ = 0;
  TerminalSize size_;
  std::unique_ptr<TerminalSession> top_;
};

TEST_F(Top, ShowsTheClusterAndLeavesOnQ) {
  Open();
  // Twelve requests fit beside one node, and what is above them, in 24 rows.
  EXPECT_TRUE(Shows({"requests: 30 running", "decode-0 ", "######", "request-0 ", "request-12 "}))
      << Screen();
  top_->Type("q");
  EXPECT_EQ(top_->Finish(), 0);
}

TEST_F(Top, AWideTerminalShowsMore) {
  Open({.columns = 120, .rows = 40});
  EXPECT_TRUE(Shows({"KV: # used = cached ! quarantined . free", "request-28 "})) << Screen();
}

TEST_F(Top, FollowsTheTerminalsSize) {
  Open();
  size_ = {.columns = 120, .rows = 40};
  top_->Resize(size_);
  EXPECT_TRUE(Shows({"KV: # used = cached ! quarantined . free", "request-28 "})) << Screen();
}

TEST_F(Top, KeysShowHelpAndPause) {
  Open();
  top_->Type("h");
  EXPECT_TRUE(Shows({"q, Ctrl-C    leaves"})) << Screen();
  top_->Type("h");
  EXPECT_TRUE(Shows({"request-0 "})) << Screen();
  top_->Type("p");
  EXPECT_TRUE(Shows({"paused; p goes on"})) << Screen();
  top_->Type("p");
  EXPECT_TRUE(Shows({"q quits"})) << Screen();
}

TEST_F(Top, ARouterGoesAwayAndReturns) {
  Open();
  router_.reset();
  EXPECT_TRUE(Shows({"no answer: shown is ", "decode-0 "})) << Screen();
  router_ = std::make_unique<FakeRouter>(port_);
  ASSERT_EQ(router_->port(), port_);
  EXPECT_TRUE(Hides("no answer")) << Screen();
  EXPECT_TRUE(Shows({"q quits"})) << Screen();
}

TEST_F(Top, CtrlCLeaves) {
  Open();
  top_->Type("\x03");
  EXPECT_EQ(top_->Finish(), 0);
}

TEST(TopWithoutATerminal, IsRefused) {
  const ProgramRun run = RunProgram({"tandem", "top"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.output, HasSubstr("tandem top: standard input and output must be a terminal"));
}

}  // namespace
}  // namespace tandem::testing
