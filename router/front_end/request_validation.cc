#include "router/front_end/request_validation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/guided/compile.h"
#include "common/rpc/convert.h"

namespace tandem::router {
namespace {

absl::Status CheckLength(absl::string_view field, const std::string& value, size_t bytes_max) {
  if (value.size() <= bytes_max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", value.size(), " bytes, expected at most ", bytes_max));
}

// kInvalidArgument with this kContextExcessPayload.
absl::Status ContextExceeded(const std::string& message, const std::string& excess) {
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kContextExcessPayload, absl::Cord(excess));
  return status;
}

absl::Status CheckPrompt(const std::vector<TokenId>& prompt, const ModelIdentity& model) {
  if (prompt.empty()) {
    return absl::InvalidArgumentError(
        "prompt: empty, expected at least 1 token: this model's tokenizer adds none");
  }
  if (prompt.size() >= static_cast<size_t>(model.context_tokens)) {
    return ContextExceeded(
        absl::StrCat("prompt: ", prompt.size(), " tokens, expected fewer than the context of ",
                     model.served_name(), ", ", model.context_tokens, " tokens"),
        absl::StrCat(prompt.size(), " ", model.context_tokens - 1));
  }
  // Nearly always every token is valid. A loop without early exits checks that faster.
  const auto vocab_size = static_cast<uint32_t>(model.vocab_size);
  uint32_t outside = 0;
  for (const TokenId token : prompt) outside |= static_cast<uint32_t>(token) >= vocab_size ? 1 : 0;
  for (size_t i = 0; i < prompt.size() && outside != 0; ++i)
    if (prompt[i] < 0 || prompt[i] >= model.vocab_size)
      return absl::InvalidArgumentError(absl::StrCat(
          "prompt: token ", i, " is ", prompt[i], ", expected one in [0, ", model.vocab_size, ")"));
  return absl::OkStatus();
}

absl::Status CheckBetween(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", value, ", expected one in [", low, ", ", high, "]"));
}

// Beam search takes the likeliest tokens of the model's own distribution, so it excludes sampling
// parameters.
absl::Status CheckBeams(const v1::GenerateRequest& request) {
  if (!request.has_beam_search()) return absl::OkStatus();
  const v1::BeamSearch& beams = request.beam_search();
  const request::SamplingParams sampling = rpc::FromWire(request.sampling());
  RETURN_IF_ERROR(CheckBetween("beam_search.width", beams.width(), 1, kBeamWidthMax));
  RETURN_IF_ERROR(CheckBetween("n", request.has_n() ? request.n() : 1, 1, beams.width()));
  if (!std::isfinite(beams.length_penalty()) || std::abs(beams.length_penalty()) > 100)
    return absl::InvalidArgumentError(
        absl::StrCat("beam_search.length_penalty: ", beams.length_penalty(),
                     ", expected a number in [-100, 100]"));
  const absl::string_view unused =
      request::FirstUnusedByBeams(sampling, rpc::FromWire(request.stop()));
  const std::pair<bool, absl::string_view> excluded[] = {
      {request.sampling().has_temperature() && sampling.temperature != 0, "temperature"},
      {!unused.empty(), unused},
      {request.bad_words_size() > 0, "bad_words"},
      {request.stop().stop_token_ids_size() > kBeamWidthMax, "so many stop_token_ids"},
      {request.has_best_of(), "best_of"},
      {IsPromptOnly(request), "max_tokens 0"},
      {request.has_guided(), "guided"}};
  for (const auto& [given, name] : excluded)
    if (given)
      return absl::InvalidArgumentError(
          absl::StrCat("beam_search: given together with ", name, ", expected one of them"));
  return absl::OkStatus();
}

// Checks where the client wants each of its n answers to go on.
absl::Status CheckResumption(const v1::GenerateRequest& request, int32_t n) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  RETURN_IF_ERROR(CheckBetween("resume_from_token", request.resume_from_token(), 0, kMax));
  const auto& each = request.resume_from_tokens();
  const bool several = !each.empty();
  const char* const name = several ? "resume_from_tokens" : "resume_from_token";
  if (several && request.resume_from_token() > 0) {
    return absl::InvalidArgumentError(
        "resume_from_tokens: given with resume_from_token, expected one of them");
  }
  if (several && each.size() != n) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", each.size(), " given, expected one for each of n = ", n));
  }
  if (several && (request.has_beam_search() || request.best_of() > n)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": given with ", request.has_beam_search() ? "beam_search" : "best_of",
                     ", whose answers come whole at the end, expected neither"));
  }
  for (int i = 0; i < each.size(); ++i)
    RETURN_IF_ERROR(CheckBetween(absl::StrCat(name, "[", i, "]"), each[i], 0, kMax));
  const bool greedy = request.sampling().has_temperature() && request.sampling().temperature() == 0;
  if (Resumes(request) && !greedy && !request.sampling().has_seed()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": given without sampling.seed, expected the seed that Started named"));
  }
  return absl::OkStatus();
}

// Checks how many answers to generate and what to return of them.
absl::Status CheckAnswers(const v1::GenerateRequest& request) {
  const int32_t n = request.has_n() ? request.n() : 1;
  RETURN_IF_ERROR(CheckBetween("n", n, 1, kSequencesMax));
  if (request.has_best_of()) {
    RETURN_IF_ERROR(CheckBetween("best_of", request.best_of(), 1, kSequencesMax));
    if (request.best_of() < n)
      return absl::InvalidArgumentError(
          absl::StrCat("best_of: ", request.best_of(), ", expected at least n = ", n));
  }
  if (request.has_prompt_logprobs())
    RETURN_IF_ERROR(
        CheckBetween("prompt_logprobs", request.prompt_logprobs(), 0, request::kLogprobsMax));
  if (request.has_deadline_s() && !(request.deadline_s() > 0 && request.deadline_s() < 1e9))
    return absl::InvalidArgumentError(
        absl::StrCat("deadline_s: ", request.deadline_s(), ", expected a number of seconds > 0"));
  RETURN_IF_ERROR(CheckResumption(request, n));
  if (request.bad_words_size() > kBadWordTextsMax)
    return absl::InvalidArgumentError(absl::StrCat("bad_words: ", request.bad_words_size(),
                                                   " texts, expected at most ", kBadWordTextsMax));
  for (int i = 0; i < request.bad_words_size(); ++i)
    RETURN_IF_ERROR(CheckBetween(absl::StrCat("bad_words[", i, "]: bytes"),
                                 static_cast<int64_t>(request.bad_words(i).size()), 1,
                                 kBadWordBytesMax));
  return absl::OkStatus();
}

// Sets which answers to generate, and what to tell of their tokens and the prompt's.
void SetAnswers(const v1::GenerateRequest& request, RequestInput& input) {
  const int32_t n = request.has_n() ? request.n() : 1;
  input.sequences = request.has_best_of() ? request.best_of() : n;
  if (request.has_beam_search()) {
    const v1::BeamSearch& beams = request.beam_search();
    input.beams =
        BeamParams{.width = beams.width(),
                   .length_penalty = beams.has_length_penalty() ? beams.length_penalty() : 1.0,
                   .early_stopping = beams.early_stopping()};
  }
  // The best answers are known when all have ended.
  input.keeps_answers = input.beams.has_value() || n < input.sequences;
  if (request.has_prompt_logprobs()) input.prompt_logprobs = request.prompt_logprobs();
  if (request.sampling().has_logprobs()) input.answer_logprobs = request.sampling().logprobs();
}

}  // namespace

bool IsPromptOnly(const v1::GenerateRequest& request) {
  return request.stop().has_max_tokens() && request.stop().max_tokens() == 0 &&
         (request.echo() || request.has_prompt_logprobs());
}

bool Resumes(const v1::GenerateRequest& request) {
  const auto& each = request.resume_from_tokens();
  return request.resume_from_token() > 0 ||
         std::any_of(each.begin(), each.end(), [](int32_t token) { return token > 0; });
}

int32_t SequencesOf(const v1::GenerateRequest& request) {
  const int32_t beams = request.has_beam_search() ? request.beam_search().width() : 1;
  const int32_t answers = request.has_best_of() ? request.best_of() : request.n();
  const int32_t sequences = std::max({beams, answers, int32_t{1}});
  return sequences <= kSequencesMax ? sequences : 1;
}

absl::Status ValidateEnvelope(const v1::GenerateRequest& request, const ModelIdentity& model) {
  RETURN_IF_ERROR(CheckLength("request_id", request.request_id(), kRequestIdBytesMax));
  RETURN_IF_ERROR(CheckLength("cache_salt", request.cache_salt(), kCacheSaltBytesMax));
  if (!request.model().empty() && !model.Serves(request.model()))
    return model.NotServed(request.model());
  RETURN_IF_ERROR(CheckAnswers(request));
  RETURN_IF_ERROR(CheckBeams(request));
  if (request.prompt_case() == v1::GenerateRequest::PROMPT_NOT_SET)
    return absl::InvalidArgumentError("prompt: missing, expected text, chat or tokens");
  return absl::OkStatus();
}

absl::StatusOr<RequestInput> ValidateRequest(const v1::GenerateRequest& request,
                                             std::vector<TokenId> prompt,
                                             const ModelIdentity& model,
                                             const std::vector<TokenId>& eos_token_ids,
                                             Random& random) {
  RETURN_IF_ERROR(ValidateEnvelope(request, model));
  RETURN_IF_ERROR(CheckPrompt(prompt, model));
  RequestInput input;
  request::SamplingParams sampling = rpc::FromWire(request.sampling());
  request::StopParams stop = rpc::FromWire(request.stop());
  const int32_t room = model.context_tokens - static_cast<int32_t>(prompt.size());
  input.max_tokens_given = request.stop().has_max_tokens();
  const bool searched = request.has_beam_search();
  if (!input.max_tokens_given) stop.max_tokens = searched ? std::min(room, kBeamTokensMax) : room;
  if (IsPromptOnly(request)) stop.max_tokens = 1;
  RETURN_IF_ERROR(request::Validate(sampling, model.vocab_size));
  RETURN_IF_ERROR(request::Validate(stop, model.vocab_size));
  if (stop.max_tokens > room)
    return ContextExceeded(
        absl::StrCat("max_tokens: ", stop.max_tokens, " after a prompt of ", prompt.size(),
                     " tokens, expected at most ", room, ": the context of ", model.served_name(),
                     " is ", model.context_tokens, " tokens"),
        absl::StrCat(prompt.size(), " ", stop.max_tokens, " ", model.context_tokens));
  if (searched && stop.max_tokens > kBeamTokensMax)
    return absl::InvalidArgumentError(absl::StrCat("max_tokens: ", stop.max_tokens,
                                                   ", expected at most ", kBeamTokensMax,
                                                   " with beam_search"));
  if (!request.sampling().has_seed()) sampling.seed = random.Next();
  input.sampling = std::move(sampling);
  input.stop = std::move(stop);
  input.id = RequestId(request.request_id().empty()
                           ? absl::StrFormat("r-%016x%016x", random.Next(), random.Next())
                           : request.request_id());
  input.prompt = std::move(prompt);
  input.eos_token_ids = eos_token_ids;
  input.cache_salt = request.cache_salt();
  if (request.has_guided()) {
    input.guided = rpc::FromWire(request.guided());
    if (!input.guided->any())
      return absl::InvalidArgumentError(
          "guided: no constraint is given, expected json_schema, json_object, regex, choice or "
          "grammar");
    // Before the constraint waits for the compiler, or is remembered as one that does not compile.
    const absl::Status small = guided::CheckSize(*input.guided);
    if (!small.ok()) return absl::InvalidArgumentError(absl::StrCat("guided: ", small.message()));
  }
  input.priority = request.priority();
  if (request.has_deadline_s()) input.answer_deadline = absl::Seconds(request.deadline_s());
  SetAnswers(request, input);
  return input;
}

}  // namespace tandem::router
