// Goal: a certificate lets a process act in its own role in its own fleet, and in no other: nodes
// and routers refuse wrong roles, fleets and authorities, and expired certificates, in both
// directions, and name what they expected and found; the fleet goes on beside it.
#include "tests/integration/fleet_tls/tls_fleet.h"

namespace tandem::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class FleetRoles : public TlsFleet {
 protected:
  // A node of the role decode that finds no router at `router` says why.
  void ExpectNoRouter(const std::string& router, const std::string& certificates,
                      const std::vector<std::string>& named) {
    RunningProgram& node = StartNode("decode", "decode-9", certificates, router);
    const std::string line = node.AwaitLine("cannot reach router");
    for (const std::string& text : named) EXPECT_THAT(line, HasSubstr(text)) << node.log();
    EXPECT_EQ(node.AwaitLine("joined router", absl::ZeroDuration()), "");
  }
};

// Any holder of a certificate may call the port; what it may be there is in the certificate.
TEST_F(FleetRoles, NodesJoinInTheirCertificatesRole) {
  StartWhole();
  load_.Start({client_.get()}, 1);
  const auto expect_refused = [&](const std::string& folder, v1::NodeRole role,
                                  const std::vector<std::string>& named) {
    const grpc::Status status = Join(In(folder), role);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
    for (const std::string& text : named) EXPECT_THAT(status.error_message(), HasSubstr(text));
  };
  expect_refused("decode", v1::NODE_ROLE_PREFILL, {"role prefill", "expected decode"});
  expect_refused("prefill", v1::NODE_ROLE_DECODE, {"role decode", "expected prefill"});
  expect_refused("prefill", static_cast<v1::NodeRole>(99), {"expected prefill"});
  for (const std::string role : {"router", "cli"}) {
    expect_refused(role, v1::NODE_ROLE_DECODE,
                   {"expected the role prefill or decode", "found the role " + role});
  }
  authority_.Write(folder_ / "another", {.role = "decode", .fleet = "another"});
  expect_refused("another", v1::NODE_ROLE_DECODE,
                 {"expected the fleet 'test'", "found the fleet 'another'"});
  authority_.Write(folder_ / "nameless", {});
  expect_refused("nameless", v1::NODE_ROLE_DECODE, {"names no role", "no URI"});
  // In its role, a decode node gets as far as what it says of its model.
  EXPECT_THAT(Join(In("decode"), v1::NODE_ROLE_DECODE).error_message(),
              ::testing::Not(HasSubstr("role")));
  load_.AwaitAnswers(10);
}

TEST_F(FleetRoles, WhoIsNotOfTheAuthorityReachesNothing) {
  RunningProgram& router = StartRouter(RouterFlags());
  const TestAuthority stranger("a stranger");
  stranger.Write(folder_ / "stranger", {.role = "decode"});
  EXPECT_EQ(Join(In("stranger"), v1::NODE_ROLE_DECODE).error_code(), grpc::StatusCode::UNAVAILABLE);
  authority_.Write(folder_ / "expired",
                   {.role = "decode", .begin = -absl::Hours(2), .end = -absl::Minutes(1)});
  EXPECT_EQ(Join(In("expired"), v1::NODE_ROLE_DECODE).error_code(), grpc::StatusCode::UNAVAILABLE);
  // Without a certificate, and without TLS.
  const auto call = [&](const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    const auto stub = v1::Fleet::NewStub(grpc::CreateChannel(fleet_, credentials));
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
    const auto stream = stub->Join(&context);
    v1::RouterMessage answer;
    EXPECT_FALSE(stream->Read(&answer));
    return stream->Finish().error_code();
  };
  EXPECT_EQ(call(grpc::SslCredentials({authority_.certificate(), "", ""})),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(call(grpc::InsecureChannelCredentials()), grpc::StatusCode::UNAVAILABLE);
  // A node of theirs does not take this router for its own.
  ExpectNoRouter(fleet_, In("stranger"), {"address=" + fleet_});
  ExpectNoRouter(fleet_, "", {"address=" + fleet_});
  EXPECT_EQ(router.AwaitLine("node joined", absl::ZeroDuration()), "");
  EXPECT_TRUE(router.running());
}

// Whatever listens at a router's address: a node tells it nothing.
class Impostor final : public v1::Fleet::Service {
 public:
  grpc::Status Join(grpc::ServerContext*,
                    grpc::ServerReaderWriter<v1::RouterMessage, v1::NodeMessage>* stream) override {
    stream->SendInitialMetadata();
    v1::NodeMessage message;
    while (stream->Read(&message)) ++heard_;
    return grpc::Status::OK;
  }
  int heard() const { return heard_; }

 private:
  std::atomic<int> heard_{0};
};

TEST_F(FleetRoles, NodesDialRoutersOfTheirFleetOnly) {
  const TestAuthority stranger("a stranger");
  const auto expect_refused = [&](const std::string& folder,
                                  const std::vector<std::string>& named) {
    SCOPED_TRACE(folder);
    Impostor impostor;
    rpc::TlsFiles files = {In(folder) + "/tls.crt", In(folder) + "/tls.key", In("cli") + "/ca.crt"};
    if (folder.empty()) files = {};
    ASSERT_OK_AND_ASSIGN(
        const auto server,
        rpc::Server::Start("127.0.0.1:0", {&impostor}, rpc::kNodeLimits,
                           {files, {.roles = {rpc::PeerRole::kDecode}, .unnamed = true}}));
    ExpectNoRouter(server->address(), In("decode"), named);
    EXPECT_EQ(impostor.heard(), 0);
  };
  for (const std::string role : {"decode", "prefill", "cli"})
    expect_refused(role, {"expected the role router", "found the role " + role});
  authority_.Write(folder_ / "another", {.role = "router", .fleet = "another"});
  expect_refused("another", {"expected the fleet", "found the fleet", "another"});
  stranger.Write(folder_ / "stranger", {.role = "router"});
  expect_refused("stranger", {"certificate verify failed"});
  authority_.Write(folder_ / "expired",
                   {.role = "router", .begin = -absl::Hours(2), .end = -absl::Minutes(1)});
  expect_refused("expired", {"certificate verify failed"});
  expect_refused("", {"address="});
}

// What can be known at the start is said at the start.
TEST_F(FleetRoles, ProcessesDoNotStartWithCertificatesThatPeersRefuse) {
  const auto expect_refused = [&](const std::vector<std::string>& words, const std::string& folder,
                                  const std::vector<std::string>& named) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--engine=hash", "--fleet-tls=" + folder});
    const ProgramRun run = RunProgram(all);
    EXPECT_EQ(run.exit_code, 1) << run.output;
    for (const std::string& text : named) EXPECT_THAT(run.output, HasSubstr(text));
  };
  const std::vector<std::string> router = {"tandem-router", "--grpc=127.0.0.1:0",
                                           "--fleet=127.0.0.1:0"};
  const std::vector<std::string> node = {"tandem-prefill-node", "--routers=127.0.0.1:1"};
  expect_refused(router, In("decode"),
                 {"fleet-tls", "expected the role router, found the role decode"});
  expect_refused(node, In("router"), {"expected the role prefill, found the role router"});
  expect_refused(node, In("decode"), {"expected the role prefill, found the role decode"});
  expect_refused(node, In("nowhere"), {"fleet-tls", In("nowhere")});
  authority_.Write(folder_ / "nameless", {});
  expect_refused(node, In("nameless"), {"names no role"});
  authority_.Write(folder_ / "expired", {.role = "prefill", .end = -absl::Minutes(1)});
  expect_refused(node, In("expired"), {"certificate has expired", "tls.crt"});
  const TestAuthority stranger("a stranger");
  stranger.Write(folder_ / "foreign", {.role = "prefill", .trusted = authority_.certificate()});
  expect_refused(node, In("foreign"), {"ca.crt", "unable to get local issuer certificate"});
}

// A port that other machines reach may take nodes by certificate alone.
TEST_F(FleetRoles, APortBeyondThisMachineNeedsNoSecretUnderTls) {
  RunningProgram& router = Start(
      {"tandem-router", "--grpc=127.0.0.1:0", "--fleet=0.0.0.0:0", "--fleet-tls=" + In("router")});
  EXPECT_FALSE(router.AwaitLine("router started").empty()) << router.log();
}

}  // namespace
}  // namespace tandem::testing
