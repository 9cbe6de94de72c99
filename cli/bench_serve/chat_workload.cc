// Conversations: implements NewChatWorkload (cli/bench_serve/workload.h).
#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/bench_serve/workload.h"

namespace tandem::cli {
namespace {

class ChatWorkload final : public Workload {
 public:
  explicit ChatWorkload(const WorkloadOptions& options)
      : options_(options), random_(NewSeededRandom(options.seed)) {
    conversations_.resize(SideBySide(options));
    if (options_.shared_prefix_tokens == 0) return;
    for (int32_t i = 0; i < options_.prefixes; ++i) {
      prefixes_.push_back(Words(options_.shared_prefix_tokens));
    }
  }

  LoadRequest Next() override {
    if (at_ == conversations_.size()) {
      at_ = 0;
      if (++turn_ >= options_.turns) turn_ = 0;
    }
    if (turn_ == 0) conversations_[at_] = Begun();
    LoadRequest& conversation = conversations_[at_++];
    // The server is asked for as many tokens as the drawn answer has.
    if (turn_ > 0) conversation.messages.push_back({"assistant", Words(conversation.max_tokens)});
    const bool sharegpt = options_.sharegpt_like;
    conversation.messages.push_back(
        {"user", Words(sharegpt ? DrawLength(kShareGptPrompts, *random_)
                                : DrawLength(options_.prompt_tokens, *random_))});
    conversation.max_tokens = sharegpt ? DrawLength(kShareGptAnswers, *random_)
                                       : DrawLength(options_.output_tokens, *random_);
    conversation.index = next_++;
    conversation.seed = random_->Next() >> 1;  // as a synthetic prompt's
    return conversation;
  }

 private:
  static size_t SideBySide(const WorkloadOptions& options) {
    if (options.requests <= 0) return kConversations;
    const int64_t whole = options.requests / std::max(options.turns, 1);
    return static_cast<size_t>(std::clamp<int64_t>(whole, 1, kConversations));
  }

  LoadRequest Begun() {
    LoadRequest conversation;
    if (!prefixes_.empty()) {
      conversation.messages.push_back({"system", prefixes_[random_->Below(prefixes_.size())]});
    }
    return conversation;
  }

  std::string Words(int32_t tokens) {
    const double words = std::round(tokens / options_.tokens_per_word);
    return DrawWords(std::max<int64_t>(static_cast<int64_t>(words), 1), *random_);
  }

  const WorkloadOptions options_;
  const std::unique_ptr<Random> random_;
  std::vector<std::string> prefixes_;
  std::vector<LoadRequest> conversations_;  // so far
  size_t at_ = 0;
  int32_t turn_ = 0;
  int64_t next_ = 0;
};

}  // namespace

std::unique_ptr<Workload> NewChatWorkload(const WorkloadOptions& options) {
  return std::make_unique<ChatWorkload>(options);
}

}  // namespace tandem::cli
