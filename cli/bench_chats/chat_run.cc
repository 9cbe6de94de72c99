#include "cli/bench_chats/chat_run.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/runtime/clock.h"
#include "common/runtime/random.h"

namespace tandem::cli {
namespace {

struct ChatAnswer {
  std::vector<int32_t> tokens;
  double ttft_ms = 0;
  int32_t cached_tokens = 0;
};

class ChatRun {
 public:
  ChatRun(const ChatOptions& options, Client& client)
      : options_(options), client_(client), random_(NewSeededRandom(options.seed)) {}

  absl::StatusOr<std::vector<ChatTurn>> Run(const std::function<absl::Status()>& go_on) {
    // The first requests of a cluster pay for what all others find ready.
    RETURN_IF_ERROR(Ask(Message(options_.first_tokens), 1).status());
    std::vector<ChatTurn> turns;
    for (int64_t chat = 0; chat < options_.chats; ++chat) {
      std::vector<int32_t> history;
      for (int32_t turn = 1; turn <= options_.turns; ++turn) {
        RETURN_IF_ERROR(go_on());
        ASSIGN_OR_RETURN(turns.emplace_back(), OneTurn(chat, turn, history));
      }
    }
    return turns;
  }

 private:
  absl::StatusOr<ChatTurn> OneTurn(int64_t chat, int32_t turn, std::vector<int32_t>& history) {
    const std::vector<int32_t> message =
        Message(turn == 1 ? options_.first_tokens : options_.message_tokens);
    ChatTurn result = {.turn = turn,
                       .history_tokens = static_cast<int32_t>(history.size()),
                       .new_tokens = static_cast<int32_t>(message.size())};
    // Alternately before and after the turn.
    const bool first = (chat + turn) % 2 == 0;
    if (first) {
      ASSIGN_OR_RETURN(result.alone_ms, Alone(message.size()));
    }
    history.insert(history.end(), message.begin(), message.end());
    ASSIGN_OR_RETURN(ChatAnswer answer, Ask(history, DrawLength(options_.answer_tokens, *random_)));
    result.cached_tokens = answer.cached_tokens;
    result.ttft_ms = answer.ttft_ms;
    history.insert(history.end(), answer.tokens.begin(), answer.tokens.end());
    if (!first) {
      ASSIGN_OR_RETURN(result.alone_ms, Alone(message.size()));
    }
    return result;
  }

  absl::StatusOr<double> Alone(size_t tokens) {
    const auto length = static_cast<int32_t>(tokens);
    ASSIGN_OR_RETURN(const ChatAnswer answer, Ask(Message({length, length}), 1));
    return answer.ttft_ms;
  }

  std::vector<int32_t> Message(const LengthRange& length) {
    std::vector<int32_t> tokens(static_cast<size_t>(DrawLength(length, *random_)));
    for (int32_t& token : tokens) token = DrawLength(options_.token_ids, *random_);
    return tokens;
  }

  absl::StatusOr<ChatAnswer> Ask(const std::vector<int32_t>& prompt, int32_t max_tokens) {
    v1::GenerateRequest request;
    request.mutable_tokens()->mutable_ids()->Add(prompt.begin(), prompt.end());
    request.mutable_stop()->set_max_tokens(max_tokens);
    request.mutable_stop()->set_ignore_eos(true);
    request.mutable_sampling()->set_seed(random_->Next() >> 1);
    request.set_return_token_ids(true);
    ChatAnswer answer;
    std::optional<absl::Time> first;
    const absl::Time sent = RealClock().Now();
    RETURN_IF_ERROR(client_.Generate(request, [&](const v1::GenerateResponse& part) {
      if (part.has_delta() && !first.has_value()) first = RealClock().Now();
      for (const v1::GeneratedToken& token : part.delta().tokens())
        answer.tokens.push_back(token.token_id());
      if (part.has_finished()) answer.cached_tokens = part.finished().usage().cached_tokens();
      return true;
    }));
    if (std::ssize(answer.tokens) != max_tokens)
      return absl::DataLossError(
          absl::StrCat("an answer has ", answer.tokens.size(), " tokens, expected ", max_tokens));
    answer.ttft_ms = absl::ToDoubleMilliseconds(*first - sent);
    return answer;
  }

  const ChatOptions options_;
  Client& client_;
  const std::unique_ptr<Random> random_;
};

}  // namespace

int32_t ChatTurn::recomputed_tokens(int32_t block_tokens) const {
  const int32_t whole = std::max(0, history_tokens - 1) / block_tokens * block_tokens;
  return std::max(0, whole - cached_tokens);
}

absl::StatusOr<std::vector<ChatTurn>> RunChats(const ChatOptions& options, Client& client,
                                               const std::function<absl::Status()>& go_on) {
  return ChatRun(options, client).Run(go_on);
}

}  // namespace tandem::cli
