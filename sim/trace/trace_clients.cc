#include "sim/trace/trace_clients.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "sim/trace/trace_prompt.h"

namespace tandem::sim {

void TraceClients::Start(std::vector<SimRouter*> routers, absl::Duration delay) {
  routers_ = std::move(routers);
  start_ = last_arrival_ = world_.now() + delay;
  for (const auto& tier : options_.service_mix.All())
    result_.tiers.push_back(TierResult{.name = tier->name});
  ReadNext();
}

void TraceClients::ReadNext() {
  auto next = source_.Next();
  status_ = next.status();
  absl::StatusOr<int64_t> ceiling = 0;
  if (next.ok() && next->has_value()) ceiling = ceiling_.OfNext(**next);
  if (!ceiling.ok()) status_ = ceiling.status();
  if (!status_.ok() || !next->has_value()) {
    exhausted_ = true;
    return;
  }
  last_arrival_ = start_ + (*next)->at;
  world_.After(std::max(absl::ZeroDuration(), last_arrival_ - world_.now()),
               [this, request = **std::move(next), ceiling = *ceiling] {
                 Send(request, ceiling);
                 ReadNext();
               });
}

void TraceClients::Send(const TraceRequest& request, int64_t ceiling_tokens) {
  const int64_t number = result_.requests++;
  router::RequestInput input;
  input.id = RequestId(absl::StrCat(number));
  input.prompt = MakePrompt(request, options_.block_tokens);
  input.sampling.Edit().seed = options_.seed + static_cast<uint64_t>(number);
  input.stop.Edit().max_tokens = static_cast<int32_t>(request.output_tokens);
  input.tier = options_.service_mix.TierOf(number);
  const std::shared_ptr<const router::ServiceTier> tier = input.tier;
  if (tier != nullptr) {
    input.priority = tier->priority;
    ++result_.TierNamed(tier->name).requests;
  }
  Running& running = running_[number];
  running.arrived = world_.now();
  running.ceiling_tokens = ceiling_tokens;
  running.tier = tier;
  SimRouter& router = *routers_[static_cast<size_t>(number) % routers_.size()];
  const absl::Status status = router.Submit(std::move(input));
  if (status.ok()) return;
  running_.erase(number);
  ++result_.refused;
  OnError(tier, status);
}

void TraceClients::OnError(const std::shared_ptr<const router::ServiceTier>& tier,
                           const absl::Status& status) {
  if (result_.first_error.empty()) result_.first_error = status.ToString();
  if (tier != nullptr && absl::IsResourceExhausted(status)) ++result_.TierNamed(tier->name).refused;
}

void TraceClients::CountTier(const Running& request) {
  TierResult& result = result_.TierNamed(request.tier->name);
  ++result.answered;
  result.ttft.Add(request.ttft);
  result.itl.AddAll(request.gaps_ns);
  const int64_t gaps_ns =
      std::accumulate(request.gaps_ns.begin(), request.gaps_ns.end(), int64_t{0});
  const bool in_time = request.tier->InTime(request.ttft, absl::Nanoseconds(gaps_ns),
                                            static_cast<int64_t>(request.gaps_ns.size()));
  result.in_time += in_time ? 1 : 0;
}

void TraceClients::OnEvent(const RequestId& id, const router::ClientEvent& event) {
  int64_t number = 0;
  const std::string& text = id.value();
  if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc()) return;
  const auto found = running_.find(number);
  if (found == running_.end()) return;
  if (const auto* tokens = std::get_if<router::TokensReady>(&event))
    return OnTokens(found->second, tokens->tokens.size());
  if (const auto* done = std::get_if<router::SequenceDone>(&event)) {
    OnDone(found->second, *done);
  } else if (const auto* failed = std::get_if<router::RequestFailed>(&event)) {
    ++result_.failed;
    OnError(found->second.tier, failed->status);
  } else {
    return;
  }
  running_.erase(found);
}

void TraceClients::OnTokens(Running& request, size_t count) {
  if (count == 0) return;
  const absl::Time now = world_.now();
  if (!request.last_token.has_value()) {
    request.ttft = now - request.arrived;
    --count;
  }
  for (size_t i = 0; i < count; ++i) {  // tokens that come together have no gap between them
    const absl::Duration gap =
        i == 0 && request.last_token ? now - *request.last_token : absl::ZeroDuration();
    request.gaps_ns.push_back(absl::ToInt64Nanoseconds(gap));
  }
  request.last_token = now;
}

void TraceClients::OnDone(const Running& request, const router::SequenceDone& done) {
  ++result_.answered;
  result_.output_tokens += done.usage.output_tokens();
  result_.ttft.Add(request.ttft);
  result_.e2e.Add(world_.now() - request.arrived);
  result_.itl.AddAll(request.gaps_ns);
  if (request.tier != nullptr) CountTier(request);
  PromptSources& sources = result_.sources;
  sources.prompt += done.usage.prompt_tokens();
  sources.ceiling += request.ceiling_tokens;
  const bool local = done.route.prefill_node().empty();
  (local ? sources.decode_cache : sources.prefill_cache) += done.usage.cached_tokens();
  const v1::TokensBySource& tokens =
      local ? done.route.decode_tokens() : done.route.prefill_tokens();
  sources.host_memory += tokens.from_host_memory();
  sources.disk += tokens.from_disk();
  sources.fetched += tokens.fetched();

  bool good =
      options_.objectives.ttft == absl::ZeroDuration() || request.ttft <= options_.objectives.ttft;
  if (options_.objectives.itl > absl::ZeroDuration() && !request.gaps_ns.empty()) {
    std::vector<int64_t> gaps = request.gaps_ns;
    const size_t rank = (gaps.size() * 99 + 99) / 100 - 1;  // nearest rank
    std::nth_element(gaps.begin(), gaps.begin() + static_cast<ptrdiff_t>(rank), gaps.end());
    good = good && gaps[rank] <= absl::ToInt64Nanoseconds(options_.objectives.itl);
  }
  result_.good += good ? 1 : 0;
  result_.virtual_s = absl::ToDoubleSeconds(world_.now() - start_);
}

void TraceClients::GiveUp() {
  result_.unfinished += static_cast<int64_t>(running_.size());
  running_.clear();
}

}  // namespace tandem::sim
