// Goal: tenants share the nodes' predicted time. What a node holds already costs its tenant
// nothing, so a tenant with a cached prompt gets many answers for one of a tenant without; a
// generated token costs its part of a step; and nothing that nodes say makes work free.
#include "router/placement/placed_work.h"

#include <limits>
#include <string>
#include <vector>

#include "common/rpc/cost_convert.h"
#include "tests/unit/router/core_harness.h"
#include "tests/unit/router/cost_placement_fixture.h"

namespace tandem::router {
namespace {

class PlacedWorkTest : public CostPlacementTest {
 protected:
  PlacedWork Work(int64_t prompt_tokens) const { return WorkOf(placement_, prompt_tokens, fleet_); }
  void Hold(const Node& node, int64_t tokens) {
    index_.Store(node.slot, absl::MakeConstSpan(HashesOf(Tokens(100)))
                                .first(static_cast<size_t>(tokens / kBlockTokens)));
  }
  // By a policy that predicts nothing itself.
  void PlaceByRoundRobin() {
    hashes_ = HashesOf(Tokens(100));
    const PlacementRequest request{100, 120, hashes_, fleet_.now(), &failed_};
    ASSERT_EQ(PairPlacement({.local_prefill_tokens_max = local_prefill_tokens_,
                             .policy = PlacementPolicy::kRoundRobin},
                            fleet_, index_, random_)
                  .Place(request, placement_),
              std::nullopt);
  }
};

TEST_F(PlacedWorkTest, APromptTakesWhatItsNodeLacks) {
  Decode(0);
  const Node& prefill = Prefill(0);
  for (const bool cached : {false, true}) {
    if (cached) Hold(prefill, 80);
    const double us = 500 + (cached ? 20 : 100) * kRowUs;
    ASSERT_EQ(Place(100), std::nullopt);
    EXPECT_NEAR(Work(100).prompt_us, us, 1) << cached;
    PlaceByRoundRobin();
    EXPECT_NEAR(Work(100).prompt_us, us, 1) << cached;
  }
}

TEST_F(PlacedWorkTest, ADecodeNodeAloneTakesWhatItLacks) {
  const Node& decode = Decode(0);
  Hold(decode, 60);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_NEAR(Work(100).prompt_us, 500 + 40 * kRowUs, 1);
  PlaceByRoundRobin();
  EXPECT_NEAR(Work(100).prompt_us, 500 + 40 * kRowUs, 1);
}

TEST_F(PlacedWorkTest, ATokenTakesItsPartOfAStep) {
  const Node& decode = Decode(0);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_NEAR(Work(100).token_us, 500 + 100, 1);
  for (int i = 0; i < 4; ++i) fleet_.DecodePlaced(decode.key, 0);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_NEAR(Work(100).token_us, 500. / 5 + 100, 1);
}

TEST_F(PlacedWorkTest, NoNodeMakesWorkFreeOrEndless) {
  Node& decode = Decode(0);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double said : {0., -5., 1e300, nan}) {
    cost::StepProfile profile = Profile();
    profile.step_us = profile.prompt_row_us = profile.generated_row_us = said;
    fleet_.OnStepCost(decode, profile);
    ASSERT_EQ(Place(100), std::nullopt);
    EXPECT_GT(Work(100).prompt_us, 0) << said;
    EXPECT_GT(Work(100).token_us, 0) << said;
    EXPECT_TRUE(std::isfinite(Work(100).prompt_us)) << said;
    EXPECT_TRUE(std::isfinite(Work(100).token_us)) << said;
  }
  fleet_.Remove(decode.key);
  EXPECT_GT(Work(100).token_us, 0) << "the node has left";
}

// One sequence at a time. Every prompt has 300 tokens; the node holds those of one tenant.
class TenantsTest : public ::testing::Test {
 protected:
  static constexpr int kPrompt = 300, kRequests = 20;

  void SetUp() override {
    v1::Registration registration = TestRegistration("d0", v1::NODE_ROLE_DECODE);
    registration.set_max_sequences(1);
    ASSERT_OK(router_.Join(1, registration));
    v1::NodeMessage message;
    *message.mutable_step_cost() = rpc::ToWire(Profile());
    message.add_events()->mutable_blocks_stored()->set_hashes(
        kv::PackHashes(HashesOf(Tokens(kPrompt))));
    router_.SayMessage(1, message);
  }
  void Submit(const std::string& tenant, int number, TokenId first_token) {
    RequestInput input = CoreHarness::Input(absl::StrCat(tenant, number), kPrompt, 10);
    input.prompt = Tokens(kPrompt, first_token);
    input.share.tenant = tenant;
    ASSERT_OK(router_.Submit(std::move(input)));
  }
  // Answers what runs with one token; its tenant's name and number.
  std::string AnswerOne() {
    const v1::StartDecode run = router_.NextRun(1);
    v1::NodeMessage message;
    message.mutable_load()->set_blocks_total(100);
    message.mutable_load()->set_blocks_free(100);
    const int held = run.sequence().prompt(0) == 1 ? kPrompt - kBlockTokens : 0;
    *message.add_events() = Reserved(run.leg(), held, /*local=*/true);
    *message.add_events() = Generated(run.leg(), {0});
    *message.add_events() = LegFinished(run.leg(), v1::FINISH_REASON_STOP, 1);
    router_.SayMessage(1, message);
    return run.leg().request_id();
  }

  CoreHarness router_;
};

TEST_F(TenantsTest, ACachedPromptCostsItsTenantLittle) {
  for (int i = 0; i < kRequests; ++i) {
    Submit("new", i, static_cast<TokenId>(400 + i));
    Submit("cached", i, 1);
  }
  EXPECT_EQ(AnswerOne(), "new0") << "it came first";
  // 4 rows and a step, beside 300 rows: all of these for one of the others.
  for (int i = 0; i < kRequests; ++i) EXPECT_EQ(AnswerOne(), absl::StrCat("cached", i));
  for (int i = 1; i < kRequests; ++i) EXPECT_EQ(AnswerOne(), absl::StrCat("new", i));
  router_.ExpectEmpty();
}

}  // namespace
}  // namespace tandem::router
