// Drives a RouterCore as the shell would, with nodes that do exactly what a test says.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/core/router_core.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/router/fixtures.h"

namespace tandem::router {

inline v1::Leg LegOf(const v1::NodeCommand& command) {
  switch (command.command_case()) {
    case v1::NodeCommand::kStartDecode:
      return command.start_decode().leg();
    case v1::NodeCommand::kPrefill:
      return command.prefill().leg();
    case v1::NodeCommand::kNewEpoch:
      return command.new_epoch().leg();
    default:
      return command.abort().leg();
  }
}

// What one client has seen.
struct ClientView {
  std::vector<TokenId> tokens;
  int ends = 0;
  std::optional<SequenceDone> done;
  absl::Status failure;
  int64_t failed_after = 0;  // tokens were computed
};

class CoreHarness {
 public:
  // Of equal nodes, placement chooses the one that joined first; with a seed, any.
  explicit CoreHarness(RouterOptions options = {})
      : CoreHarness(options, std::make_unique<FirstOfEqual>()) {}
  CoreHarness(RouterOptions options, uint64_t seed) : CoreHarness(options, NewSeededRandom(seed)) {}

  RouterCore& core() { return *core_; }
  absl::Time now() const { return now_; }
  void Advance(absl::Duration by) {
    now_ += by;
    core_->OnTick(now_);
    Take();
  }

  absl::Status Join(uint64_t key, const v1::Registration& registration) {
    const absl::Status status = core_->NodeJoined(NodeKey(key), registration, now_).status();
    Take();
    return status;
  }
  void JoinDecode(uint64_t key, const std::string& id) {
    ASSERT_OK(Join(key, TestRegistration(id, v1::NODE_ROLE_DECODE)));
  }
  void JoinPrefill(uint64_t key, const std::string& id) {
    ASSERT_OK(Join(key, TestRegistration(id, v1::NODE_ROLE_PREFILL)));
  }
  void Lose(uint64_t key) {
    core_->NodeLost(NodeKey(key), absl::UnavailableError("stream closed"), now_);
    commands_.erase(key);
    Take();
  }

  static RequestInput Input(const std::string& id, int prompt, int max_tokens) {
    RequestInput input;
    input.id = RequestId(id);
    input.prompt = Tokens(prompt);
    input.stop.Edit().max_tokens = max_tokens;
    input.eos_token_ids = {999};
    return input;
  }
  absl::Status Submit(RequestInput input) {
    const absl::Status status = core_->Submit(std::move(input), now_);
    Take();
    return status;
  }
  absl::Status Submit(const std::string& id, int prompt = 100, int max_tokens = 10) {
    return Submit(Input(id, prompt, max_tokens));
  }
  void Finish(const std::string& id, request::FinishReason reason) {
    core_->Finish(RequestId(id), reason, now_);
    Take();
  }

  // One message with these events from a node.
  void Say(uint64_t key, std::vector<v1::NodeEvent> events) {
    v1::NodeMessage message;
    for (auto& event : events) *message.add_events() = std::move(event);
    SayMessage(key, message);
  }
  void SayMessage(uint64_t key, const v1::NodeMessage& message) {
    core_->OnNodeMessage(NodeKey(key), message, now_);
    Take();
  }

  // The oldest command to a node not looked at yet; fails the test when there is none.
  v1::NodeCommand Next(uint64_t key) {
    if (commands_[key].empty()) {
      ADD_FAILURE() << "no command for node " << key;
      return {};
    }
    v1::NodeCommand command = std::move(commands_[key].front());
    commands_[key].pop_front();
    return command;
  }
  v1::StartDecode NextRun(uint64_t key) {
    const v1::NodeCommand command = Next(key);
    EXPECT_TRUE(command.has_start_decode()) << command.ShortDebugString();
    return command.start_decode();
  }
  v1::Prefill NextPrefill(uint64_t key) {
    const v1::NodeCommand command = Next(key);
    EXPECT_TRUE(command.has_prefill()) << command.ShortDebugString();
    return command.prefill();
  }
  void ExpectAbort(uint64_t key, uint32_t attempt) {
    const v1::NodeCommand command = Next(key);
    EXPECT_TRUE(command.has_abort()) << command.ShortDebugString();
    EXPECT_EQ(command.abort().leg().attempt(), attempt);
  }
  bool Quiet(uint64_t key) const {
    const auto it = commands_.find(key);
    return it == commands_.end() || it->second.empty();
  }
  std::map<uint64_t, std::deque<v1::NodeCommand>>& commands() { return commands_; }
  ClientView& client(const std::string& id) { return clients_[id]; }
  std::vector<std::pair<NodeKey, absl::Status>>& disconnects() { return disconnects_; }
  const std::vector<LentReport>& lent_reports() const { return lent_reports_; }
  v1::RouterStatus status() const { return core_->GetStatus(now_).router(); }

  // Nothing of any request is left behind, on any node's books either.
  void ExpectEmpty() {
    EXPECT_EQ(core_->request_counts().total(), 0);
    EXPECT_EQ(core_->sequences_queued(), 0);
    EXPECT_EQ(core_->deadlines(), 0);
    for (const Node* node : core_->fleet().nodes()) {
      EXPECT_EQ(node->legs, 0) << node->id;
      EXPECT_EQ(node->blocks_unconfirmed, 0) << node->id;
      EXPECT_EQ(node->prefill_tokens_ahead, 0) << node->id;
    }
  }

 private:
  CoreHarness(const RouterOptions& options, std::unique_ptr<Random> random)
      : random_(std::move(random)),
        core_(std::make_unique<RouterCore>(options, TestModel(), *random_)) {}

  // A request's first sequence is named as the request, the others "id#index".
  static std::string ViewOf(const std::string& id, const ClientEvent& event) {
    int32_t index = 0;
    if (const auto* tokens = std::get_if<TokensReady>(&event)) index = tokens->sequence_index;
    if (const auto* done = std::get_if<SequenceDone>(&event)) index = done->sequence_index;
    return index == 0 ? id : absl::StrCat(id, "#", index);
  }
  void Take() {
    RouterActions actions = core_->TakeActions();
    for (auto& [key, command] : actions.commands) {
      EXPECT_NE(core_->fleet().Find(key), nullptr) << "command to a lost node";
      commands_[key.value()].push_back(std::move(command));
    }
    for (auto& [id, event] : actions.client_events) {
      ClientView& client = clients_[ViewOf(id.value(), event)];
      // A request of several answers may fail after its first answer's end.
      const bool others_fail = std::holds_alternative<RequestFailed>(event) &&
                               client.done.has_value() && !client.done->last;
      EXPECT_TRUE(client.ends == 0 || others_fail) << "an event after the end of " << id;
      if (auto* tokens = std::get_if<TokensReady>(&event)) {
        EXPECT_FALSE(tokens->tokens.empty());
        for (const auto& token : tokens->tokens) {
          EXPECT_EQ(token.index(), static_cast<int>(client.tokens.size())) << id;
          client.tokens.push_back(token.token_id());
        }
      } else if (std::get_if<PromptScored>(&event) != nullptr) {
        for (const auto& [view, other] : clients_) EXPECT_TRUE(other.tokens.empty()) << view;
      } else if (auto* done = std::get_if<SequenceDone>(&event)) {
        ++client.ends;
        client.done = *done;
      } else {
        ++client.ends;
        client.failure = std::get<RequestFailed>(event).status;
        client.failed_after = std::get<RequestFailed>(event).computed_tokens;
        EXPECT_FALSE(client.failure.ok());
      }
    }
    for (LentReport& report : actions.lent_reports) lent_reports_.push_back(std::move(report));
    for (auto& disconnect : actions.disconnects) {
      commands_.erase(disconnect.first.value());
      disconnects_.push_back(std::move(disconnect));
    }
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::unique_ptr<Random> random_;
  std::unique_ptr<RouterCore> core_;
  std::map<uint64_t, std::deque<v1::NodeCommand>> commands_;
  std::map<std::string, ClientView> clients_;
  std::vector<std::pair<NodeKey, absl::Status>> disconnects_;
  std::vector<LentReport> lent_reports_;
};

// ---- events

inline v1::NodeEvent Reserved(const v1::Leg& leg, int cached_tokens = 0, bool local = false,
                              uint32_t epoch = 1, int received_tokens = 0) {
  v1::NodeEvent event;
  *event.mutable_reserved()->mutable_leg() = leg;
  event.mutable_reserved()->set_lease_id(77);
  event.mutable_reserved()->set_epoch(epoch);
  event.mutable_reserved()->set_received_tokens(received_tokens);
  event.mutable_reserved()->set_cached_tokens(cached_tokens);
  event.mutable_reserved()->set_computes_locally(local);
  return event;
}
inline v1::NodeEvent ReservedAgain(const v1::NewEpoch& command, bool local) {
  return Reserved(command.leg(), 0, local, command.epoch());
}
inline v1::StatusProto WireStatus(absl::StatusCode code, const std::string& message) {
  v1::StatusProto status;
  status.set_code(static_cast<int>(code));
  status.set_message(message);
  return status;
}
inline v1::NodeEvent Refused(const v1::Leg& leg, absl::StatusCode code) {
  v1::NodeEvent event;
  *event.mutable_refused()->mutable_leg() = leg;
  *event.mutable_refused()->mutable_status() = WireStatus(code, "refused by the test");
  return event;
}
inline v1::GeneratedToken Token(int index, TokenId token) {
  v1::GeneratedToken generated;
  generated.set_index(index);
  generated.set_token_id(token);
  return generated;
}
// The answer every leg of these tests gives: token 500 + index.
inline v1::NodeEvent Generated(const v1::Leg& leg, const std::vector<int>& indices) {
  v1::NodeEvent event;
  auto& step = *event.mutable_tokens()->add_steps();
  *step.mutable_leg() = leg;
  for (const int index : indices) *step.add_tokens() = Token(index, 500 + index);
  return event;
}
inline v1::NodeEvent GeneratedToken(const v1::Leg& leg, int index, TokenId token) {
  v1::NodeEvent event;
  auto& step = *event.mutable_tokens()->add_steps();
  *step.mutable_leg() = leg;
  *step.add_tokens() = Token(index, token);
  return event;
}
inline v1::NodeEvent PrefillFinished(const v1::Leg& leg, int computed, int cached) {
  v1::NodeEvent event;
  *event.mutable_prefill_finished()->mutable_leg() = leg;
  event.mutable_prefill_finished()->mutable_tokens()->set_computed(computed);
  event.mutable_prefill_finished()->mutable_tokens()->set_cached(cached);
  return event;
}
inline v1::NodeEvent Installed(const v1::Leg& leg, int first_index, int received = 100,
                               int cached = 0) {
  v1::NodeEvent event;
  v1::Installed& installed = *event.mutable_installed();
  *installed.mutable_leg() = leg;
  installed.mutable_tokens()->set_received(received);
  installed.mutable_tokens()->set_cached(cached);
  installed.set_kv_bytes_received(4096);
  installed.set_kv_transfer_ms(2.5);
  installed.set_kv_receive_ms(0.5);
  installed.set_transport("shm");
  if (first_index >= 0) *installed.mutable_first_token() = Token(first_index, 500 + first_index);
  return event;
}
inline v1::NodeEvent LegFinished(const v1::Leg& leg, v1::FinishReason reason, int output_tokens) {
  v1::NodeEvent event;
  *event.mutable_leg_finished()->mutable_leg() = leg;
  event.mutable_leg_finished()->set_reason(reason);
  event.mutable_leg_finished()->set_output_tokens(output_tokens);
  return event;
}
inline v1::NodeEvent LegFailed(const v1::Leg& leg, bool sender_side, uint32_t epoch = 0) {
  v1::NodeEvent event;
  *event.mutable_leg_failed()->mutable_leg() = leg;
  event.mutable_leg_failed()->set_sender_side(sender_side);
  event.mutable_leg_failed()->set_epoch(epoch);
  *event.mutable_leg_failed()->mutable_status() =
      WireStatus(absl::StatusCode::kUnavailable, "failed by the test");
  return event;
}
inline v1::NodeEvent Drains() {
  v1::NodeEvent event;
  event.mutable_draining();
  return event;
}

}  // namespace tandem::router
