#include "cli/bench_serve/workload.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

using Json = nlohmann::json;

// Short and common words: most vocabularies have each, with its space, as one token.
constexpr const char* kWords[] = {
    "time", "year",  "people", "way",   "day",   "man",   "thing", "woman", "life",  "child",
    "work", "world", "school", "state", "house", "hand",  "part",  "place", "case",  "week",
    "home", "water", "room",   "area",  "money", "story", "fact",  "month", "right", "study",
    "book", "eye",   "job",    "word",  "game",  "line",  "end",   "group", "city",  "name"};

class SyntheticWorkload final : public Workload {
 public:
  explicit SyntheticWorkload(const WorkloadOptions& options)
      : options_(options), random_(NewSeededRandom(options.seed)) {
    if (options_.shared_prefix_tokens == 0) return;
    for (int32_t i = 0; i < options_.prefixes; ++i) {
      LoadRequest& prefix = prefixes_.emplace_back();
      Extend(options_.shared_prefix_tokens, prefix);
    }
  }

  LoadRequest Next() override {
    LoadRequest request;
    if (!prefixes_.empty()) request = prefixes_[random_->Below(prefixes_.size())];
    request.index = next_++;
    const int32_t prompt = options_.sharegpt_like ? DrawLength(kShareGptPrompts, *random_)
                                                  : DrawLength(options_.prompt_tokens, *random_);
    request.max_tokens = options_.sharegpt_like ? DrawLength(kShareGptAnswers, *random_)
                                                : DrawLength(options_.output_tokens, *random_);
    Extend(std::max(prompt - options_.shared_prefix_tokens, 1), request);
    request.seed = random_->Next() >> 1;  // fits a signed 64-bit number, which some servers want
    return request;
  }

 private:
  void Extend(int32_t tokens, LoadRequest& request) {
    if (options_.as_text) {
      const double words = std::round(tokens / options_.tokens_per_word);
      request.text += DrawWords(std::max<int64_t>(static_cast<int64_t>(words), 1), *random_);
      return;
    }
    request.tokens.reserve(request.tokens.size() + static_cast<size_t>(tokens));
    for (int32_t i = 0; i < tokens; ++i) {
      request.tokens.push_back(DrawLength(options_.token_ids, *random_));
    }
  }

  const WorkloadOptions options_;
  const std::unique_ptr<Random> random_;
  std::vector<LoadRequest> prefixes_;
  int64_t next_ = 0;
};

class FileWorkload final : public Workload {
 public:
  FileWorkload(std::vector<LoadRequest> requests, const WorkloadOptions& options)
      : requests_(std::move(requests)), options_(options), random_(NewSeededRandom(options.seed)) {}

  LoadRequest Next() override {
    LoadRequest request = requests_[static_cast<size_t>(next_) % requests_.size()];
    request.index = next_++;
    if (request.max_tokens == 0) {
      request.max_tokens = DrawLength(options_.output_tokens, *random_);
    }
    request.seed = random_->Next() >> 1;
    return request;
  }

 private:
  const std::vector<LoadRequest> requests_;
  const WorkloadOptions options_;
  const std::unique_ptr<Random> random_;
  int64_t next_ = 0;
};

absl::StatusOr<std::vector<LoadMessage>> ParseMessages(const Json& list) {
  const absl::Status refused = absl::InvalidArgumentError(
      "messages: expected a list of objects, each with a role and a content of text");
  if (!list.is_array() || list.empty()) return refused;
  std::vector<LoadMessage> messages;
  for (const Json& item : list) {
    if (!item.is_object() || !item.contains("role") || !item["role"].is_string() ||
        !item.contains("content") || !item["content"].is_string()) {
      return refused;
    }
    messages.push_back({item["role"].get<std::string>(), item["content"].get<std::string>()});
  }
  return messages;
}

// A line's prompt and length; the error follows "line N: ".
absl::StatusOr<LoadRequest> ParseLine(absl::string_view line, bool chat) {
  const Json json = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("expected a JSON object");
  LoadRequest request;
  request.max_tokens = 0;
  const auto prompt = json.find("prompt");
  if (prompt != json.end() && prompt->is_string()) {
    request.text = prompt->get<std::string>();
  } else if (prompt != json.end() && prompt->is_array()) {
    for (const Json& id : *prompt) {
      if (!id.is_number_integer() || id < 0 || id > INT32_MAX) {
        return absl::InvalidArgumentError("prompt: expected token ids");
      }
      request.tokens.push_back(id.get<int32_t>());
    }
  }
  if (const auto messages = json.find("messages"); messages != json.end()) {
    if (!chat) return absl::InvalidArgumentError("messages: for --endpoint=chat only");
    ASSIGN_OR_RETURN(request.messages, ParseMessages(*messages));
  } else if (request.text.empty() && request.tokens.empty()) {
    return absl::InvalidArgumentError("prompt: expected a text or a list of token ids");
  }
  if (chat && !request.tokens.empty()) {
    return absl::InvalidArgumentError("prompt: token ids, expected a text for --endpoint=chat");
  }
  if (const auto length = json.find("max_tokens"); length != json.end()) {
    if (!length->is_number_integer() || *length < 1 || *length > INT32_MAX) {
      return absl::InvalidArgumentError("max_tokens: expected a number from 1");
    }
    request.max_tokens = length->get<int32_t>();
  }
  return request;
}

}  // namespace

std::string DrawWords(int64_t words, Random& random) {
  std::string text;
  for (int64_t i = 0; i < words; ++i) {
    absl::StrAppend(&text, kWords[random.Below(std::size(kWords))], " ");
  }
  return text;
}

std::unique_ptr<Workload> NewSyntheticWorkload(const WorkloadOptions& options) {
  return std::make_unique<SyntheticWorkload>(options);
}

absl::StatusOr<std::unique_ptr<Workload>> NewFileWorkload(absl::string_view json_lines,
                                                          const WorkloadOptions& options,
                                                          bool chat) {
  std::vector<LoadRequest> requests;
  int64_t number = 0;
  for (const absl::string_view line : absl::StrSplit(json_lines, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    absl::StatusOr<LoadRequest> request = ParseLine(line, chat);
    if (!request.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": ", request.status().message()));
    }
    requests.push_back(*std::move(request));
  }
  if (requests.empty()) return absl::InvalidArgumentError("expected at least one line");
  return std::make_unique<FileWorkload>(std::move(requests), options);
}

}  // namespace tandem::cli
