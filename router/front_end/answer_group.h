// Turns the core's events for one request into the response parts that its client sees: decodes
// text, matches stop strings, leaves out what a resumed client has already, and picks the best of
// best_of answers.
//
// Thread safety: none; an AnswerSession owns it, on the core's strand. No I/O.
// Invariants: per answer, deltas in order and then one Finished; nothing follows the last Finished.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "router/core/client_event.h"
#include "router/front_end/answer_assembler.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

struct AnswerOptions {
  int32_t sequences = 1;  // generated
  // Answers returned; fewer than `sequences`: the n with the highest cumulative log-probability,
  // ties to the lower index, renumbered in that order, sent when all have ended.
  int32_t n = 1;
  bool return_tokens = false;
  bool return_logprobs = false;
  bool return_gaps = false;  // in the timing
  std::string echo;          // text before each answer's own
  // Of each sequence, the first token to send: those before, and their text, are left out. Empty:
  // all are sent.
  std::vector<int32_t> resume_from;
  bool prompt_only = false;  // no tokens are sent, and none counted
};

class AnswerGroup {
 public:
  using NewAssembler = std::function<std::unique_ptr<AnswerAssembler>()>;
  using Parts = std::vector<v1::GenerateResponse>;

  AnswerGroup(AnswerOptions options, const NewAssembler& new_assembler);

  // The prompt's log-probabilities, in parts of bounded size.
  Parts OnScores(PromptScored event);
  // Fills `part`, whose memory is reused. True: it is a delta to send.
  bool OnTokens(const TokensReady& event, v1::GenerateResponse& part);
  // One sequence has ended: the rest of its text, and its Finished. Where only the best answers are
  // returned, nothing until the last sequence has ended, and then those answers.
  Parts OnDone(SequenceDone event);
  // A stop string of this answer was found: the router ends its sequence
  // (RouterCore::FinishSequence, kStop).
  bool stopped(int32_t sequence_index) const;
  // Of the answers that have ended and that the client does not get.
  int64_t output_tokens_kept_back() const { return output_tokens_kept_back_; }

 private:
  struct Answer {
    std::unique_ptr<AnswerAssembler> assembler;
    int32_t output_tokens = 0;  // in the answer, after stop strings
    bool begun = false;         // its echo is out
    double logprob_sum = 0;
    // Kept until all have ended, when only the best are returned.
    v1::Delta kept;
    v1::Finished finished;
  };

  bool keeps() const { return options_.n < options_.sequences; }
  // Ends the process for an index that no sequence has.
  size_t IndexOf(int32_t sequence_index) const;
  Answer& At(int32_t sequence_index) { return answers_[IndexOf(sequence_index)]; }
  int32_t ResumeFrom(int32_t sequence_index) const;
  // Whether the delta is to be sent; it is not when it is kept, or says nothing.
  bool Give(Answer& answer, v1::Delta& delta);
  // Leaves out what the client did not ask for.
  v1::GeneratedToken Shown(const v1::GeneratedToken& token) const;
  Parts GiveBest();

  const AnswerOptions options_;
  // Bound: kSequencesMax (128).
  std::vector<Answer> answers_;  // by sequence index
  int64_t output_tokens_kept_back_ = 0;
};

}  // namespace tandem::router
