// Chats of several turns, one after another, with real answers as their history; and beside each
// turn a prompt of its new tokens alone. So a turn's time to first token can be compared with that
// of a cluster that has no history to find again.
//
//   turn 1   first message                                  ─▶ answer 1
//   turn 2   first message, answer 1, second message        ─▶ answer 2
//            └──── history ────────┘  └─ new ──────┘
//
// Thread safety: the calling thread only. Owner: the bench chats command.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/bench_serve/lengths.h"
#include "cli/client/client.h"

namespace tandem::cli {

struct ChatOptions {
  int64_t chats = 8;
  int32_t turns = 10;
  LengthRange first_tokens = {512, 512};    // of a chat's first message
  LengthRange message_tokens = {128, 128};  // of each later message
  LengthRange answer_tokens = {128, 128};
  LengthRange token_ids = kAnyModelsTokenIds;
  uint64_t seed = 1;
};

// One turn as its client saw it.
struct ChatTurn {
  int32_t turn = 1;
  int32_t history_tokens = 0, new_tokens = 0;
  int32_t cached_tokens = 0;  // prompt tokens that no node computed for this turn
  double ttft_ms = 0;
  double alone_ms = 0;  // to the first token of a prompt of as many new tokens, without history

  // Tokens of the history's whole blocks that were computed again. The last token of an answer has
  // no KV before the next turn, so a block that it ends is not whole.
  int32_t recomputed_tokens(int32_t block_tokens) const;
};

// The turns of all chats in order. `go_on` is asked before each turn; its error ends the run.
// Errors: go_on's, the router's; kDataLoss when an answer is not as long as it was asked to be.
absl::StatusOr<std::vector<ChatTurn>> RunChats(const ChatOptions& options, Client& client,
                                               const std::function<absl::Status()>& go_on);

}  // namespace tandem::cli
