// The fixture of tests of a fleet under TLS: an authority, folders of certificates for each role,
// and real processes that use them.
// Thread safety: by the test's thread.
#pragma once

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/rpc/fleet_tls.h"
#include "common/rpc/join_proof.h"
#include "common/rpc/server.h"
#include "tandem/v1/fleet.grpc.pb.h"
#include "tests/testing/certificates.h"
#include "tests/testing/oracle_load.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace tandem::testing {

class TlsFleet : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const std::string role : {"router", "prefill", "decode", "cli"})
      authority_.Write(folder_ / role, {.role = role});
    std::ofstream(folder_ / "secret") << "of this fleet\n";
  }
  // In order: nodes while their router lives.
  void TearDown() override {
    load_.Stop();
    for (auto process = processes_.rbegin(); process != processes_.rend(); ++process) {
      (*process)->Signal(SIGTERM);
      EXPECT_EQ((*process)->AwaitEnd(absl::Seconds(40)).value_or("goes on"), "exit code 0")
          << (*process)->log();
    }
  }

  std::string In(const std::string& name) const { return (folder_ / name).string(); }

  // A program that must end in order with the test.
  RunningProgram& Start(std::vector<std::string> words) {
    words.insert(words.begin() + 1, "--engine=hash");
    auto program = RunningProgram::Start(words);
    EXPECT_OK(program.status());
    processes_.push_back(*std::move(program));
    return *processes_.back();
  }
  // The router that nodes join at fleet_ and clients ask at grpc_.
  RunningProgram& StartRouter(std::vector<std::string> flags) {
    std::vector<std::string> words = {"tandem-router", "--grpc=127.0.0.1:0", "--fleet=127.0.0.1:0",
                                      "--heartbeat-interval=100ms"};
    words.insert(words.end(), flags.begin(), flags.end());
    RunningProgram& router = Start(words);
    grpc_ = router.AwaitField("router started", "grpc");
    fleet_ = router.AwaitField("router started", "fleet");
    EXPECT_FALSE(fleet_.empty()) << router.log();
    client_ = cli::Client::Create(grpc_);
    return router;
  }
  // A node with the certificates in `folder`, "" = none.
  RunningProgram& StartNode(const std::string& role, const std::string& id,
                            const std::string& folder, const std::string& router = "") {
    return Start({absl::StrCat("tandem-", role, "-node"), "--id=" + id, "--kv-blocks=512",
                  "--transport=tcp", "--drain-timeout=2s",
                  "--routers=" + (router.empty() ? fleet_ : router), "--fleet-tls=" + folder,
                  "--fleet-secret-file=" + In("secret")});
  }
  std::vector<std::string> RouterFlags() const {
    return {"--fleet-tls=" + In("router"), "--fleet-secret-file=" + In("secret")};
  }
  void StartWhole() {
    StartRouter(RouterFlags());
    for (const std::string role : {"prefill", "decode"}) {
      RunningProgram& node = StartNode(role, role + "-0", In(role));
      ASSERT_FALSE(node.AwaitLine("joined router").empty()) << node.log();
    }
  }

  // Calls the fleet's port with the certificate of `folder` and registers as `registered`; returns
  // how the call ended.
  grpc::Status Join(const std::string& folder, v1::NodeRole registered) {
    const auto read = [&folder](const char* name) {
      std::ifstream in(absl::StrCat(folder, "/", name));
      return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    };
    grpc::ChannelArguments arguments;
    // The test dials an address that the certificate names.
    const auto channel = grpc::CreateCustomChannel(
        fleet_, grpc::SslCredentials({authority_.certificate(), read("tls.key"), read("tls.crt")}),
        arguments);
    const auto stub = v1::Fleet::NewStub(channel);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
    const auto stream = stub->Join(&context);
    stream->WaitForInitialMetadata();
    v1::NodeMessage message;
    v1::Registration& registration = *message.mutable_registration();
    registration.set_node_id("attacker");
    registration.set_role(registered);
    const auto& metadata = context.GetServerInitialMetadata();
    const auto challenge = metadata.find(rpc::kChallengeKey);
    if (challenge != metadata.end()) {
      rpc::ProveJoin("of this fleet", {challenge->second.data(), challenge->second.size()},
                     registration);
      stream->Write(message);
    }
    v1::RouterMessage answer;
    while (stream->Read(&answer)) ADD_FAILURE() << "welcome";
    return stream->Finish();
  }

  const TestFolder folder_{"fleet-tls"};
  const TestAuthority authority_;
  std::string grpc_, fleet_;
  std::unique_ptr<cli::Client> client_;
  std::vector<std::unique_ptr<RunningProgram>> processes_;
  OracleLoad load_;
};

}  // namespace tandem::testing
