// Goal: the router as a whole: admission, queue, members, loss, drain, status; and a random walk.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "common/telemetry/log.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

class CoreTest : public ::testing::Test {
 protected:
  CoreTest() { SetLogLevel(LogLevel::kError); }
};

TEST_F(CoreTest, AdmissionNamesWhatIsWrong) {
  RouterOptions options;
  options.requests_max = 2;
  CoreHarness h(options);
  EXPECT_THAT(h.Submit("", 5, 5), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("id")));
  EXPECT_THAT(h.Submit("r", 0, 5),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 tokens")));
  EXPECT_THAT(h.Submit("r", 5, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_tokens 0")));
  EXPECT_THAT(h.Submit("r", 395, 6), StatusIs(absl::StatusCode::kInvalidArgument,
                                              AllOf(HasSubstr("401"), HasSubstr("400"))));
  v1::Registration small = TestRegistration("d0", v1::NODE_ROLE_DECODE);
  small.set_num_blocks(25);
  ASSERT_OK(h.Join(1, small));
  EXPECT_THAT(h.Submit("r", 95, 6), StatusIs(absl::StatusCode::kInvalidArgument,
                                             AllOf(HasSubstr("101"), HasSubstr("100"))));
  ASSERT_OK(h.Submit("r", 50, 6));
  EXPECT_THAT(h.Submit("r", 50, 6), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("r")));
  ASSERT_OK(h.Submit("s", 50, 6));
  EXPECT_THAT(h.Submit("t", 50, 6), StatusIs(absl::StatusCode::kResourceExhausted,
                                             HasSubstr("runs 2 sequences; 1 more")));
}

TEST_F(CoreTest, ADefaultMaxTokensShrinksToTheLargestPool) {
  CoreHarness h;
  v1::Registration small = TestRegistration("d0", v1::NODE_ROLE_DECODE);
  small.set_num_blocks(25);
  ASSERT_OK(h.Join(1, small));
  RequestInput input = CoreHarness::Input("r", 50, 350);
  input.max_tokens_given = false;
  ASSERT_OK(h.Submit(input));
  EXPECT_EQ(h.NextRun(1).sequence().stop().max_tokens(), 50);
}

TEST_F(CoreTest, NoDecodeNodeFailsSoonAndSaysSo) {
  CoreHarness h;
  h.JoinPrefill(1, "p0");
  ASSERT_OK(h.Submit("r"));
  h.Advance(absl::Milliseconds(4900));
  h.Say(1, {});
  EXPECT_EQ(h.client("r").ends, 0);
  h.Advance(absl::Milliseconds(200));
  EXPECT_THAT(h.client("r").failure, StatusIs(absl::StatusCode::kUnavailable,
                                              HasSubstr("no decode node has joined this router")));
  h.ExpectEmpty();
}

TEST_F(CoreTest, ADecodeNodeThatJoinsInTimeTakesTheQueue) {
  CoreHarness h;
  ASSERT_OK(h.Submit("a"));
  ASSERT_OK(h.Submit("b"));
  h.Advance(absl::Seconds(3));
  h.JoinDecode(1, "d0");
  EXPECT_EQ(h.NextRun(1).leg().request_id(), "a");
  EXPECT_EQ(h.NextRun(1).leg().request_id(), "b");
}

TEST_F(CoreTest, LostDecodeNodesAreWaitedForUntilTheQueueDeadline) {
  CoreHarness h;
  h.JoinDecode(1, "d0");
  h.Lose(1);
  ASSERT_OK(h.Submit("r"));
  h.Advance(absl::Seconds(59));
  EXPECT_EQ(h.client("r").ends, 0);
  h.Advance(absl::Seconds(2));
  EXPECT_THAT(h.client("r").failure,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("lost or draining")));
}

TEST_F(CoreTest, QueueIsBoundedFifoAndDrainsWhenRoomAppears) {
  RouterOptions options;
  options.queue_max = 3;
  CoreHarness h(options);
  v1::Registration registration = TestRegistration("d0", v1::NODE_ROLE_DECODE);
  registration.set_max_sequences(1);
  ASSERT_OK(h.Join(1, registration));
  ASSERT_OK(h.Submit("r0"));
  const v1::Leg leg = h.NextRun(1).leg();
  for (int i = 1; i <= 3; ++i) ASSERT_OK(h.Submit(absl::StrCat("r", i)));
  EXPECT_THAT(h.Submit("r4"),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("3 sequences wait")));
  EXPECT_EQ(h.status().requests_queued(), 3);
  EXPECT_EQ(h.status().requests_running(), 1);
  h.Finish("r2", request::FinishReason::kAborted);  // one in the middle leaves
  h.Say(1,
        {Reserved(leg, 0, true), Generated(leg, {0}), LegFinished(leg, v1::FINISH_REASON_STOP, 1)});
  EXPECT_EQ(h.NextRun(1).leg().request_id(), "r1");
  EXPECT_TRUE(h.Quiet(1));
  h.Finish("r1", request::FinishReason::kAborted);
  EXPECT_TRUE(h.Next(1).has_abort());
  EXPECT_EQ(h.NextRun(1).leg().request_id(), "r3");
}

TEST_F(CoreTest, QueuedTooLongForWantOfRoom) {
  CoreHarness h;
  v1::Registration registration = TestRegistration("d0", v1::NODE_ROLE_DECODE);
  ASSERT_OK(h.Join(1, registration));
  v1::NodeMessage full;
  full.mutable_load()->set_blocks_total(100);
  h.SayMessage(1, full);
  ASSERT_OK(h.Submit("r"));
  for (int i = 0; i < 61; ++i) {
    h.SayMessage(1, full);
    h.Advance(absl::Seconds(1));
  }
  EXPECT_THAT(h.client("r").failure,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("100 prompt tokens"), HasSubstr("1m"))));
  h.ExpectEmpty();
}

TEST_F(CoreTest, ASmallRequestMayPassALargeOneForASecond) {
  CoreHarness h;
  h.JoinDecode(1, "d0");
  v1::NodeMessage load;
  load.mutable_load()->set_blocks_free(10);
  h.SayMessage(1, load);
  ASSERT_OK(h.Submit("large", 100));
  ASSERT_OK(h.Submit("small", 10));
  EXPECT_EQ(h.NextRun(1).leg().request_id(), "small");
  h.Advance(absl::Milliseconds(1100));
  ASSERT_OK(h.Submit("next", 4));
  EXPECT_TRUE(h.Quiet(1));  // the large one is first in line now
  load.mutable_load()->set_blocks_free(90);
  h.SayMessage(1, load);
  EXPECT_EQ(h.NextRun(1).leg().request_id(), "large");
  EXPECT_EQ(h.NextRun(1).leg().request_id(), "next");
}

TEST_F(CoreTest, DrainingNodesGetNoNewWorkAndFinishWhatRuns) {
  CoreHarness h;
  h.JoinDecode(1, "d0");
  h.JoinDecode(2, "d1");
  ASSERT_OK(h.Submit("a"));
  const v1::Leg leg = h.NextRun(1).leg();
  h.Say(1, {Drains()});
  ASSERT_OK(h.Submit("b"));
  h.NextRun(2);
  EXPECT_TRUE(h.Quiet(1));
  h.Say(1, {Reserved(leg, 0, true), Generated(leg, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9})});
  EXPECT_EQ(h.client("a").done->reason, request::FinishReason::kLength);
  EXPECT_EQ(h.core().GetStatus(h.now()).nodes(0).state(), "draining");
}

TEST_F(CoreTest, SilentNodesAreLostAndDisconnected) {
  CoreHarness h;
  h.JoinDecode(1, "d0");
  h.JoinDecode(2, "d1");
  ASSERT_OK(h.Submit("r"));
  h.NextRun(1);
  for (int i = 0; i < 5; ++i) {
    h.Say(2, {});
    h.Advance(absl::Seconds(1));
  }
  ASSERT_EQ(h.disconnects().size(), 1u);
  EXPECT_EQ(h.disconnects()[0].first, NodeKey(1));
  EXPECT_THAT(h.disconnects()[0].second,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the node sent nothing for 5s")));
  h.NextRun(2);
  h.Say(1, {});  // a message still on its way is ignored
  h.Lose(1);     // and so is the stream's end
}

TEST_F(CoreTest, ANewerStreamReplacesTheOldOneAndItsWorkMoves) {
  CoreHarness h;
  h.JoinDecode(1, "d0");
  ASSERT_OK(h.Submit("r"));
  h.NextRun(1);
  ASSERT_OK(h.Join(2, TestRegistration("d0", v1::NODE_ROLE_DECODE, 2)));
  ASSERT_EQ(h.disconnects().size(), 1u);
  EXPECT_EQ(h.disconnects()[0].first, NodeKey(1));
  EXPECT_EQ(h.NextRun(2).leg().request_id(), "r");
  EXPECT_EQ(h.core().fleet().size(), 1);
  EXPECT_THAT(h.Join(3, TestRegistration("d0", v1::NODE_ROLE_DECODE, 1)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("incarnation")));
}

TEST_F(CoreTest, BrokenStreamsAreDisconnected) {
  for (int way = 0; way < 5; ++way) {
    CoreHarness h;
    h.JoinDecode(1, "d0");
    v1::NodeMessage message;
    message.set_sequence_number(2);
    h.SayMessage(1, message);
    EXPECT_TRUE(h.disconnects().empty());
    // One is missing, or one comes twice: what the node holds is not known any more.
    message.set_sequence_number(way == 0 ? 4 : way == 4 ? 2 : 3);
    if (way == 1) message.mutable_registration()->set_node_id("d0");
    if (way == 2) message.add_events()->mutable_blocks_stored()->set_hashes("bad");
    if (way == 3) message.add_events()->mutable_tokens()->mutable_plain()->add_leg_numbers(1);
    h.SayMessage(1, message);
    ASSERT_EQ(h.disconnects().size(), 1u) << way;
    EXPECT_EQ(h.disconnects()[0].second.code(), way == 0 || way == 4
                                                    ? absl::StatusCode::kDataLoss
                                                    : absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(h.core().fleet().empty());
  }
}

TEST_F(CoreTest, TheIndexFollowsNodesAndSteersRequests) {
  CoreHarness h;
  h.JoinDecode(1, "d0");
  v1::Registration registration = TestRegistration("d1", v1::NODE_ROLE_DECODE);
  registration.set_cached_blocks(kv::PackHashes(HashesOf(Tokens(100))));
  ASSERT_OK(h.Join(2, registration));
  EXPECT_EQ(h.status().index_blocks(), 25);
  ASSERT_OK(h.Submit("r"));
  EXPECT_EQ(h.NextRun(2).leg().request_id(), "r");
  RequestInput salted = CoreHarness::Input("salted", 100, 10);
  salted.cache_salt = "tenant";
  ASSERT_OK(h.Submit(salted));
  EXPECT_EQ(h.NextRun(1).leg().request_id(), "salted");
  v1::NodeEvent removed, stored;
  removed.mutable_blocks_removed()->set_hashes(kv::PackHashes(HashesOf(Tokens(100))));
  stored.mutable_blocks_stored()->set_hashes(kv::PackHashes(HashesOf(Tokens(8))));
  h.Say(2, {removed, stored});
  EXPECT_EQ(h.status().index_blocks(), 2);
  h.Lose(2);
  EXPECT_EQ(h.status().index_blocks(), 0);
  registration.mutable_cached_blocks()->append("short");
  EXPECT_THAT(h.Join(5, registration),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got 405 in all")));
}

TEST_F(CoreTest, AnAnswerIsNotContinuedUnderOtherNumerics) {
  CoreHarness h;
  h.JoinDecode(1, "d0");
  ASSERT_OK(h.Submit("r"));
  const v1::Leg leg = h.NextRun(1).leg();
  h.Say(1, {Reserved(leg, 0, true), Generated(leg, {0})});
  h.Lose(1);
  v1::Registration other = TestRegistration("d0", v1::NODE_ROLE_DECODE, 2);
  other.set_numerics_id("n2");
  ASSERT_OK(h.Join(2, other));
  EXPECT_EQ(h.core().numerics_id(), "n2");
  EXPECT_THAT(h.client("r").failure,
              StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("n1"), HasSubstr("n2"))));
}

TEST_F(CoreTest, WelcomeAndStatus) {
  const RouterOptions options{.router_id = "router-0", .version = "1.2"};
  auto random = NewSeededRandom(1);
  RouterCore core(options, TestModel(), *random);
  const absl::Time start = absl::FromUnixSeconds(50);
  ASSERT_OK_AND_ASSIGN(
      const v1::Welcome welcome,
      core.NodeJoined(NodeKey(1), TestRegistration("d0", v1::NODE_ROLE_DECODE), start));
  EXPECT_EQ(welcome.router_id(), "router-0");
  EXPECT_NE(welcome.router_incarnation(), 0u);
  EXPECT_EQ(welcome.heartbeat_interval_s(), 1);
  const v1::GetStatusResponse status = core.GetStatus(start + absl::Seconds(7));
  EXPECT_EQ(status.router_id(), "router-0");
  EXPECT_EQ(status.version(), "1.2");
  EXPECT_EQ(status.uptime_s(), 7);
  EXPECT_EQ(status.nodes_size(), 1);
}

// ---- random walk

// Nodes that behave, refuse, fail, repeat themselves, vanish and come back; clients that come and
// go.
class Walk {
 public:
  explicit Walk(uint64_t seed) : random_(NewSeededRandom(seed)), h_(Options(), seed) {}

  void Run() {
    for (int step = 0; step < 3000 && !::testing::Test::HasFailure(); ++step) Step();
    Wind();
    Check();
  }

 private:
  struct Peer {
    uint64_t key = 0;  // 0 = away
    std::string id;
    v1::NodeRole role;
    std::vector<v1::NodeCommand> seen;  // Run and Prefill commands, maybe of ended legs
  };

  static RouterOptions Options() {
    RouterOptions options;
    options.queue_max = 20;
    options.requests_max = 40;
    options.index_blocks_max = 50;
    return options;
  }
  uint64_t Below(uint64_t bound) { return random_->Below(bound); }

  void Join(Peer& peer) {
    v1::Registration registration = TestRegistration(peer.id, peer.role, ++incarnation_);
    registration.set_num_blocks(40 + Below(60));
    registration.set_max_sequences(1 + Below(6));
    peer.key = ++last_key_;
    peer.seen.clear();
    EXPECT_OK(h_.Join(peer.key, registration));
  }

  void Step() {
    Peer& peer = peers_[Below(peers_.size())];
    const uint64_t action = Below(100);
    if (action < 12) {
      const std::string id = absl::StrCat("r", ++last_request_);
      prompt_tokens_[id] = static_cast<int>(1 + Below(120));
      h_.Submit(id, prompt_tokens_[id], static_cast<int>(1 + Below(12))).IgnoreError();
    } else if (action < 15) {
      h_.Finish(absl::StrCat("r", 1 + Below(last_request_ + 1)),
                Below(2) == 0 ? request::FinishReason::kStop : request::FinishReason::kAborted);
    } else if (action < 22) {
      Tick(absl::Milliseconds(Below(800)));
    } else if (peer.key == 0) {
      Join(peer);
    } else if (action < 24) {
      h_.Lose(peer.key);
      peer.key = 0;
    } else if (action < 25) {
      h_.Say(peer.key, {Drains()});
    } else {
      Act(peer);
    }
    for (const auto& disconnect : h_.disconnects())
      for (Peer& lost : peers_)
        if (NodeKey(lost.key) == disconnect.first) lost.key = 0;
    h_.disconnects().clear();
  }

  void Tick(absl::Duration by) {
    for (Peer& peer : peers_)
      if (peer.key != 0 && Below(50) != 0) h_.Say(peer.key, {});
    h_.Advance(by);
  }

  void Act(Peer& peer) {
    auto& inbox = h_.commands()[peer.key];
    while (!inbox.empty()) {
      CheckCommand(inbox.front());
      if (!inbox.front().has_abort()) peer.seen.push_back(inbox.front());
      inbox.pop_front();
    }
    if (peer.seen.empty()) return;
    // Recent commands mostly, old ones (of ended attempts) now and then.
    const size_t back = std::min<size_t>(peer.seen.size(), Below(8) == 0 ? 1000 : 4);
    const v1::NodeCommand& command = peer.seen[peer.seen.size() - 1 - Below(back)];
    std::vector<v1::NodeEvent> events;
    for (uint64_t i = 1 + Below(3); i > 0; --i) events.push_back(EventFor(command));
    h_.Say(peer.key, std::move(events));
  }

  v1::NodeEvent EventFor(const v1::NodeCommand& command) {
    const v1::Leg leg = LegOf(command);
    const v1::SequenceSpec& sequence = command.has_start_decode()
                                           ? command.start_decode().sequence()
                                           : command.prefill().sequence();
    const int base = sequence.delivered_tokens();
    const uint64_t action = Below(40);
    if (action == 0) return LegFailed(leg, Below(2) == 0, Below(3));
    if (action == 1)
      return Refused(leg, Below(8) == 0 ? absl::StatusCode::kInvalidArgument
                                        : absl::StatusCode::kResourceExhausted);
    if (command.has_new_epoch()) return ReservedAgain(command.new_epoch(), Below(4) == 0);
    if (command.has_prefill())
      return action < 20 ? Generated(leg, {base}) : PrefillFinished(leg, 5, 5);
    if (action < 12) return Reserved(leg, 0, command.start_decode().local_prefill_tokens_max() < 0);
    if (action < 16) return Installed(leg, Below(2) == 0 ? base : -1);
    if (action < 17) return LegFinished(leg, v1::FINISH_REASON_LENGTH, base + Below(12));
    const int at = base + static_cast<int>(Below(12));
    return Generated(leg, {at, at + 1});
  }
  // A placement carries what the client has, a prefill the sequence of its lease, under new
  // numbers.
  void CheckCommand(const v1::NodeCommand& command) {
    const v1::Leg leg = LegOf(command);
    const std::string& id = leg.request_id();
    if (command.has_start_decode() || command.has_prefill()) {
      EXPECT_TRUE(attempts_.insert({id, leg.attempt()}).second) << command.ShortDebugString();
      const v1::SequenceSpec& sequence = command.has_start_decode()
                                             ? command.start_decode().sequence()
                                             : command.prefill().sequence();
      const int prompt = prompt_tokens_.at(id);
      ASSERT_EQ(sequence.prompt_size(), prompt + sequence.delivered_tokens());
      ASSERT_LE(static_cast<size_t>(sequence.delivered_tokens()), h_.client(id).tokens.size());
      for (int i = 0; i < prompt; ++i) ASSERT_EQ(sequence.prompt(i), i + 1);
      for (int i = 0; i < sequence.delivered_tokens(); ++i)
        ASSERT_EQ(sequence.prompt(prompt + i), 500 + i);
    }
    if (command.has_new_epoch()) {
      EXPECT_GT(command.new_epoch().epoch(), 1u);
      EXPECT_TRUE(epochs_.insert({{id, leg.attempt()}, command.new_epoch().epoch()}).second);
    }
  }

  // The clients leave, and no node may have anything left on its books; then everyone does.
  void Wind() {
    for (uint64_t r = 1; r <= last_request_; r += 2)
      h_.Finish(absl::StrCat("r", r), request::FinishReason::kAborted);
    for (int i = 0; i < 70; ++i) {  // the others end by their deadlines
      for (Peer& peer : peers_)
        if (peer.key != 0) h_.Say(peer.key, {});
      h_.Advance(absl::Seconds(1));
    }
    for (uint64_t r = 1; r <= last_request_; ++r)
      h_.Finish(absl::StrCat("r", r), request::FinishReason::kAborted);
    h_.ExpectEmpty();
    for (Peer& peer : peers_)
      if (peer.key != 0) h_.Lose(peer.key);
  }

  void Check() {
    h_.ExpectEmpty();
    EXPECT_EQ(h_.core().index().entries(), 0);
    int ended = 0;
    for (uint64_t r = 1; r <= last_request_; ++r) {
      const ClientView& client = h_.client(absl::StrCat("r", r));
      EXPECT_LE(client.ends, 1);
      ended += client.ends;
      for (size_t i = 0; i < client.tokens.size(); ++i)
        EXPECT_EQ(client.tokens[i], 500 + static_cast<TokenId>(i));
      if (client.done.has_value()) {
        EXPECT_EQ(client.done->usage.output_tokens(), static_cast<int>(client.tokens.size()));
      }
    }
    const v1::RouterStatus status = h_.status();
    EXPECT_EQ(status.requests_finished() + status.requests_failed(), ended);
    EXPECT_EQ(status.diverged_tokens(), 0);
    EXPECT_GT(status.requests_finished(), 20);
  }

  std::unique_ptr<Random> random_;
  CoreHarness h_;
  std::vector<Peer> peers_ = {{0, "d0", v1::NODE_ROLE_DECODE},
                              {0, "d1", v1::NODE_ROLE_DECODE},
                              {0, "d2", v1::NODE_ROLE_DECODE},
                              {0, "p0", v1::NODE_ROLE_PREFILL},
                              {0, "p1", v1::NODE_ROLE_PREFILL}};
  uint64_t last_key_ = 0, incarnation_ = 0, last_request_ = 0;
  std::map<std::string, int> prompt_tokens_;
  std::set<std::pair<std::string, uint32_t>> attempts_;
  std::set<std::pair<std::pair<std::string, uint32_t>, uint32_t>> epochs_;
};

TEST_F(CoreTest, RandomWalksKeepThePromises) {
  SetLogLevel(LogLevel::kError);
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Walk(seed).Run();
    if (HasFailure()) break;
  }
}

// The same events give the same actions: nothing depends on addresses or hash order.
TEST_F(CoreTest, IsDeterministic) {
  std::string first;
  for (int run = 0; run < 2; ++run) {
    auto random = NewSeededRandom(9);
    RouterOptions options;
    RouterCore core(options, TestModel(), *random);
    const absl::Time now = absl::FromUnixSeconds(1000);
    std::string log;
    for (int i = 0; i < 20; ++i)
      ASSERT_OK(core.NodeJoined(
                        NodeKey(i + 1),
                        TestRegistration(absl::StrCat("n", i),
                                         i % 2 == 0 ? v1::NODE_ROLE_DECODE : v1::NODE_ROLE_PREFILL),
                        now)
                    .status());
    for (int i = 0; i < 100; ++i)
      ASSERT_OK(core.Submit(CoreHarness::Input(absl::StrCat("r", i), 90, 9), now));
    for (int i = 0; i < 20; i += 4) core.NodeLost(NodeKey(i + 1), absl::UnknownError("x"), now);
    for (const auto& [key, command] : core.TakeActions().commands)
      absl::StrAppend(&log, key.value(), " ", command.ShortDebugString(), "\n");
    if (run == 0) first = log;
    EXPECT_EQ(log, first);
    EXPECT_GT(log.size(), 1000u);
  }
}

}  // namespace
}  // namespace tandem::router
