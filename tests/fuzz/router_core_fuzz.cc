// Goal: no order of registrations, events of broken or hostile nodes, arriving and leaving clients,
// and time crashes the router's core, lets a client see a token out of order, twice or after the
// end, or leaves a request, a deadline or an index entry behind when all clients and nodes are
// gone. Input: one byte a choice, in the order in which the choices come up.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"
#include "router/core/router_core.h"
#include "tests/fuzz/fuzz_random.h"
#include "tests/fuzz/odd_commands.h"

namespace tandem::router {
namespace {

constexpr int kVocabulary = 1000, kBlockTokens = 4;
constexpr uint64_t kNodes = 4;  // ids that nodes choose from

// How often each kind of event was sent, by its field number, over all inputs.
std::map<int, int64_t>& EventsSent() {
  static auto* const sent = new std::map<int, int64_t>();
  return *sent;
}

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

ModelIdentity Model() {
  ModelIdentity model;
  model.name = "toy";
  model.fingerprint = "f00d";
  model.vocab_size = kVocabulary;
  model.context_tokens = 400;
  return model;
}

RouterOptions Options() {
  RouterOptions options;
  options.queue_max = 6;
  options.requests_max = 10;
  options.nodes_max = 4;
  options.index_blocks_max = 20;
  return options;
}

class Driver {
 public:
  explicit Driver(fuzz::Bytes& bytes)
      : random_(bytes),
        odd_(random_),
        core_random_(NewSeededRandom(1)),
        core_(Options(), Model(), *core_random_) {}

  void Live() {
    switch (random_.Below(12)) {
      case 0:
        Join();
        break;
      case 1:
        Submit();
        break;
      case 2:
        End();
        break;
      case 3:
        now_ += absl::Milliseconds(static_cast<int64_t>(random_.Below(256)) * 10);
        core_.OnTick(now_);
        break;
      case 4:
        if (random_.Below(4) == 0) Lose(random_.Below(next_key_));
        break;
      default:
        Speak();
        break;
    }
    Take();
    // Each sequence has a deadline.
    if (core_.deadlines() > Options().requests_max) Die("more sequences than the router may run");
  }

  // All clients and nodes leave.
  void Wind() {
    for (uint64_t key = 0; key < next_key_; ++key) Lose(key);
    for (int i = 0; i < 80; ++i) {
      core_.OnTick(now_ += absl::Seconds(1));
      Take();
    }
    for (const std::string& id : submitted_) {
      core_.Finish(RequestId(id), request::FinishReason::kAborted, now_);
      Take();
    }
    if (core_.request_counts().total() != 0 || core_.sequences_queued() != 0)
      Die("a request is left");
    if (core_.deadlines() != 0) Die("a deadline is left");
    if (core_.index().entries() != 0) Die("the index holds blocks of nobody");
    if (!open_.empty()) Die("a request was never ended");
  }

 private:
  void Join() {
    v1::Registration registration;
    registration.set_node_id(NodeName());
    registration.set_incarnation(odd_.Number(6));
    registration.set_role(static_cast<v1::NodeRole>(odd_.Int(3)));
    registration.set_model_name("toy");
    registration.set_model_fingerprint(random_.Below(16) == 0 ? "other" : "f00d");
    registration.set_numerics_id(random_.Below(8) == 0 ? "n2" : "n1");
    registration.set_context_tokens(400);
    registration.set_vocab_size(kVocabulary);
    registration.set_block_tokens(random_.Below(16) == 0 ? odd_.Int(9) : kBlockTokens);
    registration.set_num_blocks(random_.Below(8) == 0 ? static_cast<int64_t>(odd_.Number(3)) : 60);
    registration.set_max_sequences(random_.Below(8) == 0 ? odd_.Int(3) : 4);
    registration.set_transfer_address("address");
    registration.set_host("host");
    registration.set_block_names(random_.Below(16) == 0 ? "another" : kv::BlockKey().names());
    AddHashes(*registration.mutable_cached_blocks());
    if (random_.Below(2) == 0) {
      // Mostly a unit is a block.
      registration.set_lending_address("unix:lending");
      registration.set_lend_blocks_max(static_cast<int64_t>(odd_.Number(40)));
      registration.set_lending_unit_tokens(random_.Below(16) == 0 ? odd_.Int(9) : kBlockTokens);
    }
    registration.set_stored_blocks_max(static_cast<int64_t>(odd_.Number(3)));
    const uint64_t key = next_key_++;
    if (core_.NodeJoined(NodeKey(key), registration, now_).ok()) nodes_.insert(key);
  }
  void Lose(uint64_t key) {
    // The shell reports the end of each joined stream once.
    if (nodes_.erase(key) > 0) core_.NodeLost(NodeKey(key), absl::UnavailableError("chosen"), now_);
    Take();
  }
  void Submit() {
    RequestInput input;
    const std::string id = absl::StrCat("r", random_.Below(8));
    input.id = RequestId(id);
    std::vector<TokenId> prompt;
    for (uint64_t i = 1 + random_.Below(60); i > 0; --i) {
      prompt.push_back(static_cast<TokenId>(random_.Below(3)));
    }
    input.prompt = std::move(prompt);
    input.stop.Edit().max_tokens = 1 + static_cast<int32_t>(random_.Below(12));
    input.eos_token_ids = {999};
    input.sequences = random_.Below(4) == 0 ? 1 + static_cast<int32_t>(random_.Below(3)) : 1;
    AddWishes(input);
    const int32_t sequences = input.sequences;
    if (!core_.Submit(std::move(input), now_).ok()) return;
    submitted_.insert(id);
    open_[id] = std::vector<int>(static_cast<size_t>(sequences), 0);
  }
  // What some requests ask for, within the ranges that a front end lets through.
  void AddWishes(RequestInput& input) {
    if (random_.Below(4) == 0) input.priority = static_cast<int32_t>(random_.Below(5)) - 2;
    if (random_.Below(4) == 0) input.cache_salt = "salt";
    if (random_.Below(6) == 0) input.prompt_logprobs = static_cast<int32_t>(random_.Below(3));
    if (random_.Below(8) == 0) input.answer_deadline = absl::Milliseconds(random_.Below(2000));
    if (random_.Below(4) == 0) {
      auto tier = std::make_shared<ServiceTier>();
      tier->name = "goals";
      tier->ttft_slo = absl::Milliseconds(random_.Below(500));
      tier->gap_slo = absl::Milliseconds(random_.Below(20));
      tier->priority = static_cast<int32_t>(random_.Below(3));
      if (random_.Below(2) == 0) tier->late = LatePolicy::kRefuse;
      input.tier = std::move(tier);
    }
    if (random_.Below(6) != 0) return;
    input.beams = BeamParams{.width = 1 + static_cast<int32_t>(random_.Below(4)),
                             .early_stopping = random_.Below(2) == 0};
    input.sequences = std::min(input.sequences, input.beams->width);
  }
  void End() {
    const RequestId id(absl::StrCat("r", random_.Below(8)));
    const auto reason =
        random_.Below(2) == 0 ? request::FinishReason::kStop : request::FinishReason::kAborted;
    if (random_.Below(2) == 0) return core_.Finish(id, reason, now_);
    core_.FinishSequence(id, odd_.Int(3), reason, now_);
  }

  void Speak() {
    if (nodes_.empty()) return Join();
    const uint64_t key =
        *std::next(nodes_.begin(), static_cast<ptrdiff_t>(random_.Below(nodes_.size())));
    v1::NodeMessage message;
    for (uint64_t i = random_.Below(4); i > 0; --i) {
      v1::NodeEvent& event = *message.add_events();
      AddEvent(key, event);
      ++EventsSent()[event.event_case()];
    }
    if (random_.Below(4) == 0) AddLoad(message);
    core_.OnNodeMessage(NodeKey(key), message, now_);
  }
  void AddLoad(v1::NodeMessage& message) {
    v1::NodeLoad& load = *message.mutable_load();
    load.set_blocks_total(60);
    load.set_blocks_used(odd_.Int(60));
    load.set_blocks_free(odd_.Int(60));
    load.set_blocks_lent(odd_.Int(20));
    for (uint64_t i = random_.Below(3); i > 0; --i) {
      v1::Debt& debt = *load.add_debts();
      debt.set_creditor_node_id(NodeName());
      debt.set_blocks(static_cast<int64_t>(odd_.Number(9)));
      debt.set_loans(static_cast<int64_t>(odd_.Number(3)));
    }
    message.set_blocks_lendable(static_cast<int64_t>(odd_.Number(40)));
  }
  // Mostly about a leg that the node has received.
  v1::Leg Leg(uint64_t key) {
    const auto it = legs_.find(key);
    if (it != legs_.end() && random_.Below(8) != 0) {
      return it
          ->second[it->second.size() - 1 - random_.Below(std::min<size_t>(it->second.size(), 4))];
    }
    v1::Leg leg;
    leg.set_request_id(absl::StrCat("r", random_.Below(8)));
    leg.set_sequence_index(odd_.Int(3));
    leg.set_attempt(static_cast<uint32_t>(odd_.Number(4)));
    leg.set_number(leg.attempt());  // a sequence's number, or no sequence's
    return leg;
  }
  // Mostly the one that the client waits for.
  void AddToken(const v1::Leg& leg, v1::GeneratedToken& token) {
    const auto it = open_.find(leg.request_id());
    const size_t sequence = static_cast<size_t>(leg.sequence_index());
    const bool known = it != open_.end() && sequence < it->second.size();
    token.set_index(known && random_.Below(4) != 0 ? it->second[sequence] : odd_.Int(12));
    token.set_token_id(token.index() < 12 && random_.Below(8) != 0 ? 500 + token.index()
                                                                   : odd_.Int(kVocabulary));
    token.set_logprob(static_cast<float>(odd_.Real()));
  }
  static void AsLists(v1::TokensGenerated& tokens) {
    v1::TokensGenerated::Plain& plain = *tokens.mutable_plain();
    plain.add_leg_numbers(tokens.steps(0).leg().number());
    plain.add_leg_attempts(tokens.steps(0).leg().attempt());
    plain.add_token_ids(tokens.steps(0).tokens(0).token_id());
    plain.add_indices(tokens.steps(0).tokens(0).index());
    // One list too short: such a stream ends.
    if (tokens.steps(0).leg().attempt() != 3) plain.add_logprobs(0);
    tokens.clear_steps();
  }
  std::string Hash() {
    return std::string(random_.Below(16) == 0 ? random_.Below(40) : 16,
                       static_cast<char>('a' + random_.Below(20)));
  }
  void AddReserved(uint64_t key, v1::Reserved& reserved) {
    *reserved.mutable_leg() = Leg(key);
    reserved.set_lease_id(odd_.Number(6));
    reserved.set_epoch(static_cast<uint32_t>(odd_.Number(3)));
    reserved.set_cached_tokens(odd_.Int(60));
    reserved.set_received_tokens(odd_.Int(60));
    reserved.set_computes_locally(random_.Below(2) == 0);
  }
  void AddHashes(std::string& hashes) {
    for (uint64_t i = random_.Below(8); i > 0; --i) hashes += Hash();
  }
  std::string NodeName() { return absl::StrCat("n", random_.Below(kNodes)); }
  void AddScored(uint64_t key, v1::PromptScored& scored) {
    *scored.mutable_leg() = Leg(key);
    scored.set_first_index(odd_.Int(8));
    for (uint64_t i = random_.Below(8); i > 0; --i) {
      v1::GeneratedToken& token = *scored.add_tokens();
      token.set_index(odd_.Int(60));
      token.set_token_id(odd_.Int(kVocabulary));
      token.set_logprob(static_cast<float>(odd_.Real()));
    }
  }
  void AddWanted(v1::BlocksWanted& wanted) {
    wanted.set_from_node_id(NodeName());
    wanted.set_from_incarnation(odd_.Number(6));
    wanted.set_lease_id(odd_.Number(6));
    wanted.set_epoch(static_cast<uint32_t>(odd_.Number(3)));
    AddHashes(*wanted.mutable_hashes());
    wanted.set_fetch(random_.Below(2) == 0);
    wanted.set_lent(random_.Below(4) == 0);
    for (uint64_t i = random_.Below(kBlockTokens + 1); i > 0; --i) wanted.add_tokens_after(1);
  }
  // Mostly with as many hashes as its units have blocks.
  void AddLoanWanted(v1::LoanWanted& wanted) {
    wanted.set_loan(odd_.Number(8));
    wanted.set_first_unit(odd_.Int(4));
    wanted.set_units(odd_.Int(5));
    for (int i = std::clamp(wanted.units(), 0, 4); i > 0; --i) *wanted.mutable_hashes() += Hash();
    for (uint64_t i = random_.Below(3); i > 0; --i) wanted.add_avoid_node_ids(NodeName());
    if (random_.Below(4) == 0) {
      wanted.set_from_node_id(NodeName());
      wanted.set_from_incarnation(odd_.Number(6));
    }
    if (random_.Below(2) == 0) wanted.set_arrived_us(static_cast<int64_t>(odd_.Number(9)));
    if (random_.Below(4) == 0) wanted.set_prefer_node_id(NodeName());
    wanted.set_lost(random_.Below(4) == 0);
  }
  // Mostly about the loan that the node was asked for last.
  void AddLoanOffered(uint64_t key, v1::LoanOffered& offered) {
    const auto asked = asked_to_lend_.find(key);
    const bool known = asked != asked_to_lend_.end() && random_.Below(8) != 0;
    offered.set_debtor_node_id(known ? asked->second.debtor_node_id() : NodeName());
    offered.set_debtor_incarnation(known ? asked->second.debtor_incarnation() : odd_.Number(6));
    offered.set_loan(known ? asked->second.loan() : odd_.Number(8));
    if (random_.Below(3) == 0) offered.mutable_status()->set_code(odd_.Int(17));
    offered.set_units(known && random_.Below(4) != 0 ? asked->second.units() : odd_.Int(5));
    offered.set_held_blocks(odd_.Int(5));
    offered.set_lease_id(odd_.Number(6));
    offered.set_epoch(static_cast<uint32_t>(odd_.Number(3)));
  }
  void AddMemoryEvent(uint64_t key, v1::NodeEvent& event) {
    switch (random_.Below(5)) {
      case 0:
        AddHashes(*event.mutable_blocks_offered()->mutable_hashes());
        return event.mutable_blocks_offered()->set_deadline_s(odd_.Real());
      case 1:
        return AddWanted(*event.mutable_blocks_wanted());
      case 2:
      case 3:
        return AddLoanWanted(*event.mutable_loan_wanted());
      default:
        return AddLoanOffered(key, *event.mutable_loan_offered());
    }
  }
  void AddEvent(uint64_t key, v1::NodeEvent& event);
  void Take();

  fuzz::FuzzRandom random_;
  fuzz::OddCommands odd_;
  const std::unique_ptr<Random> core_random_;
  RouterCore core_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  uint64_t next_key_ = 0;
  std::set<uint64_t> nodes_;
  std::map<uint64_t, std::vector<v1::Leg>> legs_;     // by node, as commanded
  std::map<uint64_t, v1::LendBlocks> asked_to_lend_;  // by node, the last one
  std::set<std::string> submitted_;
  std::map<std::string, std::vector<int>> open_;  // tokens seen, or -1 after the end, by sequence
};

void Driver::AddEvent(uint64_t key, v1::NodeEvent& event) {
  switch (random_.Below(18)) {
    case 0:
    case 1:
      return AddReserved(key, *event.mutable_reserved());
    case 2:
      *event.mutable_refused()->mutable_leg() = Leg(key);
      event.mutable_refused()->mutable_status()->set_code(odd_.Int(17));
      return;
    case 3:
    case 4:
    case 5:
    case 6: {
      auto& step = *event.mutable_tokens()->add_steps();
      *step.mutable_leg() = Leg(key);
      for (uint64_t i = random_.Below(4); i > 0; --i) AddToken(step.leg(), *step.add_tokens());
      // Nodes of earlier releases name the request, later ones its number.
      if (step.tokens_size() == 1) AsLists(*event.mutable_tokens());
      return;
    }
    case 7:
      *event.mutable_prefill_finished()->mutable_leg() = Leg(key);
      event.mutable_prefill_finished()->mutable_tokens()->set_computed(odd_.Int(60));
      return;
    case 8:
      *event.mutable_installed()->mutable_leg() = Leg(key);
      event.mutable_installed()->set_kv_transfer_ms(odd_.Real());
      if (random_.Below(2) == 0) {
        AddToken(event.installed().leg(), *event.mutable_installed()->mutable_first_token());
      }
      return;
    case 9:
      *event.mutable_leg_finished()->mutable_leg() = Leg(key);
      event.mutable_leg_finished()->set_reason(static_cast<v1::FinishReason>(odd_.Int(6)));
      event.mutable_leg_finished()->set_output_tokens(odd_.Int(13));
      return;
    case 10:
      *event.mutable_leg_failed()->mutable_leg() = Leg(key);
      event.mutable_leg_failed()->mutable_status()->set_code(odd_.Int(17));
      event.mutable_leg_failed()->set_sender_side(random_.Below(2) == 0);
      event.mutable_leg_failed()->set_epoch(static_cast<uint32_t>(odd_.Number(3)));
      return;
    case 11:
      return AddHashes(*event.mutable_blocks_stored()->mutable_hashes());
    case 12:
      return AddHashes(*event.mutable_blocks_removed()->mutable_hashes());
    case 13:
      if (random_.Below(8) == 0) event.mutable_draining();
      return;
    case 14:
      return AddScored(key, *event.mutable_prompt_scored());
    default:
      return AddMemoryEvent(key, event);
  }
}

void Driver::Take() {
  const RouterActions actions = core_.TakeActions();
  for (const auto& [key, command] : actions.commands) {
    if (nodes_.count(key.value()) == 0) Die("a command to a node that is gone");
    if (command.has_start_decode()) legs_[key.value()].push_back(command.start_decode().leg());
    if (command.has_prefill()) legs_[key.value()].push_back(command.prefill().leg());
    if (command.has_lend_blocks()) asked_to_lend_[key.value()] = command.lend_blocks();
  }
  for (const auto& [id, event] : actions.client_events) {
    const auto it = open_.find(id.value());
    if (it == open_.end()) Die("an event after the end");
    std::vector<int>& seen = it->second;
    if (const auto* tokens = std::get_if<TokensReady>(&event)) {
      int& count = seen.at(static_cast<size_t>(tokens->sequence_index));
      for (const v1::GeneratedToken& token : tokens->tokens) {
        if (count < 0 || token.index() != count) Die("a token out of order, or after the end");
        if (token.token_id() < 0 || token.token_id() >= kVocabulary)
          Die("a token of no vocabulary");
        ++count;
      }
    } else if (const auto* done = std::get_if<SequenceDone>(&event)) {
      int& count = seen.at(static_cast<size_t>(done->sequence_index));
      if (count < 0) Die("a sequence ended twice");
      if (done->usage.output_tokens() != count) Die("the usage is wrong");
      count = -1;
      if (done->last) open_.erase(it);
    } else if (std::holds_alternative<RequestFailed>(event)) {
      open_.erase(it);
    }
  }
  for (const auto& disconnect : actions.disconnects) {
    nodes_.erase(disconnect.first.value());
    legs_.erase(disconnect.first.value());
    asked_to_lend_.erase(disconnect.first.value());
  }
}

}  // namespace
}  // namespace tandem::router

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::SetLogLevel(tandem::LogLevel::kError);
  tandem::fuzz::Bytes bytes{data, size};
  tandem::router::Driver driver(bytes);
  while (!bytes.used_up()) driver.Live();
  driver.Wind();
  return 0;
}

// For standalone_main.cc: the kinds of event that no input has sent.
extern "C" const char* FuzzTargetMissed() {
  static auto* const missed = new std::string();
  const auto& oneof = *tandem::v1::NodeEvent::descriptor()->oneof_decl(0);
  for (int i = 0; i < oneof.field_count(); ++i)
    if (tandem::router::EventsSent()[oneof.field(i)->number()] == 0)
      absl::StrAppend(missed, missed->empty() ? "" : ", ", std::string(oneof.field(i)->name()));
  return missed->c_str();
}
