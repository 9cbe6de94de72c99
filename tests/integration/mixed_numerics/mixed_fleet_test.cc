// Goal: processes of different numerics serve one request where the operator allows it: the prompt
// is computed by the one, its KV travels, is put into the other's order and answers what the model
// answers; and clients that ask are told. Where it is not allowed the second node is refused, with
// both ids, and nothing starts.
#include <gmock/gmock.h>

#include "kernels/api/backend.h"
#include "tests/testing/http_client.h"
#include "tests/testing/models.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

struct Numerics {
  std::string isa, weights;
};
// Of prefill and decode nodes, with what their ids hold.
struct Mixture {
  std::string name;
  Numerics prefill, decode;
  std::string prefill_id, decode_id;
};

void PrintTo(const Mixture& mixture, std::ostream* out) { *out << mixture.name; }

class MixedFleet : public ::testing::TestWithParam<Mixture> {
 protected:
  void SetUp() override {
    TANDEM_FIND_MODEL_OR_SKIP(model, kSmolLm2File);
    for (const std::string& isa : {GetParam().prefill.isa, GetParam().decode.isa}) {
      kernels::IsaClass parsed = kernels::IsaClass::kRef;
      ASSERT_TRUE(kernels::ParseIsaClass(isa.c_str(), &parsed));
      if (kernels::FindBackend(parsed) == nullptr) GTEST_SKIP() << "this processor lacks " << isa;
    }
    const Mixture& mixture = GetParam();
    flags_ = {"--model=" + model,
              "--isa=" + mixture.decode.isa,
              "--weights=" + mixture.decode.weights,
              "--prefill-isa=" + mixture.prefill.isa,
              "--prefill-weights=" + mixture.prefill.weights,
              "--weight-cache=off",
              "--kv-blocks=16",
              "--threads=1",
              "--local-prefill-tokens=0"};
  }

  std::vector<std::string> flags_;
};

TEST_P(MixedFleet, ServesWhereItIsAllowedAndSaysSo) {
  flags_.push_back("--allow-mixed-numerics");
  ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start(flags_));
  EXPECT_FALSE(cluster->AwaitLinesWith("a node with another numerics id joined").empty());
  const json messages = {{{"role", "user"}, {"content", "What is the capital of France?"}}};
  const HttpAnswer answer = Ask(
      cluster->http_address(),
      PostOf(
          "/v1/chat/completions",
          json({{"messages", messages}, {"max_tokens", 12}, {"temperature", 0}, {"timing", true}})
              .dump()));
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.Header("x-tandem-mixed-numerics"), "true") << answer.head;
  const json body = answer.Json();
  EXPECT_THAT(body["system_fingerprint"].get<std::string>(), EndsWith("-mixed-numerics"));
  EXPECT_THAT(body["choices"][0]["message"]["content"].get<std::string>(), HasSubstr("Paris"));

  v1::GenerateRequest request;
  for (int token = 1000; token < 1070; ++token) request.mutable_tokens()->add_ids(token);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_max_tokens(4);
  request.mutable_stop()->set_ignore_eos(true);
  request.set_return_token_ids(true);
  const Answer raw = cluster->Generate(request);
  ASSERT_OK(raw.status);
  EXPECT_EQ(raw.tokens.size(), 4u);
  const v1::Route& route = raw.finished.route();
  EXPECT_TRUE(route.mixed_numerics());
  EXPECT_EQ(route.prefill_node(), "prefill-0");
  EXPECT_EQ(route.decode_node(), "decode-0");
  EXPECT_EQ(route.attempts(), 1);
  EXPECT_EQ(route.prefill_tokens().computed(), 70);
  EXPECT_EQ(route.decode_tokens().received(), 70);
  EXPECT_EQ(route.decode_tokens().computed(), 0);
  EXPECT_GT(route.kv_bytes_moved(), 0);
  // Both requests' KV, by the receiving node's own count.
  const auto received = [&](const v1::GetStatusResponse& status) -> std::string {
    for (const v1::NodeStatus& node : status.nodes()) {
      if (node.role() != "decode") continue;
      EXPECT_EQ(node.counters().prompt_tokens().computed(), 0);
      if (node.counters().kv_bytes_received() > route.kv_bytes_moved()) return Holdings(status);
    }
    return "no decode node counts the KV of both requests";
  };
  EXPECT_OK(AwaitStatus(cluster->client(), absl::Seconds(20), received).status());
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

TEST_P(MixedFleet, IsRefusedOtherwiseByBothIds) {
  const auto cluster = TestCluster::Start(flags_);
  ASSERT_FALSE(cluster.ok());
  // Whichever node comes second is refused.
  EXPECT_THAT(std::string(cluster.status().message()),
              AllOf(HasSubstr("has numerics id"), HasSubstr("the fleet has"),
                    HasSubstr(GetParam().prefill_id), HasSubstr(GetParam().decode_id),
                    HasSubstr("ended with exit code 1")));
}

// The first is there on every x86-64 machine with AVX2; the second also has the receiver reorder.
INSTANTIATE_TEST_SUITE_P(All, MixedFleet,
                         ::testing::Values(Mixture{"int8_to_f32",
                                                   {"avx2", "int8"},
                                                   {"avx2", "f32"},
                                                   "cpu-fp32x16-v2-wint8-",
                                                   "cpu-fp32x16-v2-wf32-"},
                                           Mixture{"tiles_to_pairs",
                                                   {"avx2", "f32"},
                                                   {"avx512bf16", "bf16"},
                                                   "cpu-fp32x16-v2-wf32-",
                                                   "cpu-bf16dot-v2-wbf16-"}),
                         [](const ::testing::TestParamInfo<Mixture>& param) {
                           return param.param.name;
                         });

}  // namespace
}  // namespace tandem::testing
