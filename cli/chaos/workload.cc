#include "cli/chaos/workload.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/engine/hash/hash_engine.h"
#include "common/rpc/convert.h"
#include "common/runtime/random.h"

namespace tandem::cli {
namespace {

constexpr int kByteTokens = 256;  // ids that every vocabulary in a chaos run has
constexpr size_t kPrefixes = 6;

std::vector<TokenId> HashStream(const v1::GenerateRequest& request, int32_t index, size_t count) {
  std::vector<TokenId> tokens(request.tokens().ids().begin(), request.tokens().ids().end());
  const auto prompt = static_cast<ptrdiff_t>(tokens.size());
  const request::SamplingParams sampling = rpc::FromWire(request.sampling());
  for (size_t i = 0; i < count; ++i)
    tokens.push_back(engine::HashEngineNextToken({}, tokens, sampling, index));
  return {tokens.begin() + prompt, tokens.end()};
}

// Whether `stop_string` is one of the request's, and the last of `tokens` is the one that made it
// whole.
bool EndsWithItsStopString(const v1::GenerateRequest& request, const std::vector<TokenId>& tokens,
                           const std::string& stop_string) {
  const auto& stops = request.stop().stop();
  if (std::find(stops.begin(), stops.end(), stop_string) == stops.end()) return false;
  std::string text(tokens.begin(), tokens.end());
  if (!absl::StrContains(text, stop_string)) return false;
  text.pop_back();
  return !absl::StrContains(text, stop_string);
}

class Drawing {
 public:
  explicit Drawing(const ChaosWorkloadOptions& options)
      : options_(options), random_(NewSeededRandom(options.seed ^ 0x776f726b6c6f6164)) {
    for (auto& prefix : prefixes_) prefix = Tokens(Between(20, options.prompt_tokens_max / 2));
  }

  v1::GenerateRequest Draw() {
    v1::GenerateRequest request;
    const Size size = DrawSize();
    std::vector<int32_t> prompt;
    if (random_->Below(2) == 0) prompt = prefixes_[random_->Below(kPrefixes)];
    const int64_t shared = std::min<int64_t>(std::ssize(prompt), size.prompt_tokens_max - 1);
    prompt.resize(static_cast<size_t>(shared));
    const std::vector<int32_t> own = Tokens(Between(
        std::max<int64_t>(1, size.prompt_tokens_min - shared), size.prompt_tokens_max - shared));
    prompt.insert(prompt.end(), own.begin(), own.end());
    request.mutable_tokens()->mutable_ids()->Add(prompt.begin(), prompt.end());
    const bool sampled = random_->Below(2) == 0;
    request.mutable_sampling()->set_temperature(sampled ? 1.0 : 0.0);
    request.mutable_sampling()->set_seed(random_->Next() >> 1);
    if (random_->Below(3) == 0)
      request.mutable_sampling()->set_logprobs(static_cast<int32_t>(Between(0, 3)));
    request.mutable_stop()->set_max_tokens(
        static_cast<int32_t>(Between(size.output_tokens_min, size.output_tokens_max)));
    if (sampled && !size.beyond_pool && random_->Below(4) == 0)
      request.set_n(static_cast<int32_t>(Between(2, 3)));
    if (!size.beyond_pool && random_->Below(3) == 0) AddStopString(request);
    request.set_return_token_ids(true);
    return request;
  }

 private:
  struct Size {
    int64_t prompt_tokens_min = 1, prompt_tokens_max = 0;
    int64_t output_tokens_min = 1, output_tokens_max = 0;
    bool beyond_pool = false;
  };
  Size DrawSize() {
    Size size{.prompt_tokens_max = options_.prompt_tokens_max,
              .output_tokens_max = options_.output_tokens_max};
    if (options_.beyond_pool_share <= 0) return size;
    constexpr uint64_t kParts = 1000;
    size.beyond_pool = static_cast<double>(random_->Below(kParts)) <
                       options_.beyond_pool_share * static_cast<double>(kParts);
    if (!size.beyond_pool) return size;
    const int64_t least = options_.pool_tokens * 11 / 10, most = options_.pool_tokens * 3 / 2;
    if (random_->Below(2) == 0) {
      size.prompt_tokens_min = least;
      size.prompt_tokens_max = most - std::min<int64_t>(size.output_tokens_max, (most - least) / 2);
    } else {
      size.prompt_tokens_max = std::min(size.prompt_tokens_max, options_.pool_tokens / 4);
      size.output_tokens_min = least;
      size.output_tokens_max = most - size.prompt_tokens_max;
    }
    return size;
  }
  int64_t Between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_->Below(static_cast<uint64_t>(most - least + 1)));
  }
  std::vector<int32_t> Tokens(int64_t count) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random_->Below(kByteTokens));
    return tokens;
  }
  // The hash engine's text is known in advance: takes a stop string from it, over several tokens.
  void AddStopString(v1::GenerateRequest& request) {
    if (!options_.hash_engine) {
      request.mutable_stop()->add_stop("e ");
      return;
    }
    const auto size = static_cast<size_t>(request.stop().max_tokens());
    const std::vector<TokenId> stream = HashStream(request, 0, size);
    const size_t length = 1 + random_->Below(3);
    if (size < length) return;
    std::string text;
    const size_t begin = random_->Below(size - length + 1);
    for (size_t i = begin; i < begin + length; ++i) text.push_back(static_cast<char>(stream[i]));
    request.mutable_stop()->add_stop(text);
  }

  const ChaosWorkloadOptions& options_;
  const std::unique_ptr<Random> random_;
  std::array<std::vector<int32_t>, kPrefixes> prefixes_;
};

}  // namespace

std::vector<v1::GenerateRequest> DrawWorkload(const ChaosWorkloadOptions& options) {
  Drawing drawing(options);
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < options.requests; ++i) requests.push_back(drawing.Draw());
  return requests;
}

std::string DifferenceFromHashEngine(const v1::GenerateRequest& request,
                                     const std::vector<SequenceAnswer>& got) {
  for (size_t index = 0; index < got.size(); ++index) {
    const SequenceAnswer& answer = got[index];
    const std::vector<TokenId> stream =
        HashStream(request, static_cast<int32_t>(index), answer.tokens.size());
    for (size_t i = 0; i < stream.size(); ++i)
      if (stream[i] != answer.tokens[i])
        return absl::StrCat("answer ", index, ": token ", i, " is ", answer.tokens[i],
                            ", expected ", stream[i]);
    const bool stopped = answer.reason == v1::FINISH_REASON_STOP;
    if (!stopped && static_cast<int>(stream.size()) != request.stop().max_tokens())
      return absl::StrCat("answer ", index, ": ended after ", stream.size(), " tokens of ",
                          request.stop().max_tokens());
    if (stopped && !EndsWithItsStopString(request, stream, answer.stop_string))
      return absl::StrCat("answer ", index, ": stopped after ", stream.size(),
                          " tokens with stop string \"", answer.stop_string,
                          "\", which does not end there");
    std::string text(stream.begin(), stream.end());
    for (const std::string& stop : request.stop().stop()) text = text.substr(0, text.find(stop));
    if (text != answer.text)
      return absl::StrCat("answer ", index, ": text \"", answer.text, "\", expected \"", text,
                          "\"");
  }
  return "";
}

}  // namespace tandem::cli
