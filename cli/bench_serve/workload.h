// The requests of a load, one after another: drawn from a seed, or read from a file.
// Invariant: equal options give equal requests. Thread safety: none; one thread at a time.
// Owner: the bench serve command.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/bench_serve/lengths.h"

namespace tandem::cli {

struct LoadMessage {
  std::string role;
  std::string content;
};

// One request. The prompt is text, token ids, or a conversation's messages.
struct LoadRequest {
  int64_t index = 0;
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<LoadMessage> messages;
  int32_t max_tokens = 1;
  uint64_t seed = 0;
  std::string service_tier;  // "": the request names none
};

struct WorkloadOptions {
  LengthRange prompt_tokens = {512, 512};
  LengthRange output_tokens = {64, 64};
  bool sharegpt_like = false;  // lengths from kShareGptPrompts and kShareGptAnswers instead
  bool as_text = false;        // words instead of token ids
  double tokens_per_word = 1;  // how many tokens the server makes of a word
  LengthRange token_ids = kAnyModelsTokenIds;
  int32_t shared_prefix_tokens = 0;  // tokens at the start that requests of one prefix share
  int32_t prefixes = 1;
  int32_t turns = 1;     // of a conversation
  int64_t requests = 0;  // how many will be taken; 0: not known
  uint64_t seed = 1;
};

class Workload {
 public:
  virtual ~Workload() = default;
  virtual LoadRequest Next() = 0;
};

// Every prompt is new, except for its shared prefix, and at least one token longer than that.
std::unique_ptr<Workload> NewSyntheticWorkload(const WorkloadOptions& options);

// Conversations of options.turns user messages, each with the length of a prompt. A request carries
// its conversation so far, with drawn words in place of the server's answers, so that requests do
// not depend on what the server answers. A shared prefix is a system message. kConversations run
// side by side: the first turn of each, then the second turn of each, and so on; then the next
// kConversations follow. Fewer run side by side where options.requests would not reach their last
// turn.
std::unique_ptr<Workload> NewChatWorkload(const WorkloadOptions& options);
inline constexpr size_t kConversations = 64;

// The text of `words` words drawn from `random`: what as_text prompts are made of, and what
// tokens_per_word is measured on.
std::string DrawWords(int64_t words, Random& random);

// The lines of a JSON Lines file, repeated: {"prompt": text or token ids, "max_tokens": N}; without
// max_tokens, options.output_tokens decides. `chat`: for the chat endpoint, where a line may hold
// {"messages": [{"role": …, "content": text}, …]} and not token ids. kInvalidArgument names the
// line.
absl::StatusOr<std::unique_ptr<Workload>> NewFileWorkload(absl::string_view json_lines,
                                                          const WorkloadOptions& options,
                                                          bool chat = false);

}  // namespace tandem::cli
