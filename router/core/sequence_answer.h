// What one sequence has to tell its client: tokens, the prompt's scores, how the sequence ended,
// and the figures that go with the end. Nodes' events go in; Take returns what is new.
//
// Thread safety: none; a SequenceMachine owns it.
// Invariants: the prompt's scores come before any token; an end or a failure is set at most once,
// except that an abort may replace an end whose scores are still awaited.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/core/client_event.h"
#include "router/core/prompt_scores.h"
#include "router/core/request_input.h"
#include "router/core/request_report.h"
#include "router/core/sequence_context.h"
#include "router/core/token_stream.h"

namespace tandem::router {

class SequenceAnswer {
 public:
  // What is new since the last call. Either `done` is set or `failure` is an error, once, in the
  // last outcome.
  struct Outcome {
    std::optional<std::vector<v1::GeneratedToken>> prompt_scores;  // all of them, once
    std::vector<v1::GeneratedToken> tokens;
    std::optional<SequenceDone> done;
    absl::Status failure;
  };
  // Which nodes serve the sequence, for log lines.
  struct Nodes {
    absl::string_view decode, prefill;
  };

  // `input` outlives the answer; its max_tokens may be lowered before the first token.
  SequenceAnswer(const RequestInput& input, const SequenceContext& context, absl::Time now);

  // A leg reports `token`. kDataLoss: the leg cannot be right, so its sender must be given up.
  // Logs and counts a token that differs from the one delivered. `count_duplicate`: count a token
  // that was delivered already; false for the one that a KV transfer repeats.
  absl::Status Offer(const v1::GeneratedToken& token, bool count_duplicate, const Nodes& nodes,
                     absl::Time now);
  void OnPromptScored(const v1::PromptScored& part) { scores_.Add(part); }
  // Drops tokens that wait for a missing one: their leg was given up.
  void DropWaiting() { tokens_.DropWaiting(); }

  // The sequence ends for `reason`. kNone before.
  void End(request::FinishReason reason) { ending_ = reason; }
  void Fail(absl::Status status) { failure_ = std::move(status); }
  request::FinishReason ending() const { return ending_; }
  bool ended() const { return ending_ != request::FinishReason::kNone; }
  const absl::Status& failure() const { return failure_; }

  const std::vector<TokenId>& delivered() const { return tokens_.delivered(); }
  size_t waiting() const { return tokens_.waiting(); }
  // Set once a delivered token completes the answer; kNone before.
  request::FinishReason finish() const { return tokens_.finish(); }
  bool complete() const { return finish() != request::FinishReason::kNone; }
  // The prompt's scores were asked for and are not complete.
  bool AwaitsScores() const { return scores_.awaited(); }
  // Of the fleet that delivered the first token; empty before.
  const std::string& numerics_id() const { return numerics_id_; }

  RequestSteps& steps() { return steps_; }
  const RequestSteps& steps() const { return steps_; }
  RequestReport& report() { return report_; }
  // Keeps how a placement at `now` chose its nodes; nothing where no decision was written.
  void KeepDecision(const std::shared_ptr<v1::PlacementDecision>& decision, absl::Time now);

  // `attempts`: placements so far, for the report.
  Outcome Take(int attempts, absl::Time now);

 private:
  const RequestInput& input_;
  const SequenceContext context_;
  TokenStream tokens_;
  PromptScores scores_;
  RequestSteps steps_;
  RequestReport report_;
  std::string numerics_id_;
  request::FinishReason ending_ = request::FinishReason::kNone;
  absl::Status failure_;
};

}  // namespace tandem::router
