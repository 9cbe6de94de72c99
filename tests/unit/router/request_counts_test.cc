// Goal: each request that was taken on counts as running or as queued until it ends, and once,
// whatever its batch, its sequences, its retries and its end. After every step of random histories
// the counts equal a naive model that knows only what nodes were told, and status and both names of
// each metric say the same.
#include <gmock/gmock.h>

#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "common/telemetry/log.h"
#include "router/front_end/request_metrics.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

// Nodes as their commands describe them, and clients as their events do.
class RequestCountsModel {
 public:
  explicit RequestCountsModel(uint64_t seed) : random_(NewSeededRandom(seed)), h_(Options(), seed) {
    for (uint64_t key = 1; key <= kNodes; ++key) Join(key);
  }

  void Step() {
    switch (random_->Below(12)) {
      case 0:
      case 1:
        Submit();
        break;
      case 2:
        if (!open_.empty() && random_->Below(4) == 0) AbortOne();
        break;
      case 3:
        if (random_->Below(8) == 0) Restart(1 + random_->Below(kNodes));
        break;
      case 4:
        h_.Advance(absl::Milliseconds(static_cast<int64_t>(random_->Below(400))));
        break;
      default:
        Speak(1 + random_->Below(kNodes));
    }
    RejoinLost();
    ReadCommands();
    CloseEnded();
  }

  void AbortAll() {
    while (!open_.empty()) AbortOne();
    ReadCommands();
  }

  void Check() {
    std::set<std::string> placed;
    for (const auto& [key, legs] : legs_) {
      for (const auto& [number, leg] : legs) placed.insert(leg.name.request_id());
    }
    const auto running = static_cast<int64_t>(placed.size());
    const auto queued = static_cast<int64_t>(open_.size()) - running;
    for (const std::string& id : placed) EXPECT_TRUE(open_.count(id) == 1) << id;
    EXPECT_EQ(h_.core().request_counts().running, running);
    EXPECT_EQ(h_.core().request_counts().queued, queued);
    most_running_ = std::max(most_running_, running);
    most_queued_ = std::max(most_queued_, queued);
    const v1::GetStatusResponse status = h_.core().GetStatus(h_.now());
    EXPECT_EQ(status.router().requests_running(), running);
    EXPECT_EQ(status.router().requests_queued(), queued);
    const std::string page = RequestMetrics("m").Text(status, {});
    for (const char* name : {"tandem_requests_running", "vllm:num_requests_running"})
      EXPECT_THAT(page, HasSubstr(absl::StrCat("\n", name, "{model_name=\"m\"} ", running, "\n")));
    for (const char* name : {"tandem_requests_queued", "vllm:num_requests_waiting"})
      EXPECT_THAT(page, HasSubstr(absl::StrCat("\n", name, "{model_name=\"m\"} ", queued, "\n")));
  }

  int64_t most_running() const { return most_running_; }
  int64_t most_queued() const { return most_queued_; }
  CoreHarness& harness() { return h_; }

 private:
  static constexpr uint64_t kNodes = 3;

  static RouterOptions Options() {
    RouterOptions options;
    options.queue_max = 300;
    options.queue_deadline = absl::Seconds(20);
    return options;
  }

  void Join(uint64_t key) {
    v1::Registration registration =
        TestRegistration(absl::StrCat("d", key), v1::NODE_ROLE_DECODE, ++incarnation_);
    registration.set_max_sequences(3);
    ASSERT_OK(h_.Join(key, registration));
  }
  void Restart(uint64_t key) {
    h_.Lose(key);
    legs_.erase(key);
    Join(key);
  }
  // The core gives up nodes that were silent for long.
  void RejoinLost() {
    for (const auto& [key, why] : std::exchange(h_.disconnects(), {})) {
      legs_.erase(key.value());
      Join(key.value());
    }
  }
  void Submit() {
    RequestInput input = CoreHarness::Input(absl::StrCat("r", ++submitted_), 20, 3);
    constexpr int32_t kSequences[] = {1, 1, 2, 5, kSequencesMax};
    input.sequences = kSequences[random_->Below(std::size(kSequences))];
    if (random_->Below(8) == 0) {
      input.sequences = 1;
      input.beams = BeamParams{.width = 2};
      input.sampling.Edit().logprobs = 4;
    }
    const std::string id = input.id.value();
    const int sequences = input.sequences;
    if (h_.Submit(std::move(input)).ok()) open_[id] = sequences;
  }
  void AbortOne() {
    auto chosen = open_.begin();
    std::advance(chosen, random_->Below(open_.size()));
    const std::string id = chosen->first;
    h_.Finish(id, request::FinishReason::kAborted);
    open_.erase(id);
  }

  // The node says something about one of its legs: mostly that it goes on.
  void Speak(uint64_t key) {
    if (legs_[key].empty()) return;
    auto chosen = legs_[key].begin();
    std::advance(chosen, random_->Below(legs_[key].size()));
    Leg& leg = chosen->second;
    const uint64_t fate = random_->Below(10);
    if (leg.next_token < 0) {
      if (fate == 0)
        return EndLeg(key, leg.name, Refused(leg.name, absl::StatusCode::kResourceExhausted));
      leg.next_token = leg.first_token;
      return h_.Say(key, {Reserved(leg.name, 0, true), Installed(leg.name, -1)});
    }
    if (fate == 0) return EndLeg(key, leg.name, LegFailed(leg.name, false));
    v1::NodeEvent tokens = Generated(leg.name, {leg.next_token++});
    v1::GeneratedToken& token = *tokens.mutable_tokens()->mutable_steps(0)->mutable_tokens(0);
    for (int i = 0; i < 4; ++i) {
      token.add_top_logprobs()->set_token_id(10 + i);
      token.mutable_top_logprobs(i)->set_logprob(static_cast<float>(-1 - i));
    }
    // The router ends the leg itself once it has the answer's last token.
    if (leg.next_token >= leg.max_tokens) return EndLeg(key, leg.name, tokens);
    h_.Say(key, {tokens});
  }
  void EndLeg(uint64_t key, const v1::Leg& leg, const v1::NodeEvent& event) {
    const uint64_t number = leg.number();
    h_.Say(key, {event});
    legs_[key].erase(number);
  }

  void ReadCommands() {
    for (uint64_t key = 1; key <= kNodes; ++key) {
      while (!h_.Quiet(key)) {
        const v1::NodeCommand command = h_.Next(key);
        if (command.has_abort()) legs_[key].erase(command.abort().leg().number());
        if (!command.has_start_decode()) continue;
        const v1::StartDecode& start = command.start_decode();
        Leg leg{start.leg()};
        leg.first_token = start.sequence().delivered_tokens();
        leg.max_tokens = start.sequence().stop().max_tokens();
        legs_[key][leg.name.number()] = leg;
      }
    }
  }
  void CloseEnded() {
    for (auto it = open_.begin(); it != open_.end();)
      it = HasEnded(it->first, it->second) ? open_.erase(it) : ++it;
  }
  bool HasEnded(const std::string& id, int sequences) {
    if (!h_.client(id).failure.ok()) return true;
    for (int i = 0; i < sequences; ++i) {
      const ClientView& view = h_.client(i == 0 ? id : absl::StrCat(id, "#", i));
      if (view.done.has_value() && view.done->last) return true;
    }
    return false;
  }

  struct Leg {
    v1::Leg name;
    int next_token = -1;  // -1: not reserved yet
    int first_token = 0, max_tokens = 0;
  };

  std::unique_ptr<Random> random_;
  CoreHarness h_;
  int submitted_ = 0;
  uint64_t incarnation_ = 0;
  std::map<uint64_t, std::map<uint64_t, Leg>> legs_;  // by node, by number
  std::map<std::string, int> open_;                   // sequences of those not ended, by id
  int64_t most_running_ = 0, most_queued_ = 0;
};

TEST(RequestCounts, EqualANaiveModelInRandomHistories) {
  SetLogLevel(LogLevel::kError);
  int64_t most_running = 0, most_queued = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RequestCountsModel model(seed);
    for (int step = 0; step < 300; ++step) {
      model.Step();
      model.Check();
      if (::testing::Test::HasFailure()) FAIL() << "after step " << step;
    }
    most_running = std::max(most_running, model.most_running());
    most_queued = std::max(most_queued, model.most_queued());
    model.AbortAll();
    model.Check();
    model.harness().ExpectEmpty();
  }
  EXPECT_GE(most_running, 3);
  EXPECT_GE(most_queued, 3);
}

}  // namespace
}  // namespace tandem::router
