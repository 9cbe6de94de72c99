#include "common/guided/constraint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/guided/trial.h"

namespace tandem::guided {

Constraint::Constraint(Program program, std::shared_ptr<const Vocabulary> vocabulary)
    : program_(std::move(program)),
      vocabulary_(std::move(vocabulary)),
      graph_(std::make_shared<StateGraph>(program_)) {}

Constraint::Place Constraint::Start() {
  absl::MutexLock lock(&mutex_);
  return {graph_, graph_->start()};
}

void Constraint::Refresh(Place& place) {
  if (graph_->bytes() > kGraphBytesCached) {
    graph_ = std::make_shared<StateGraph>(program_);
    masks_.clear();
    uses_.clear();
  }
  if (place.graph == graph_) return;
  place.config = graph_->Import(place.graph->Key(place.config));
  place.graph = graph_;
}

bool Constraint::Advance(Place& place, absl::string_view bytes) {
  absl::MutexLock lock(&mutex_);
  Refresh(place);
  ConfigId config = place.config;
  for (const char byte : bytes) config = graph_->Step(config, static_cast<uint8_t>(byte));
  if (config == kDeadConfig) return false;
  place.config = config;
  return true;
}

absl::StatusOr<std::shared_ptr<const TokenMask>> Constraint::Mask(Place& place) {
  absl::MutexLock lock(&mutex_);
  Refresh(place);
  const ConfigId config = graph_->Representative(place.config);
  if (const auto it = masks_.find(config); it != masks_.end()) {
    uses_.splice(uses_.begin(), uses_, it->second.use);
    return it->second.mask;
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const TokenMask> mask,
                   ComputeMask(*graph_, config, *vocabulary_));
  CacheMask(config, mask);
  return mask;
}

ConfigId Constraint::StepToMostAmbiguous(StateGraph& graph, ConfigId config) {
  ConfigId most = kDeadConfig;
  for (const uint8_t byte : graph.DistinctBytes(config)) {
    const ConfigId next = graph.Step(config, byte);
    if (graph.Readings(next) > graph.Readings(most)) most = next;
  }
  return most;
}

absl::Status Constraint::Try() {
  RETURN_IF_ERROR(FollowMostAmbiguous());
  return TryPlaces(program_, *vocabulary_).status();
}

absl::Status Constraint::FollowMostAmbiguous() {
  Place place = Start();
  uint64_t work = 0;
  for (int i = 0;; ++i) {
    if ((i & (i - 1)) == 0) RETURN_IF_ERROR(Mask(place).status());  // after 0, 1, 2, 4, 8, … bytes
    if (i == kTryBytesMax || work > kTryWorkMax) return absl::OkStatus();
    absl::MutexLock lock(&mutex_);
    Refresh(place);
    const uint64_t before = graph_->work();
    const int64_t overflows = graph_->overflows();
    const ConfigId next = StepToMostAmbiguous(*graph_, place.config);
    work += graph_->work() - before;
    if (graph_->overflows() > overflows) {
      return absl::InvalidArgumentError(
          absl::StrCat("guided: the constraint is too ambiguous: after ", i,
                       " bytes a text can be ", "read in more than ", kThreadsMax, " ways"));
    }
    if (next == kDeadConfig) return absl::OkStatus();
    place.config = next;
  }
}

void Constraint::CacheMask(ConfigId config, std::shared_ptr<const TokenMask> mask) {
  const size_t kept_max = std::max<size_t>(8, kMaskBytesMax / (4 * vocabulary_->mask_words()));
  while (masks_.size() >= kept_max) {
    masks_.erase(uses_.back());
    uses_.pop_back();
  }
  uses_.push_front(config);
  masks_.emplace(config, CachedMask{std::move(mask), uses_.begin()});
}

bool Constraint::MayEnd(const Place& place) {
  absl::MutexLock lock(&mutex_);
  return place.graph->MayEnd(place.config);
}

bool Constraint::CanContinue(const Place& place) {
  absl::MutexLock lock(&mutex_);
  return place.graph->CanContinue(place.config);
}

size_t Constraint::bytes() const {
  absl::MutexLock lock(&mutex_);
  return program_.states.size() * sizeof(Program::State) +
         program_.bytes.size() * sizeof(ByteEdge) + program_.calls.size() * sizeof(CallEdge) +
         graph_->bytes() + masks_.size() * vocabulary_->mask_words() * 4;
}

Matcher::Matcher(std::shared_ptr<Constraint> constraint, EndRules rules)
    : constraint_(std::move(constraint)), rules_(std::move(rules)), place_(constraint_->Start()) {}

bool Matcher::IsEnd(TokenId token) const {
  return std::find(rules_.eos_token_ids.begin(), rules_.eos_token_ids.end(), token) !=
         rules_.eos_token_ids.end();
}

bool Matcher::Allows(TokenId token) const {
  return mask_known_ && ((mask_->words[static_cast<size_t>(token) / 32] >> (token % 32)) & 1) != 0;
}

absl::Status Matcher::Advance(TokenId token) {
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("guided: token ", token, " as output ", tokens_, " ", why));
  };
  if (ended_) return refuse("follows the token that ended the answer");
  if (IsEnd(token)) {
    if (!may_end()) return refuse("ends the answer before the constraint is satisfied");
    ended_ = true;
  } else {
    const absl::string_view bytes = constraint_->vocabulary().TokenBytes(token);
    if (bytes.empty() || !constraint_->Advance(place_, bytes)) {
      return refuse(absl::StrCat("(\"", absl::CHexEscape(bytes), "\") ",
                                 Allows(token) ? "makes the constraint too ambiguous to follow"
                                               : "breaks the constraint"));
    }
  }
  ++tokens_;
  mask_known_ = false;
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const uint32_t>> Matcher::Allowed() {
  if (mask_known_) return absl::MakeConstSpan(mask_->words);
  ASSIGN_OR_RETURN(mask_, constraint_->Mask(place_));
  const bool ends_allowed = !rules_.ignore_eos && tokens_ + 1 >= rules_.min_tokens;
  if (may_end() && !rules_.eos_token_ids.empty() && (ends_allowed || mask_->count == 0)) {
    auto with_ends = std::make_shared<TokenMask>(*mask_);
    for (const TokenId token : rules_.eos_token_ids) {
      if (token < 0 || token >= constraint_->vocabulary().size()) continue;
      with_ends->words[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
      ++with_ends->count;
    }
    mask_ = std::move(with_ends);
  }
  if (mask_->count == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "guided: after ", tokens_, " tokens no token of the vocabulary fits the constraint"));
  }
  mask_known_ = true;
  return absl::MakeConstSpan(mask_->words);
}

bool Matcher::complete() { return may_end() && !constraint_->CanContinue(place_); }
bool Matcher::may_end() { return constraint_->MayEnd(place_); }

}  // namespace tandem::guided
