// Goal: only nodes that serve the same model with the same numerics and block names join, each
// error names both values, and what a node carries is its report plus what the report cannot show
// yet.
#include "router/fleet/fleet.h"

#include <functional>
#include <limits>

#include "router/fleet/registration.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(Registration, RefusesEachBadFieldNamingIt) {
  struct Case {
    std::function<void(v1::Registration&)> spoil;
    absl::StatusCode code;
    std::vector<std::string> names;
  };
  const std::vector<Case> cases = {
      {[](auto& r) { r.clear_node_id(); }, absl::StatusCode::kInvalidArgument, {"node_id"}},
      {[](auto& r) { r.set_node_id(std::string(129, 'x')); },
       absl::StatusCode::kInvalidArgument,
       {"node_id", "129", "128"}},
      {[](auto& r) { r.clear_role(); }, absl::StatusCode::kInvalidArgument, {"role is 0"}},
      {[](auto& r) { r.set_block_tokens(0); },
       absl::StatusCode::kInvalidArgument,
       {"block_tokens is 0"}},
      {[](auto& r) { r.set_num_blocks(-1); },
       absl::StatusCode::kInvalidArgument,
       {"num_blocks is -1"}},
      {[](auto& r) { r.set_context_tokens(0); },
       absl::StatusCode::kInvalidArgument,
       {"context_tokens is 0"}},
      {[](auto& r) { r.set_max_sequences(-3); },
       absl::StatusCode::kInvalidArgument,
       {"max_sequences is -3"}},
      {[](auto& r) { r.clear_numerics_id(); }, absl::StatusCode::kInvalidArgument, {"numerics_id"}},
      {[](auto& r) { r.set_model_name("llama"); },
       absl::StatusCode::kFailedPrecondition,
       {"llama", "toy"}},
      {[](auto& r) { r.set_model_fingerprint("beef"); },
       absl::StatusCode::kFailedPrecondition,
       {"beef", "f00d"}},
      {[](auto& r) { r.set_vocab_size(7); },
       absl::StatusCode::kFailedPrecondition,
       {"vocab_size 7", "1000"}},
  };
  EXPECT_OK(CheckRegistration(TestRegistration("d0", v1::NODE_ROLE_DECODE), TestModel()));
  for (const Case& c : cases) {
    v1::Registration registration = TestRegistration("d0", v1::NODE_ROLE_DECODE);
    c.spoil(registration);
    const absl::Status status = CheckRegistration(registration, TestModel());
    EXPECT_EQ(status.code(), c.code) << status;
    for (const std::string& name : c.names)
      EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
}

TEST(Registration, NodesThatNameBlocksOtherwiseAreRefused) {
  RouterOptions options;
  options.block_key = kv::BlockKey::FromSecret("the fleet's");
  CoreHarness h(options);
  v1::Registration registration = TestRegistration("d0", v1::NODE_ROLE_DECODE);
  EXPECT_THAT(h.Join(1, registration),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("node d0"), HasSubstr(registration.block_names()),
                             HasSubstr(options.block_key.names()))));
  registration.clear_block_names();
  EXPECT_THAT(h.Join(1, registration), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                HasSubstr("an earlier release's hash")));
  registration.set_block_names(options.block_key.names());
  ASSERT_OK(h.Join(1, registration));
}

class FleetTest : public ::testing::Test {
 protected:
  // Joins as the router core does: replaced streams are removed first.
  absl::Status Join(uint64_t key, const v1::Registration& registration) {
    auto replaced = fleet_.CheckJoin(NodeKey(key), registration);
    if (!replaced.ok()) return replaced.status();
    if (replaced->has_value()) fleet_.Remove(**replaced);
    fleet_.Join(NodeKey(key), registration, kStart);
    return absl::OkStatus();
  }
  FirstOfEqual random_;
  Fleet fleet_{TestModel(), {3}, random_};
};

TEST_F(FleetTest, FirstNodeFixesNumericsAndBlockSizeWhileAnyNodeIsThere) {
  EXPECT_EQ(fleet_.numerics_id(), "");
  ASSERT_OK(Join(1, TestRegistration("d0", v1::NODE_ROLE_DECODE)));
  EXPECT_EQ(fleet_.numerics_id(), "n1");
  v1::Registration other = TestRegistration("p0", v1::NODE_ROLE_PREFILL);
  other.set_numerics_id("n2");
  EXPECT_THAT(Join(2, other), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       AllOf(HasSubstr("n2"), HasSubstr("n1"))));
  v1::Registration blocks = TestRegistration("p0", v1::NODE_ROLE_PREFILL);
  blocks.set_block_tokens(32);
  EXPECT_THAT(Join(2, blocks), StatusIs(absl::StatusCode::kFailedPrecondition,
                                        AllOf(HasSubstr("32"), HasSubstr("4"))));
  const uint64_t generation = fleet_.generation();
  fleet_.Remove(NodeKey(1));
  EXPECT_EQ(fleet_.numerics_id(), "");
  ASSERT_OK(Join(2, other));
  EXPECT_EQ(fleet_.numerics_id(), "n2");
  EXPECT_NE(fleet_.generation(), generation);
}

TEST_F(FleetTest, TheOnlyNodeMayComeBackWithOtherNumerics) {
  ASSERT_OK(Join(1, TestRegistration("d0", v1::NODE_ROLE_DECODE)));
  v1::Registration again = TestRegistration("d0", v1::NODE_ROLE_DECODE, 2);
  again.set_numerics_id("n2");
  ASSERT_OK(Join(2, again));
  EXPECT_EQ(fleet_.numerics_id(), "n2");
  EXPECT_EQ(fleet_.Find(NodeKey(1)), nullptr);
}

TEST_F(FleetTest, OlderIncarnationsAndReusedKeysAreRefused) {
  ASSERT_OK(Join(1, TestRegistration("d0", v1::NODE_ROLE_DECODE, 5)));
  EXPECT_THAT(Join(2, TestRegistration("d0", v1::NODE_ROLE_DECODE, 4)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("incarnation 4"), HasSubstr("5"))));
  EXPECT_THAT(Join(1, TestRegistration("d1", v1::NODE_ROLE_DECODE)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("registered already")));
  ASSERT_OK(Join(2, TestRegistration("d0", v1::NODE_ROLE_DECODE, 5)));  // the same process again
  EXPECT_EQ(fleet_.size(), 1);
}

TEST_F(FleetTest, IsBoundedAndReusesSlots) {
  for (int i = 0; i < 3; ++i)
    ASSERT_OK(Join(i + 1, TestRegistration(absl::StrCat("d", i), v1::NODE_ROLE_DECODE)));
  EXPECT_THAT(Join(9, TestRegistration("d9", v1::NODE_ROLE_DECODE)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("at most 3")));
  const NodeSlot slot = fleet_.Find(NodeKey(2))->slot;
  fleet_.Remove(NodeKey(2));
  ASSERT_OK(Join(10, TestRegistration("d9", v1::NODE_ROLE_DECODE)));
  EXPECT_EQ(fleet_.Find(NodeKey(10))->slot, slot);
}

TEST_F(FleetTest, LoadIsTheReportPlusWhatItCannotShowYet) {
  ASSERT_OK(Join(1, TestRegistration("d0", v1::NODE_ROLE_DECODE)));
  Node& node = *fleet_.Find(NodeKey(1));
  EXPECT_EQ(node.blocks_available(), 100);
  node.blocks_unconfirmed = 10;
  node.blocks_unreported = 5;
  node.legs = 4;
  EXPECT_EQ(node.blocks_available(), 85);
  EXPECT_EQ(node.sequences(), 4);
  v1::NodeLoad load;
  load.set_blocks_free(50);
  load.set_blocks_cached(30);
  load.set_sequences_running(6);
  fleet_.OnLoad(node, load);
  EXPECT_EQ(node.blocks_available(), 70);  // the unconfirmed ones are still to come
  EXPECT_EQ(node.sequences(), 6);
  EXPECT_EQ(node.capacity_tokens(), 400);
}

// Whatever a node says of itself, the router's sums and predictions stay within their bounds.
TEST_F(FleetTest, LoadFiguresThatCannotBeAreBounded) {
  ASSERT_OK(Join(1, TestRegistration("p0", v1::NODE_ROLE_PREFILL)));
  Node& node = *fleet_.Find(NodeKey(1));
  for (const int64_t figure :
       {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
    v1::NodeLoad load;
    load.set_blocks_free(figure);
    load.set_blocks_cached(figure);
    load.set_blocks_used(figure);
    load.set_blocks_lent(figure);
    load.set_sequences_running(figure);
    load.set_sequences_waiting(figure);
    load.set_prefill_tokens_waiting(figure);
    for (int i = 0; i <= Fleet::kDebtsMax; ++i) {
      v1::Debt& debt = *load.add_debts();
      debt.set_creditor_node_id(std::string(kNodeIdBytesMax + 1, 'x'));
      debt.set_blocks(figure);
      debt.set_loans(figure);
    }
    fleet_.OnLoad(node, load);
    const int64_t bounded = figure < 0 ? 0 : Fleet::kLoadFigureMax;
    EXPECT_EQ(node.blocks_available(), 2 * bounded);
    EXPECT_EQ(node.sequences(), 2 * bounded);
    EXPECT_EQ(node.prefill_tokens_waiting(), bounded);
    EXPECT_EQ(node.tokens_held(), bounded * node.block_tokens);
    EXPECT_EQ(node.load.blocks_lent(), bounded);
    EXPECT_GE(node.load_score(), 0);
    EXPECT_LE(node.load_score(), 3600) << "an hour, the longest prediction";
    const absl::Duration wait =
        absl::Microseconds(node.WaitUs(std::numeric_limits<int32_t>::max(), kStart, kStart));
    EXPECT_GE(wait, absl::ZeroDuration());
    EXPECT_LE(wait, absl::Hours(1));
    EXPECT_EQ(node.load.debts_size(), Fleet::kDebtsMax);
    for (const v1::Debt& debt : node.load.debts()) {
      EXPECT_EQ(debt.creditor_node_id().size(), kNodeIdBytesMax);
      EXPECT_EQ(debt.blocks(), bounded);
      EXPECT_EQ(debt.loans(), bounded);
    }
  }
}

// A walk of the queue that placed nothing is repeated only when this count has risen.
TEST_F(FleetTest, CountsWhenRoomHasGrown) {
  uint64_t seen = fleet_.order().room_grown();
  const auto grew = [&] {
    const uint64_t before = std::exchange(seen, fleet_.order().room_grown());
    return before != seen;
  };
  ASSERT_OK(Join(1, TestRegistration("d0", v1::NODE_ROLE_DECODE, 7)));
  Node& decode = *fleet_.Find(NodeKey(1));
  v1::NodeLoad load;
  const auto report = [&](Node& node) {
    fleet_.OnLoad(node, load);
    return grew();
  };
  load.set_blocks_total(100);
  load.set_blocks_free(40);
  EXPECT_TRUE(report(decode));
  EXPECT_FALSE(report(decode)) << "the same again";
  load.set_blocks_free(39);
  EXPECT_FALSE(report(decode)) << "less room";
  load.set_blocks_cached(2);
  EXPECT_TRUE(report(decode));
  decode.draining = true;
  load.set_blocks_cached(9);
  EXPECT_FALSE(report(decode)) << "it takes no work";
  decode.draining = false;
  EXPECT_TRUE(report(decode));

  ASSERT_OK(Join(2, TestRegistration("p0", v1::NODE_ROLE_PREFILL)));
  EXPECT_TRUE(grew());
  Node& prefill = *fleet_.Find(NodeKey(2));
  load.set_prefill_tokens_waiting(5000);
  EXPECT_FALSE(report(prefill));
  load.set_prefill_tokens_waiting(4000);
  EXPECT_TRUE(report(prefill)) << "less to do";
  load.set_blocks_free(90);
  EXPECT_FALSE(report(prefill)) << "a prefill node's room is no reason to wait";
}

TEST_F(FleetTest, SilentAndLostNodesShowInStatus) {
  ASSERT_OK(Join(1, TestRegistration("d0", v1::NODE_ROLE_DECODE, 7)));
  ASSERT_OK(Join(2, TestRegistration("p0", v1::NODE_ROLE_PREFILL)));
  fleet_.Find(NodeKey(2))->last_heard = kStart + absl::Seconds(3);
  fleet_.Find(NodeKey(2))->draining = true;
  EXPECT_TRUE(fleet_.Silent(kStart + absl::Seconds(4), absl::Seconds(4)).empty());
  EXPECT_EQ(fleet_.Silent(kStart + absl::Seconds(5), absl::Seconds(4)),
            std::vector<NodeKey>{NodeKey(1)});
  fleet_.Remove(NodeKey(1));
  v1::GetStatusResponse status;
  fleet_.FillStatus(kStart + absl::Seconds(6), status);
  ASSERT_EQ(status.nodes_size(), 2);
  EXPECT_EQ(status.nodes(0).node_id(), "p0");
  EXPECT_EQ(status.nodes(0).role(), "prefill");
  EXPECT_EQ(status.nodes(0).state(), "draining");
  EXPECT_EQ(status.nodes(0).last_heard_ms(), 3000);
  EXPECT_EQ(status.nodes(1).node_id(), "d0");
  EXPECT_EQ(status.nodes(1).state(), "lost");
  EXPECT_EQ(status.nodes(1).last_heard_ms(), 6000);
  ASSERT_OK(Join(3, TestRegistration("d0", v1::NODE_ROLE_DECODE, 8)));
  status.Clear();
  fleet_.FillStatus(kStart, status);
  EXPECT_EQ(status.nodes_size(), 2);  // no longer remembered as lost
  for (int i = 0; i < 200; ++i) {
    ASSERT_OK(Join(100 + i, TestRegistration(absl::StrCat("x", i), v1::NODE_ROLE_DECODE)));
    fleet_.Remove(NodeKey(100 + i));
  }
  status.Clear();
  fleet_.FillStatus(kStart, status);
  EXPECT_EQ(status.nodes_size(), 2 + static_cast<int>(Fleet::kLostNodesKept));
}

TEST_F(FleetTest, ALinksRateIsLearnedFromItsTransfers) {
  ASSERT_OK(Join(1, TestRegistration("d0", v1::NODE_ROLE_DECODE)));
  ASSERT_OK(Join(2, TestRegistration("p0", v1::NODE_ROLE_PREFILL)));
  v1::Installed installed;
  for (int i = 1; i <= 200; ++i) {  // half a millisecond, and a gigabyte a second
    const int64_t bytes = 100'000 * (1 + i % 7);
    installed.set_kv_bytes_received(bytes);
    installed.set_kv_receive_ms(0.5 + static_cast<double>(bytes) / 1e6);
    fleet_.KvTransferDone(NodeKey(2), NodeKey(1), installed);
  }
  installed.set_kv_receive_ms(0);  // says nothing of the rate
  fleet_.KvTransferDone(NodeKey(2), NodeKey(1), installed);
  v1::GetStatusResponse status;
  fleet_.FillStatus(kStart, status);
  ASSERT_EQ(status.links_size(), 1);
  const v1::NodePairStatus& pair = status.links(0);
  EXPECT_EQ(pair.kv_transfers(), 201);
  EXPECT_EQ(pair.rate_samples(), 200);
  EXPECT_NEAR(pair.bytes_per_second(), 1e9, 2e7);
  EXPECT_NEAR(pair.fixed_ms(), 0.5, 0.02);
  EXPECT_LT(pair.rate_relative_error(), 0.1);
}

}  // namespace
}  // namespace tandem::router
