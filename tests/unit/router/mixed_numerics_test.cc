// Goal: nodes of other numerics join only where the router's operator allows it and their blocks
// hold the same, refusals name what differs, and a mixed fleet's answers and blocks are marked.
#include "router/fleet/fleet.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/router/core_harness.h"
#include "tests/unit/router/fixtures.h"

namespace tandem::router {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

const absl::Time kStart = absl::FromUnixSeconds(1000);

// Nodes of two numerics: what they name of their blocks decides.
v1::Registration Exchanging(const std::string& id, v1::NodeRole role, const std::string& numerics) {
  v1::Registration registration = TestRegistration(id, role);
  registration.set_numerics_id(numerics);
  registration.set_kv_contents("bf16 2x32 4 layers 4 tokens");
  registration.set_kv_order(numerics == "gpu" ? "rows" : "tiles");
  registration.set_kv_bytes_per_block(4096);
  return registration;
}

TEST(MixedFleet, RefusesOtherNumericsUnlessTheyAreAllowed) {
  FirstOfEqual random;
  Fleet fleet(TestModel(), {.nodes_max = 8}, random);
  fleet.Join(NodeKey(1), Exchanging("d0", v1::NODE_ROLE_DECODE, "cpu"), kStart);
  EXPECT_THAT(
      fleet.CheckJoin(NodeKey(2), Exchanging("p0", v1::NODE_ROLE_PREFILL, "gpu")),
      StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("gpu"), HasSubstr("cpu"))));
  EXPECT_FALSE(fleet.mixes_numerics());
  EXPECT_EQ(fleet.numerics_id(), "cpu");
}

TEST(MixedFleet, TakesOtherNumericsWhoseBlocksHoldTheSame) {
  FirstOfEqual random;
  Fleet fleet(TestModel(), {.nodes_max = 8, .allow_mixed_numerics = true}, random);
  fleet.Join(NodeKey(1), Exchanging("d0", v1::NODE_ROLE_DECODE, "cpu"), kStart);
  EXPECT_TRUE(fleet.mixes_numerics());
  EXPECT_THAT(fleet.numerics_id(), AllOf(HasSubstr("mixed"), HasSubstr("bf16 2x32")));
  const v1::Registration gpu = Exchanging("p0", v1::NODE_ROLE_PREFILL, "gpu");
  ASSERT_OK(fleet.CheckJoin(NodeKey(2), gpu).status());
  const std::string id = fleet.numerics_id();
  fleet.Join(NodeKey(2), gpu, kStart);
  fleet.Remove(NodeKey(1));
  EXPECT_EQ(fleet.numerics_id(), id) << "blocks are found under one id, whichever nodes are there";
  fleet.Remove(NodeKey(2));
  EXPECT_EQ(fleet.numerics_id(), "");
}

TEST(MixedFleet, RefusesOtherKvByName) {
  FirstOfEqual random;
  Fleet fleet(TestModel(), {.nodes_max = 8, .allow_mixed_numerics = true}, random);
  fleet.Join(NodeKey(1), Exchanging("d0", v1::NODE_ROLE_DECODE, "cpu"), kStart);
  v1::Registration other = Exchanging("p0", v1::NODE_ROLE_PREFILL, "gpu");
  other.set_kv_contents("bf16 8x64 4 layers 4 tokens");
  EXPECT_THAT(fleet.CheckJoin(NodeKey(2), other),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("8x64"), HasSubstr("2x32"), HasSubstr("p0"))));
  other = Exchanging("p0", v1::NODE_ROLE_PREFILL, "gpu");
  other.set_kv_bytes_per_block(8192);
  EXPECT_THAT(
      fleet.CheckJoin(NodeKey(2), other),
      StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("8192"), HasSubstr("4096"))));
  other = Exchanging("p0", v1::NODE_ROLE_PREFILL, "gpu");
  other.clear_kv_contents();
  EXPECT_THAT(fleet.CheckJoin(NodeKey(2), other),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("nothing that other")));
}

TEST(MixedFleet, NodesThatNameNoKvServeAmongThemselves) {
  FirstOfEqual random;
  Fleet fleet(TestModel(), {.nodes_max = 8, .allow_mixed_numerics = true}, random);
  fleet.Join(NodeKey(1), TestRegistration("d0", v1::NODE_ROLE_DECODE), kStart);
  EXPECT_FALSE(fleet.mixes_numerics());
  EXPECT_EQ(fleet.numerics_id(), "n1");
  EXPECT_OK(fleet.CheckJoin(NodeKey(2), TestRegistration("p0", v1::NODE_ROLE_PREFILL)).status());
  EXPECT_EQ(
      fleet.CheckJoin(NodeKey(2), Exchanging("p0", v1::NODE_ROLE_PREFILL, "gpu")).status().code(),
      absl::StatusCode::kFailedPrecondition);
}

TEST(MixedNumerics, AreServedOnlyWhereAllowedAndSaidSo) {
  for (const bool allowed : {false, true}) {
    RouterOptions options;
    options.allow_mixed_numerics = allowed;
    options.local_prefill_tokens_max = 2;
    CoreHarness h(options);
    ASSERT_OK(h.Join(1, Exchanging("d0", v1::NODE_ROLE_DECODE, "cpu")));
    const absl::Status joined = h.Join(2, Exchanging("p0", v1::NODE_ROLE_PREFILL, "gpu"));
    EXPECT_EQ(joined.code(),
              allowed ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition)
        << joined;
    ASSERT_OK(h.Submit("r"));
    const v1::StartDecode run = h.NextRun(1);
    // Such blocks are kept apart from those whose bits are promised.
    EXPECT_EQ(run.sequence().numerics_id(), allowed ? h.core().numerics_id() : "");
    h.Say(1, {Reserved(run.leg(), 0, true), Generated(run.leg(), {0}),
              LegFinished(run.leg(), v1::FINISH_REASON_STOP, 1)});
    ASSERT_TRUE(h.client("r").done.has_value());
    EXPECT_EQ(h.client("r").done->route.mixed_numerics(), allowed);
  }
}

}  // namespace
}  // namespace tandem::router
