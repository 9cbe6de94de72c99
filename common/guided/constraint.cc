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

uint64_t Constraint::Refresh(Place& place) {
  uint64_t work = 0;
  if (graph_->bytes() > kGraphBytesCached) {
    graph_ = std::make_shared<StateGraph>(program_);
    masks_.clear();
    uses_.clear();
    work = graph_->work();
  }
  if (place.graph == graph_) return work;
  const uint64_t before = graph_->work();
  place.config = graph_->Import(place.graph->Key(place.config));
  place.graph = graph_;
  return work + graph_->work() - before;
}

bool Constraint::Advance(Place& place, absl::string_view bytes, uint64_t* work) {
  absl::MutexLock lock(&mutex_);
  const uint64_t refreshed = Refresh(place);
  const uint64_t before = graph_->work();
  ConfigId config = place.config;
  graph_->BeginWalk();
  for (const char byte : bytes) {
    config = graph_->Walk(config, static_cast<uint8_t>(byte));
    if (graph_->charged() > kMaskWorkMax) config = kDeadConfig;
  }
  const uint64_t charged = graph_->charged() > kMaskWorkMax ? graph_->charged() : 0;
  const uint64_t taken = std::max(graph_->work() - before, charged);
  if (work != nullptr) *work += refreshed + taken + bytes.size();
  if (config == kDeadConfig) return false;
  place.config = config;
  return true;
}

std::shared_ptr<const TokenMask> Constraint::FindMask(ConfigId config) {
  const auto it = masks_.find(config);
  if (it == masks_.end()) return nullptr;
  uses_.splice(uses_.begin(), uses_, it->second.use);
  return it->second.mask;
}

std::shared_ptr<const TokenMask> Constraint::KnownMask(const Place& place) {
  absl::MutexLock lock(&mutex_);
  return place.graph == graph_ ? FindMask(graph_->Representative(place.config)) : nullptr;
}

absl::StatusOr<std::shared_ptr<const TokenMask>> Constraint::Mask(Place& place, uint64_t* work) {
  absl::MutexLock lock(&mutex_);
  const uint64_t refreshed = Refresh(place);
  if (work != nullptr) *work += refreshed;
  const uint64_t before = graph_->work();
  const ConfigId config = graph_->Representative(place.config);
  if (auto mask = FindMask(config); mask != nullptr) return mask;
  absl::StatusOr<std::shared_ptr<const TokenMask>> mask =
      ComputeMask(*graph_, config, *vocabulary_);
  if (work != nullptr) *work += graph_->work() - before;
  if (mask.ok()) CacheMask(config, *mask);
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
  uint64_t work = 0;
  return Read(token, work);
}

absl::Status Matcher::Read(TokenId token, uint64_t& work) {
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
    uint64_t taken = 0;
    if (bytes.empty() || !constraint_->Advance(place_, bytes, &taken)) {
      const bool too_much = taken > kMaskWorkMax || Allows(token);
      return refuse(absl::StrCat(
          "(\"", absl::CHexEscape(bytes), "\") ",
          too_much ? "makes the constraint too ambiguous to follow" : "breaks the constraint"));
    }
    work += taken;
  }
  ++tokens_;
  mask_known_ = false;
  return absl::OkStatus();
}

absl::Status Matcher::TakeMask(std::shared_ptr<const TokenMask> mask) {
  mask_ = std::move(mask);
  const bool ends_allowed = !rules_.ignore_eos && tokens_ >= rules_.min_tokens;
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
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const uint32_t>> Matcher::Allowed() {
  uint64_t work = 0;
  RETURN_IF_ERROR(PrepareMask(/*compute=*/true, work).status());
  return absl::MakeConstSpan(mask_->words);
}

void Matcher::Defer(absl::Span<const TokenId> tokens) {
  deferred_.insert(deferred_.end(), tokens.begin(), tokens.end());
  mask_known_ = mask_known_ && deferred_.empty();
}

absl::StatusOr<bool> Matcher::CatchUp(uint64_t work_max, uint64_t& work) {
  uint64_t taken = 0;
  absl::Status status;
  while (status.ok() && next_deferred_ < deferred_.size() && taken < work_max) {
    status = Read(deferred_[next_deferred_++], taken);
  }
  work += taken;
  RETURN_IF_ERROR(status);
  if (next_deferred_ < deferred_.size()) return false;
  deferred_ = {};
  next_deferred_ = 0;
  return true;
}

absl::StatusOr<bool> Matcher::PrepareMask(bool compute, uint64_t& work) {
  if (mask_known_) return true;
  std::shared_ptr<const TokenMask> mask = constraint_->KnownMask(place_);
  if (mask == nullptr && !compute) return false;
  if (mask == nullptr) {
    ASSIGN_OR_RETURN(mask, constraint_->Mask(place_, &work));
  }
  RETURN_IF_ERROR(TakeMask(std::move(mask)));
  return true;
}

bool Matcher::complete() { return may_end() && !constraint_->CanContinue(place_); }
bool Matcher::may_end() { return constraint_->MayEnd(place_); }

}  // namespace tandem::guided
