#include "tests/bench/http_front_end/scripted_nodes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/node/node_ledger.h"

namespace tandem::bench {
namespace {

constexpr char kNumericsId[] = "scripted";
// Long enough that capacity is never what is measured.
constexpr int64_t kBlocksRegistered = 1 << 24;
constexpr absl::Duration kHeartbeat = absl::Milliseconds(500);

v1::Registration NewRegistration(const v1::GetModelResponse& model, bool decode, int block_tokens) {
  v1::Registration registration;
  registration.set_node_id(decode ? "scripted-decode" : "scripted-prefill");
  registration.set_incarnation(1);
  registration.set_role(decode ? v1::NODE_ROLE_DECODE : v1::NODE_ROLE_PREFILL);
  registration.set_model_name(model.name());
  registration.set_model_fingerprint(model.fingerprint());
  registration.set_numerics_id(kNumericsId);
  registration.set_context_tokens(model.context_tokens());
  registration.set_vocab_size(model.vocab_size());
  registration.set_block_tokens(block_tokens);
  registration.set_num_blocks(kBlocksRegistered);
  registration.set_kv_bytes_per_block(1024);
  registration.set_transfer_address("none");
  registration.set_host("scripted");
  registration.set_version("bench");
  registration.set_max_sequences(65536);
  registration.set_block_names(kv::BlockKey().names());
  return registration;
}

}  // namespace

std::unique_ptr<ScriptedNodes> ScriptedNodes::Start(const std::string& fleet_address,
                                                    const ScriptedOptions& options) {
  auto nodes = std::make_unique<ScriptedNodes>(fleet_address, options);
  nodes->decode_.client->Tick(absl::Now());
  nodes->prefill_.client->Tick(absl::Now());
  nodes->thread_ = Thread("steps", [raw = nodes.get()] { raw->RunSteps(); });
  return nodes;
}

ScriptedNodes::ScriptedNodes(const std::string& fleet_address, const ScriptedOptions& options)
    : options_(options) {
  decode_.client = rpc::FleetClient::Create(fleet_address, *this);
  prefill_.client = rpc::FleetClient::Create(fleet_address, *this);
}

ScriptedNodes::~ScriptedNodes() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.Join();
  decode_.client = nullptr;
  prefill_.client = nullptr;
}

void ScriptedNodes::OnConnected(rpc::FleetClient& client, uint64_t connection) {
  absl::MutexLock lock(&mutex_);
  Node& node = NodeOf(client);
  node.connection = connection;
  v1::NodeMessage message;
  *message.mutable_registration() =
      NewRegistration(options_.model, &node == &decode_, kBlockTokens);
  client.Send(connection, std::move(message));
}

void ScriptedNodes::OnDisconnected(rpc::FleetClient&, uint64_t, const absl::Status&) {}

void ScriptedNodes::OnMessage(rpc::FleetClient& client, uint64_t connection,
                              v1::RouterMessage message) {
  const absl::Time came = absl::Now();
  absl::MutexLock lock(&mutex_);
  v1::NodeMessage reply;
  std::vector<std::string> answered;
  for (const v1::NodeCommand& command : message.commands()) {
    if (command.has_start_decode()) {
      OnRun(command.start_decode(), reply);
      answered.push_back(command.start_decode().leg().request_id());
    }
    if (command.has_prefill()) {
      OnPrefill(command.prefill(), reply);
      answered.push_back(command.prefill().leg().request_id());
    }
    if (command.has_abort()) {
      absl::erase_if(running_, [&command](const auto& entry) {
        const v1::Leg& leg = entry.second.leg;
        return leg.request_id() == command.abort().leg().request_id() &&
               leg.attempt() == command.abort().leg().attempt();
      });
    }
  }
  // With keys the name begins with its tenant's.
  for (const std::string& id : answered) held_[id.substr(id.find('/') + 1)] += absl::Now() - came;
  if (reply.events_size() > 0) client.Send(connection, std::move(reply));
}

absl::Duration ScriptedNodes::TakeHeld(const std::string& request_id) {
  absl::MutexLock lock(&mutex_);
  const auto found = held_.find(request_id);
  if (found == held_.end()) return absl::ZeroDuration();
  const absl::Duration held = found->second;
  held_.erase(found);
  return held;
}

void ScriptedNodes::OnRun(const v1::StartDecode& run, v1::NodeMessage& reply) {
  const uint64_t lease = next_lease_++;
  Running& running = running_[lease];
  running.leg = run.leg();
  running.prompt_tokens = run.sequence().prompt_size();
  running.tokens_max = run.sequence().stop().max_tokens();
  const std::vector<TokenId> prompt(run.sequence().prompt().begin(), run.sequence().prompt().end());
  running.hashes = hasher_.Blocks(
      hasher_.Salt(options_.model.fingerprint(), kNumericsId, run.sequence().cache_salt()), prompt,
      kBlockTokens);
  v1::Reserved& reserved = *reply.add_events()->mutable_reserved();
  *reserved.mutable_leg() = run.leg();
  reserved.set_lease_id(lease);
  reserved.set_epoch(1);
}

void ScriptedNodes::OnPrefill(const v1::Prefill& prefill, v1::NodeMessage& reply) {
  const auto found = running_.find(prefill.lease_id());
  if (found == running_.end()) return;
  Running& running = found->second;
  node::AddToken(prefill.leg(), TokenAt(0), *reply.add_events()->mutable_tokens());
  v1::PrefillFinished& finished = *reply.add_events()->mutable_prefill_finished();
  *finished.mutable_leg() = prefill.leg();
  finished.mutable_tokens()->set_computed(running.prompt_tokens);
  Keep(prefill_, running.hashes, reply);

  v1::NodeMessage message;
  v1::Installed& installed = *message.add_events()->mutable_installed();
  *installed.mutable_leg() = running.leg;
  installed.mutable_tokens()->set_received(running.prompt_tokens);
  installed.mutable_prefill_tokens()->set_computed(running.prompt_tokens);
  installed.set_transport("none");
  *installed.mutable_first_token() = TokenAt(0);
  Keep(decode_, running.hashes, message);
  decode_.client->Send(decode_.connection, std::move(message));
  running.next_index = 1;
  running.generating = true;
}

void ScriptedNodes::Keep(Node& node, const std::vector<kv::BlockHash>& hashes,
                         v1::NodeMessage& message) {
  std::vector<kv::BlockHash> stored, removed;
  for (const kv::BlockHash& hash : hashes) {
    if (node.holds.emplace(hash, 1).second) {
      node.kept.push_back(hash);
      stored.push_back(hash);
    }
  }
  if (!stored.empty()) {
    message.add_events()->mutable_blocks_stored()->set_hashes(kv::PackHashes(stored));
  }
  while (static_cast<int64_t>(node.kept.size()) > options_.blocks) {
    removed.push_back(node.kept.front());
    node.holds.erase(node.kept.front());
    node.kept.pop_front();
  }
  if (!removed.empty()) {
    message.add_events()->mutable_blocks_removed()->set_hashes(kv::PackHashes(removed));
  }
}

v1::GeneratedToken ScriptedNodes::TokenAt(int32_t index) const {
  v1::GeneratedToken token;
  token.set_index(index);
  // Printable in every vocabulary served here: bytes of one, words or parts of words of the others.
  token.set_token_id(97 + index % 26);
  return token;
}

void ScriptedNodes::Step() {
  v1::NodeMessage message;
  v1::TokensGenerated tokens;
  v1::NodeMessage ends;
  ++steps_;
  for (auto it = running_.begin(); it != running_.end();) {
    Running& running = it->second;
    if (!running.generating || (it->first + steps_) % options_.turns != 0) {
      ++it;
      continue;
    }
    if (running.next_index < running.tokens_max) {
      node::AddToken(running.leg, TokenAt(running.next_index++), tokens);
    }
    if (running.next_index < running.tokens_max) {
      ++it;
      continue;
    }
    v1::LegFinished& finished = *ends.add_events()->mutable_leg_finished();
    *finished.mutable_leg() = running.leg;
    finished.set_reason(v1::FINISH_REASON_LENGTH);
    finished.set_output_tokens(running.next_index);
    running_.erase(it++);
  }
  const bool any = tokens.has_plain() || tokens.steps_size() > 0;
  if (!any && ends.events_size() == 0) return;
  if (any) *message.add_events()->mutable_tokens() = std::move(tokens);
  message.MergeFrom(ends);
  decode_.client->Send(decode_.connection, std::move(message));
}

void ScriptedNodes::RunSteps() {
  absl::Time heartbeat = absl::Now();
  absl::MutexLock lock(&mutex_);
  while (true) {
    mutex_.AwaitWithTimeout(absl::Condition(&stopping_), options_.step_time);
    if (stopping_) return;
    Step();
    if (absl::Now() < heartbeat) continue;
    heartbeat = absl::Now() + kHeartbeat;
    for (Node* node : {&decode_, &prefill_}) {
      v1::NodeMessage message;
      message.mutable_load()->set_blocks_total(kBlocksRegistered);
      message.mutable_load()->set_blocks_free(kBlocksRegistered);
      node->client->Send(node->connection, std::move(message));
    }
  }
}

}  // namespace tandem::bench
