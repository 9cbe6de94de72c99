// Merges the tokens that several legs report for one answer: each token comes out once and in
// order. It also detects the end of the answer by token or by length.
//
//   index == next   is delivered, with the waiting tokens that follow it
//   index <  next   is dropped; if it differs from the delivered token, the legs have diverged
//   index >  next   waits; at most kWaitingMax tokens do
//
// Thread safety: none; a SequenceAnswer owns it.
// Invariants: delivered() only grows, and not after finish() is set.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/base/shared_value.h"
#include "common/request/sampling_params.h"
#include "tandem/v1/common.pb.h"

namespace tandem::router {

class TokenStream {
 public:
  static constexpr size_t kWaitingMax = 64;

  struct Outcome {
    int32_t delivered = 0;
    bool duplicate = false;
    bool diverged = false;  // a duplicate that names another token
  };

  // `stop` and `eos_token_ids` outlive this; max_tokens may still be lowered before the first
  // token.
  TokenStream(const SharedValue<request::StopParams>& stop,
              const std::vector<TokenId>& eos_token_ids, int32_t vocab_size)
      : stop_(stop), eos_token_ids_(eos_token_ids), vocab_size_(vocab_size) {}

  // Takes a reported token. kDataLoss when the leg cannot be right: a token outside the vocabulary,
  // also among the likeliest ones, a log-probability of those that is NaN or positive infinity, a
  // negative index, or too many waiting tokens. Ignores all tokens after finish().
  absl::StatusOr<Outcome> Offer(const v1::GeneratedToken& token);
  // Drops tokens that wait for a missing one: the leg that sent them was given up.
  void DropWaiting() { waiting_.clear(); }

  const std::vector<TokenId>& delivered() const { return delivered_; }
  size_t waiting() const { return waiting_.size(); }
  // kNone until a delivered token ends the answer.
  request::FinishReason finish() const { return finish_; }
  // Tokens delivered since the last call.
  std::vector<v1::GeneratedToken> TakeReady();

 private:
  void Deliver(const v1::GeneratedToken& token);

  const SharedValue<request::StopParams>& stop_;
  const std::vector<TokenId>& eos_token_ids_;
  const int32_t vocab_size_;
  // Bound: max_tokens.
  std::vector<TokenId> delivered_;
  // Bound: what one message delivers.
  std::vector<v1::GeneratedToken> ready_;
  // Bound: kWaitingMax (64), then the leg is given up.
  std::map<int32_t, v1::GeneratedToken> waiting_;
  request::FinishReason finish_ = request::FinishReason::kNone;
};

}  // namespace tandem::router
