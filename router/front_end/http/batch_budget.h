// The memory that the answers to all batches of prompts may come to hold. The core counts what a
// prompt's sequences hold until they end (RequestInput::HeldBytesMax). The answer to a batch keeps
// text and log-probabilities of prompts that have ended until its last prompt has, so a batch is
// charged as a whole before it begins.
// Thread safety: BatchBudget from any thread; a BatchShare as its answer.
// Owner: the answers and HttpApi share the BatchBudget; each answer owns its share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem::router {

class BatchBudget {
 public:
  explicit BatchBudget(int64_t bytes_max) : bytes_max_(bytes_max) {}

  // What the batches that are being answered may come to hold.
  int64_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  friend class BatchShare;
  const int64_t bytes_max_;
  std::atomic<int64_t> used_{0};
};

// One batch's part of the budget. Its destructor gives it back.
class BatchShare {
 public:
  // `budget`: null if nothing bounds the batch.
  explicit BatchShare(std::shared_ptr<BatchBudget> budget) : budget_(std::move(budget)) {}
  ~BatchShare() { Clear(); }
  BatchShare(const BatchShare&) = delete;
  BatchShare& operator=(const BatchShare&) = delete;

  // Charges `bytes` for prompt number `prompt`, counted from 1, of `prompts`. Errors, after which
  // nothing is charged: kInvalidArgument if the batch alone exceeds the budget; kResourceExhausted
  // if it does with the others.
  absl::Status Add(int64_t bytes, size_t prompt, size_t prompts) {
    if (budget_ == nullptr) return absl::OkStatus();
    charged_ += bytes;
    const int64_t max = budget_->bytes_max_;
    const int64_t used = budget_->used_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (used <= max) return absl::OkStatus();
    const int64_t charged = charged_;
    Clear();
    if (charged > max)
      return absl::InvalidArgumentError(absl::StrCat(
          "prompt: the answers to ", prompt, " of ", prompts, " prompts may come to hold ", charged,
          " bytes, expected at most ", max, " for all prompts of a request: send fewer at a time, ",
          "or ask for fewer log-probabilities or answers, or for a lower max_tokens"));
    return absl::ResourceExhaustedError(
        absl::StrCat("this router's batches of prompts may hold up to ", used - charged, " bytes; ",
                     charged, " more would exceed its limit of ", max, ": try again"));
  }

 private:
  void Clear() {
    if (budget_ != nullptr) budget_->used_.fetch_sub(charged_, std::memory_order_relaxed);
    charged_ = 0;
  }

  const std::shared_ptr<BatchBudget> budget_;  // shared with all answers
  int64_t charged_ = 0;
};

}  // namespace tandem::router
