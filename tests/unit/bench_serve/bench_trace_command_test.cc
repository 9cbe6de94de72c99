// Goal: what `tandem bench trace` measured until an interrupt is published as a part of the trace,
// also when the router does not tell any more what its nodes did.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "cli/command_line/commands.h"
#include "tandem/v1/client.grpc.pb.h"
#include "tests/testing/test_folder.h"

namespace tandem::cli {
namespace {

// Before any thread starts: the interrupt is for the command's signalfd.
const bool kInterruptsWait = [] {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  return pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0;
}();

// A router that gives two answers, interrupts the process at the third request, and is lost after
// its first status.
class FakeRouter final : public v1::Tandem::Service {
 public:
  FakeRouter() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeRouter() override { server_->Shutdown(std::chrono::system_clock::now()); }
  int port() const { return port_; }

  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest*,
                        v1::GetModelResponse* response) override {
    response->set_name("of the test");
    return grpc::Status::OK;
  }
  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                         v1::GetStatusResponse* response) override {
    if (statuses_++ > 0) return {grpc::StatusCode::UNAVAILABLE, "gone\x1b[2J"};
    v1::NodeStatus& node = *response->add_nodes();
    node.set_node_id("decode-0");
    node.set_role("decode");
    return grpc::Status::OK;
  }
  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    const int before = begun_++;
    v1::GenerateResponse part;
    part.mutable_delta()->set_text("x");
    if (before == 2) {
      answered_.Wait();
      ::kill(::getpid(), SIGINT);
      while (writer->Write(part)) continue;  // until the command gives it up
      return grpc::Status::CANCELLED;
    }
    writer->Write(part);
    v1::Usage& usage = *part.mutable_finished()->mutable_usage();
    usage.set_prompt_tokens(request->tokens().ids_size());
    usage.set_output_tokens(1);
    usage.set_cached_tokens(before == 0 ? 0 : 512);
    writer->Write(part);
    answered_.DecrementCount();
    return grpc::Status::OK;
  }

 private:
  int port_ = 0;
  std::atomic<int> statuses_ = 0, begun_ = 0;
  absl::BlockingCounter answered_{2};
  std::unique_ptr<grpc::Server> server_;
};

TEST(BenchTraceCommand, AnInterruptedRunIsPublishedAlsoWithoutItsRouter) {
  ASSERT_TRUE(kInterruptsWait);
  const ::tandem::testing::TestFolder folder("bench-trace-command");
  const std::string trace = folder / "trace.jsonl", json_path = folder / "report.json";
  {
    std::ofstream file(trace);
    for (const int ms : {0, 1, 300, 3'600'000})
      file << "{\"timestamp\": " << ms
           << ", \"input_length\": 1024, \"output_length\": 1, \"hash_ids\": [7, 8]}\n";
  }
  FakeRouter router;
  ::testing::internal::CaptureStdout();
  const int code = NewBenchTraceCommand()->Run(
      {trace, absl::StrCat("--target=grpc://127.0.0.1:", router.port()), "--json=" + json_path},
      {});
  const std::string table = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, 0);
  EXPECT_THAT(table, ::testing::HasSubstr("this is the result so far"));
  EXPECT_THAT(table, ::testing::HasSubstr("not known: UNAVAILABLE"));
  EXPECT_THAT(table, ::testing::Not(::testing::HasSubstr("\x1b")));
  std::ifstream file(json_path);
  std::stringstream text;
  text << file.rdbuf();
  const auto json = nlohmann::json::parse(text.str(), nullptr, false);
  ASSERT_TRUE(json.is_object()) << text.str();
  EXPECT_EQ(json["interrupted"], true);
  EXPECT_THAT(json["nodes_error"].get<std::string>(), ::testing::HasSubstr("gone"));
  EXPECT_EQ(json["nodes"].size(), 0);
  EXPECT_EQ(json["answered"], 2);
  EXPECT_EQ(json["hits"]["ceiling"], 512) << "of the two that were answered";
  EXPECT_DOUBLE_EQ(json["hit_of_ceiling"], 1);
}

}  // namespace
}  // namespace tandem::cli
