// Goal: what the command line derives is right: plans of clusters, flags handed on, generated
// documents, summaries, and which processes are started again.
#include <algorithm>
#include <fstream>
#include <iterator>

#include "cli/cluster/cluster_plan.h"
#include "cli/cluster/restart_count.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/report/summary_text.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

// A machine of so many cores, beside one memory, which nothing limits.
Processors Machine(int32_t cores) {
  Processors machine;
  for (int32_t id = 0; id < cores; ++id) machine.usable.push_back({id, id, 0});
  machine.granted = cores;
  return machine;
}

TEST(ConfigDocs, TheCommittedDocumentIsWhatTheStructsSay) {
  std::ifstream file(TANDEM_SOURCE_DIR "/docs/CONFIG.md");
  const std::string committed((std::istreambuf_iterator<char>(file)),
                              std::istreambuf_iterator<char>());
  EXPECT_EQ(committed, ConfigMarkdown()) << "regenerate with: tandem config-docs > docs/CONFIG.md";
}

TEST(Help, NamesEachCommandApartFromItsPurpose) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(TandemMain({"help"}, {}), 0);
  const std::string help = ::testing::internal::GetCapturedStdout();
  for (const char* line : {"\n  bench lending  Measures what", "\n  up             Runs a whole",
                           "\n  version        Prints the version.\n"}) {
    EXPECT_THAT(help, HasSubstr(line));
  }
}

TEST(RestartCount, AProcessThatRanWellStartsAfresh) {
  RestartCount count;
  absl::Time now = absl::UnixEpoch();
  // Each run ends after `run`; how many are followed by another, of so many.
  const auto restarts = [&](absl::Duration run, int runs) {
    int again = 0;
    for (int i = 0; i < runs; ++i) {
      count.Started(now);
      now += run;
      if (count.Ended(now)) ++again;
    }
    return again;
  };
  EXPECT_EQ(restarts(RestartCount::kRanWell, 100), 100);
  EXPECT_EQ(restarts(RestartCount::kRanWell - absl::Seconds(1), 10),
            RestartCount::kRestartsMax - 1);
  EXPECT_EQ(restarts(RestartCount::kRanWell, 1), 1);
  EXPECT_EQ(restarts(absl::Seconds(1), 10), RestartCount::kRestartsMax - 1);
}

TEST(ClusterPlan, NodesShareCoresAndMemory) {
  UpConfig up;
  up.prefill = 1;
  up.decode = 3;
  const node::NodeConfig node = PlanNode(up, "decode", 2, Machine(8), {"127.0.0.1:1"});
  EXPECT_EQ(node.id, "decode-2");
  EXPECT_EQ(node.threads, 2);
  EXPECT_DOUBLE_EQ(node.kv.memory_fraction, up.node.kv.memory_fraction / 4);
  EXPECT_EQ(PlanNode(up, "decode", 0, Machine(2), {}).threads, 1);
  up.node.threads = 5;
  EXPECT_EQ(PlanNode(up, "decode", 0, Machine(2), {}).threads, 5);
}

TEST(ClusterPlan, NodesThatComputeHereHaveCoresOfTheirOwnWhereThereAreEnough) {
  UpConfig up;
  up.prefill = 1;
  up.decode = 3;
  // Seventeen of eighteen cores are shared out.
  EXPECT_EQ(PlanNode(up, "prefill", 0, Machine(18), {}).cpus, "0-4");
  EXPECT_EQ(PlanNode(up, "decode", 0, Machine(18), {}).cpus, "5-8");
  EXPECT_EQ(PlanNode(up, "decode", 2, Machine(18), {}).cpus, "13-16");
  EXPECT_EQ(PlanNode(up, "decode", 2, Machine(16), {}).cpus, "");
  // A prefill node on a GPU leaves them to the others.
  up.prefill_device = "cuda";
  EXPECT_EQ(PlanNode(up, "prefill", 0, Machine(18), {}).cpus, "");
  EXPECT_EQ(PlanNode(up, "decode", 0, Machine(18), {}).cpus, "0-5");
  EXPECT_EQ(PlanNode(up, "decode", 0, Machine(18), {}).threads, 6);
  // Fewer threads than cores stay among them; more cannot.
  up.node.threads = 2;
  EXPECT_EQ(PlanNode(up, "decode", 0, Machine(18), {}).cpus, "0-5");
  up.node.threads = 7;
  EXPECT_EQ(PlanNode(up, "decode", 0, Machine(18), {}).cpus, "");
  up.node.threads = 0;
  up.pin = "off";
  EXPECT_EQ(PlanNode(up, "decode", 0, Machine(18), {}).cpus, "");
}

TEST(ClusterPlan, NodesOnAGpuTakeTheWayOfKvThatIsAskedFor) {
  UpConfig up;
  up.node.device = "cuda";
  EXPECT_EQ(PlanNode(up, "decode", 0, Machine(2), {}).kv.payload_memory, "auto");
  up.node.kv.payload_memory = "device";
  EXPECT_EQ(PlanNode(up, "prefill", 0, Machine(2), {}).kv.payload_memory, "device");
  EXPECT_THAT(ToFlags(PlanNode(up, "decode", 0, Machine(2), {})), Contains("--kv-path=device"));
  // Beside nodes on a GPU one on the processor runs as ever; by itself it refuses what it cannot
  // do.
  up.prefill_device = "cpu";
  EXPECT_EQ(PlanNode(up, "prefill", 0, Machine(2), {}).kv.payload_memory, "auto");
  EXPECT_EQ(PlanNode(up, "decode", 0, Machine(2), {}).kv.payload_memory, "device");
  up.node.device = "cpu";
  EXPECT_EQ(PlanNode(up, "decode", 0, Machine(2), {}).kv.payload_memory, "device");
}

TEST(ClusterPlan, PrefillNodesMayHaveNumericsOfTheirOwn) {
  UpConfig up;
  up.node.isa = "avx2";
  up.node.weights = "f32";
  EXPECT_EQ(PlanNode(up, "prefill", 0, Machine(2), {}).isa, "avx2");
  EXPECT_EQ(PlanNode(up, "prefill", 0, Machine(2), {}).weights, "f32");
  EXPECT_FALSE(PlanRouter(up, 0).core.allow_mixed_numerics);
  up.prefill = 2;
  up.decode = 4;
  up.prefill_device = "cuda";
  up.prefill_isa = "auto";
  up.prefill_weights = "bf16";
  up.router.core.allow_mixed_numerics = true;
  const node::NodeConfig prefill = PlanNode(up, "prefill", 0, Machine(8), {});
  const node::NodeConfig decode = PlanNode(up, "decode", 0, Machine(8), {});
  EXPECT_EQ(prefill.device + prefill.isa + prefill.weights, "cudaautobf16");
  EXPECT_EQ(decode.device + decode.isa + decode.weights, "cpuavx2f32");
  // What a device has is shared by the nodes on it.
  EXPECT_DOUBLE_EQ(prefill.gpu_memory_fraction, up.node.gpu_memory_fraction / 2);
  EXPECT_DOUBLE_EQ(decode.kv.memory_fraction, up.node.kv.memory_fraction / 4);
  EXPECT_TRUE(PlanRouter(up, 1).core.allow_mixed_numerics);
}

TEST(ClusterPlan, EachRouterTakesItsAddressAndOthersPickPorts) {
  UpConfig up;
  config::Schema schema("tandem up", "");
  RegisterUpConfig(schema, up);
  ASSERT_OK(schema
                .Parse({.args = {"--routers=3", "--grpc=0.0.0.0:50051,50151", "--http=8000",
                                 "--admin=0.0.0.0:9000"}})
                .status());
  ASSERT_OK(CheckUpConfig(up));
  EXPECT_EQ(PlanRouter(up, 0).grpc, "0.0.0.0:50051");
  EXPECT_EQ(PlanRouter(up, 1).grpc, "127.0.0.1:50151");
  EXPECT_EQ(PlanRouter(up, 2).grpc, "127.0.0.1:0");
  EXPECT_EQ(PlanRouter(up, 0).http, "8000");
  EXPECT_EQ(PlanRouter(up, 1).http, "0");
  EXPECT_EQ(PlanRouter(up, 1).admin, "0.0.0.0:0");
  up.http.clear();
  EXPECT_EQ(PlanRouter(up, 0).http + PlanRouter(up, 1).http, "");
}

// Goal: no two routers of `tandem up` write to one audit log.
TEST(ClusterPlan, EachRouterHasAnAuditLogOfItsOwn) {
  UpConfig up;
  config::Schema schema("tandem up", "");
  RegisterUpConfig(schema, up);
  ASSERT_OK(schema.Parse({.args = {"--routers=3"}}).status());
  EXPECT_EQ(PlanRouter(up, 0).audit_log + PlanRouter(up, 2).audit_log, "");
  ASSERT_OK(schema.Parse({.args = {"--routers=3", "--audit-log=/var/log/audit.jsonl"}}).status());
  EXPECT_EQ(PlanRouter(up, 0).audit_log, "/var/log/audit.jsonl");
  EXPECT_EQ(PlanRouter(up, 1).audit_log, "/var/log/audit.jsonl.router-1");
  EXPECT_EQ(PlanRouter(up, 2).audit_log, "/var/log/audit.jsonl.router-2");
}

TEST(ClusterPlan, RefusesMoreAddressesThanRoutersAndPortsThatAreNone) {
  UpConfig up;
  config::Schema schema("tandem up", "");
  RegisterUpConfig(schema, up);
  ASSERT_OK(schema.Parse({.args = {"--http=8000,8001"}}).status());
  EXPECT_THAT(CheckUpConfig(up), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("--http has 2 addresses, expected at most 1")));
  for (const char* flag : {"--grpc=65536", "--http=8000,99999", "--admin=localhost:http"}) {
    EXPECT_THAT(schema.Parse({.args = {flag}}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("expected ports or host:port, with ports from 0 to 65535")));
  }
}

TEST(ClusterPlan, HandsTheFlagsOfRoutersAndNodesOn) {
  UpConfig up;
  config::Schema schema("tandem up", "");
  RegisterUpConfig(schema, up);
  ASSERT_OK(schema
                .Parse({.args = {"--grpc=50051", "--queue-max=7", "--model=m", "--kv-blocks=9",
                                 "--gemm-tiles=search", "--drain-timeout=2s"}})
                .status());
  const std::vector<std::string> router = ToFlags(PlanRouter(up, 1));
  const std::vector<std::string> node = ToFlags(PlanNode(up, "decode", 0, Machine(2), {}));
  EXPECT_EQ(PlanRouter(up, 0).grpc, "127.0.0.1:50051");
  EXPECT_THAT(router, IsSupersetOf({"--grpc=127.0.0.1:0", "--queue-max=7", "--model=m",
                                    "--drain-timeout=2s", "--id=router-1"}));
  EXPECT_THAT(node, IsSupersetOf({"--kv-blocks=9", "--gemm-tiles=search", "--model=m",
                                  "--drain-timeout=2s", "--id=decode-0"}));
}

TEST(ClusterPlan, FlagsSurviveTheirProcess) {
  UpConfig up;
  up.common.engine = "hash";
  up.node.hash.step_time = absl::Milliseconds(3);
  const node::NodeConfig planned =
      PlanNode(up, "prefill", 0, Machine(2), {"127.0.0.1:7", "127.0.0.1:8"});
  node::NodeConfig parsed;
  config::Schema schema("tandem-prefill-node", "");
  node::RegisterNodeConfig(schema, parsed);
  ASSERT_OK(schema.Parse({.args = ToFlags(planned), .env = {}, .file = ""}).status());
  EXPECT_EQ(ToFlags(parsed), ToFlags(planned));
  EXPECT_EQ(parsed.routers, planned.routers);
  EXPECT_EQ(parsed.hash.step_time, absl::Milliseconds(3));
}

TEST(Summary, NamesNodesTokensAndTransport) {
  v1::Finished finished;
  finished.mutable_route()->set_prefill_node("prefill-7");
  finished.mutable_route()->set_decode_node("decode-3");
  finished.mutable_route()->set_kv_bytes_moved(2 << 20);
  finished.mutable_route()->set_transport("shm");
  finished.mutable_usage()->set_output_tokens(8);
  const std::string text = FormatSummary(finished);
  EXPECT_THAT(text, HasSubstr("prefill-7"));
  EXPECT_THAT(text, HasSubstr("decode-3"));
  EXPECT_THAT(text, HasSubstr("2.00 MiB over shm"));
  EXPECT_THAT(text, HasSubstr("8 output"));
}

}  // namespace
}  // namespace tandem::cli
