#include "sim/sim_clients.h"

#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "common/runtime/random.h"

namespace tandem::sim {
namespace {

// A client that receives nothing for this long asks another router.
constexpr absl::Duration kPatience = absl::Seconds(3);
constexpr absl::Duration kRetryDelay = absl::Milliseconds(40);

absl::string_view NameOf(const router::ClientEvent& event) {
  if (std::holds_alternative<router::TokensReady>(event)) return "a token";
  if (std::holds_alternative<router::SequenceDone>(event)) return "an end";
  return std::holds_alternative<router::RequestFailed>(event) ? "a failure" : "a score";
}

}  // namespace

void SimClients::Add(const SimRequest& request, const engine::HashEngineOptions& engine) {
  engine_ = engine;
  auto client = std::make_unique<Client>();
  client->request = request;
  Prepare(*client, static_cast<int>(clients_.size()));
  client->router = static_cast<int>(request.router);
  Client* raw = client.get();
  clients_.push_back(std::move(client));
  world_.After(absl::Microseconds(request.at_us), [this, raw] { Ask(*raw); });
  if (request.cancel_us > 0)
    world_.After(absl::Microseconds(request.at_us + request.cancel_us),
                 [this, raw] { Cancel(*raw); });
}

void SimClients::Prepare(Client& client, int index, std::vector<TokenId> prompt) {
  client.input = ToInput(client.request, index);
  if (!prompt.empty()) client.input.prompt = std::move(prompt);
  client.checkers.clear();
  OracleAnswers oracle = Oracle(engine_, client.input);
  client.sequences = std::move(oracle.sequences);
  for (OracleAnswer& answer : oracle.answers) {
    const size_t index = client.checkers.size();
    client.checkers.emplace_back(log_, absl::StrCat(client.input.id.value(), "/", index),
                                 std::move(answer));
  }
}

void SimClients::AskForAnother(Client& client) {
  if (client.request.again_seed == 0) return;
  int index = 0;
  if (!absl::SimpleAtoi(absl::string_view(client.input.id.value()).substr(1), &index)) return;
  client.earlier = WholeSequences(client.input.id.value());
  client.request.own_seed = client.request.again_seed;
  client.request.again_seed = 0;
  ++counts_.ids_reused;
  Prepare(client, index);
  client.asking = client.settled = false;
  client.answered_by = nullptr;
  if (log_.timeline()) log_.Note(-1, absl::StrCat(client.input.id.value(), " has another prompt"));
  Ask(client);
}

void SimClients::GoOn(Client& client, int index) {
  const int64_t added = std::exchange(client.request.turn_tokens, 0);
  if (added == 0) return;
  std::vector<TokenId> prompt = client.sequences.front();
  const auto random = NewSeededRandom(static_cast<uint64_t>(client.request.own_seed) + 1);
  for (int64_t i = 0; i < added; ++i) prompt.push_back(static_cast<TokenId>(random->Below(256)));
  client.earlier = WholeSequences(client.input.id.value());
  ++counts_.ids_reused;
  ++counts_.turns;
  Prepare(client, index, std::move(prompt));
  client.asking = client.settled = false;
  client.answered_by = nullptr;
  if (log_.timeline()) log_.Note(-1, absl::StrCat(client.input.id.value(), " goes on"));
  Ask(client);
}

void SimClients::AskLater(Client& client, absl::Duration delay, bool elsewhere) {
  client.asking = false;
  ++client.asked;
  ++counts_.asked_again;
  if (elsewhere) client.router = (client.router + 1) % static_cast<int>(routers_.size());
  world_.After(delay + world_.RandomDelay(delay), [this, &client] { Ask(client); });
}

void SimClients::Ask(Client& client) {
  if (client.settled || client.asking) return;
  SimRouter& router = *routers_[client.router];
  if (!router.alive()) return AskLater(client, kRetryDelay, /*elsewhere=*/true);
  client.asking = true;
  client.last_news = world_.now();
  for (StreamChecker& checker : client.checkers) checker.OnAsked();
  const uint64_t asked = ++client.asked;
  if (log_.timeline())
    log_.Note(-1, absl::StrCat(client.input.id.value(), " asks ", router.name()));
  router.Post(router.CallDelay(), [this, &client, &router, asked] {
    if (client.settled || client.asked != asked) return;
    const absl::Status status = router.Submit(client.input);
    if (status.ok() || client.asked != asked) return;
    if (status.code() == absl::StatusCode::kInvalidArgument)
      log_.Violate("stream",
                   absl::StrCat(client.input.id.value(), " was refused: ", status.ToString()));
    WasRefused(client, status);
    AskLater(client, kRetryDelay, /*elsewhere=*/false);
  });
}

bool SimClients::WasRefused(Client& client, const absl::Status& status) {
  if (client.request.refuse_late == 0 || client.input.tier == nullptr ||
      !absl::IsResourceExhausted(status))
    return false;
  client.input.tier = nullptr;
  ++counts_.refused;
  return true;
}

void SimClients::Cancel(Client& client) {
  if (client.settled) return;
  client.settled = true;
  ++counts_.cancelled;
  if (log_.timeline()) log_.Note(-1, absl::StrCat(client.input.id.value(), " disconnects"));
  SimRouter& router = *routers_[client.router];
  if (!client.asking) return AskForAnother(client);
  router.Post(router.CallDelay(), [this, &router, &client] {
    GiveUp(router, client);
    AskForAnother(client);
  });
}

void SimClients::GiveUp(SimRouter& router, Client& client) {
  client.gives_up = true;
  router.Finish(client.input.id);
  client.gives_up = false;
}

void SimClients::OnEvent(SimRouter& router, const RequestId& id, const router::ClientEvent& event) {
  int index = 0;
  if (!absl::SimpleAtoi(absl::string_view(id.value()).substr(1), &index)) return;
  Client& client = *clients_[index];
  if (client.settled && client.answered_by == &router)
    return log_.Violate("stream", absl::StrCat(id.value(), ": ", NameOf(event),
                                               " came after the request's last end"));
  // A client that left, or now asks another router, ignores this one's events.
  if (client.settled || !client.asking || routers_[client.router] != &router) return;
  client.last_news = world_.now();
  if (const auto* tokens = std::get_if<router::TokensReady>(&event)) {
    for (const v1::GeneratedToken& token : tokens->tokens)
      client.checkers.at(tokens->sequence_index).OnToken(token.index(), token.token_id());
  } else if (const auto* done = std::get_if<router::SequenceDone>(&event)) {
    client.checkers.at(done->sequence_index)
        .OnDone(done->reason, done->usage.output_tokens(), client.gives_up);
    if (!done->last) return;
    if (log_.timeline()) log_.Note(-1, absl::StrCat(id.value(), " is done"));
    // The router aborted this client's earlier request: not the end of this one. Any other abort is
    // a violation, and the client asks again.
    if (done->reason == request::FinishReason::kAborted)
      return AskLater(client, kRetryDelay, /*elsewhere=*/false);
    client.settled = true;
    client.answered_by = &router;
    client.answered_us = log_.now_us();
    ++counts_.done;
    GoOn(client, index);
  } else if (const auto* failed = std::get_if<router::RequestFailed>(&event)) {
    const absl::Status& status = failed->status;
    for (StreamChecker& checker : client.checkers) checker.OnFailed(status);
    if (log_.timeline()) log_.Note(-1, absl::StrCat(id.value(), " failed: ", status.ToString()));
    if (!WasRefused(client, status)) ++counts_.failed;
    AskLater(client, kRetryDelay, /*elsewhere=*/true);
  }
}

void SimClients::OnRouterCrash(const SimRouter& router) {
  for (const auto& client : clients_)
    if (client->asking && !client->settled && routers_[client->router] == &router)
      AskLater(*client, kRetryDelay, /*elsewhere=*/true);
}

void SimClients::Tick() {
  for (const auto& client : clients_) {
    if (!client->asking || client->settled || world_.now() - client->last_news < kPatience)
      continue;
    SimRouter& router = *routers_[client->router];
    router.Post(router.CallDelay(), [this, &router, &client = *client] { GiveUp(router, client); });
    AskLater(*client, kRetryDelay, /*elsewhere=*/true);
  }
}

bool SimClients::AllSettled() const {
  for (const auto& client : clients_)
    if (!client->settled) return false;
  return true;
}

std::vector<std::string> SimClients::Unsettled() const {
  std::vector<std::string> ids;
  for (const auto& client : clients_)
    if (!client->settled) ids.push_back(client->input.id.value());
  return ids;
}

std::vector<std::vector<TokenId>> SimClients::WholeSequences(const std::string& request_id) const {
  int index = 0;
  if (!absl::SimpleAtoi(absl::string_view(request_id).substr(1), &index)) return {};
  const Client& client = *clients_[index];
  std::vector<std::vector<TokenId>> sequences = client.earlier;
  sequences.insert(sequences.end(), client.sequences.begin(), client.sequences.end());
  return sequences;
}

}  // namespace tandem::sim
