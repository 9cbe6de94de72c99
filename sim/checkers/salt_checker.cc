#include "sim/checkers/salt_checker.h"

#include <algorithm>

namespace tandem::sim {

void SaltChecker::OnCommand(const v1::NodeCommand& command) {
  const bool run = command.has_start_decode();
  if (!run && !command.has_prefill()) return;
  const v1::Leg& leg = run ? command.start_decode().leg() : command.prefill().leg();
  const v1::SequenceSpec& sequence =
      run ? command.start_decode().sequence() : command.prefill().sequence();
  Given& given = given_[leg.request_id()][leg.sequence_index()];
  given.salt = sequence.cache_salt();
  given.prompt.assign(sequence.prompt().begin(), sequence.prompt().end());
  ++served_[sequence.cache_salt()][leg.request_id()];
}

// Requests that run on the other node have left blocks already: they count as served before.
void SaltChecker::OnAdopt(const SaltChecker& from) {
  for (const auto& [salt, requests] : from.served_)
    for (const auto& [request, times] : requests) served_[salt][request] += times + 1;
}

void SaltChecker::OnEvent(const v1::NodeEvent& event) {
  if (event.has_reserved())
    Check(event.reserved().leg(), event.reserved().cached_tokens());
  else if (event.has_prefill_finished())
    Check(event.prefill_finished().leg(), event.prefill_finished().tokens().cached());
}

void SaltChecker::Check(const v1::Leg& leg, int64_t cached_tokens) {
  if (cached_tokens == 0) return;
  const Given& given = given_[leg.request_id()][leg.sequence_index()];
  const std::vector<TokenId>& mine = given.prompt;
  for (const auto& [other, times] : served_[given.salt]) {
    if (other == leg.request_id() && times == 1) continue;  // it has left no block yet
    for (const std::vector<TokenId>& theirs : whole_sequences_(other))
      if (static_cast<int64_t>(theirs.size()) >= cached_tokens &&
          static_cast<int64_t>(mine.size()) >= cached_tokens &&
          std::equal(mine.begin(), mine.begin() + cached_tokens, theirs.begin()))
        return;
  }
  log_.Violate("salt",
               absl::StrCat(node_, ": ", leg.request_id(), " found ", cached_tokens,
                            " tokens cached that no request with its cache salt left here"));
}

}  // namespace tandem::sim
