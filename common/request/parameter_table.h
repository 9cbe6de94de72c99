// The sampling and stop parameters, each described once.
//
// A row of the table says what a parameter is called in each API, which values it takes, what it
// does, and which member of SamplingParams or StopParams holds it. Everything else loops over the
// rows: range checks (Validate), the fields of HTTP requests, the fields of batch files, the flags
// of `tandem generate` and `tandem chat`, and docs/PARAMETERS.md. What a row cannot say is the
// parameter's field on the wire; common/rpc/wire_fields.h pairs the two, because this folder knows
// no protobuf.
//
// To add a parameter: the proto field, the member, a row here, a row in wire_fields.h, and
// `tandem parameter-docs > docs/PARAMETERS.md`. docs/EXTENDING.md describes the steps.
//
// Order: range checks run in the order of the rows and report the first fault; flags are listed in
// that order, too.
// Thread safety: constants.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/request/sampling_params.h"

namespace tandem::request {

// The interfaces that take parameters by name; a set of them is their sum. gRPC takes all.
enum Api : unsigned {
  kCompletions = 1,  // POST /v1/completions
  kChat = 2,         // POST /v1/chat/completions
  kResponses = 4,    // POST /v1/responses
  kBatch = 8,        // a line of `tandem generate --batch`
  kOllama = 16,      // `options` of POST /api/chat and /api/generate
  kMessages = 32,    // POST /v1/messages
};
inline constexpr unsigned kAllHttp = kCompletions | kChat | kResponses | kOllama | kMessages;
inline constexpr unsigned kEverywhere = kAllHttp | kBatch;

// Numbers from `low` to `high`, both included unless `low_excluded`. NaN and infinities are in no
// range.
struct Range {
  static constexpr double kUnbounded = 1e30;

  double low = -kUnbounded;
  double high = kUnbounded;
  bool low_excluded = false;

  bool Contains(double value) const {
    return (low_excluded ? value > low : value >= low) && value <= high;
  }
};

// Bounds of a list: its entries, and the bytes or tokens of each entry.
struct ListBounds {
  size_t entries_max = std::numeric_limits<size_t>::max();
  size_t entry_size_min = 0;
  size_t entry_size_max = std::numeric_limits<size_t>::max();
};

// Another name of a parameter, in the APIs of `apis`. Where a request gives both names, this one
// wins.
struct Alias {
  absl::string_view name;  // empty: no alias
  unsigned apis = 0;
  // The API's own code reads this field, because its form or range differs from the table's.
  bool own_reader = false;
};

// The flag of a parameter. Its name is the parameter's with '-' for '_'; its range is the
// parameter's.
struct Flag {
  absl::string_view help;  // empty: the parameter has no flag
  absl::string_view unit;
  std::optional<int64_t> initial;  // the flag's default, where it is not the parameter's
  std::optional<int64_t> unset;    // a value below the range: the request leaves the field out
};

struct Description {
  absl::string_view name;       // also the proto field's
  unsigned apis = kEverywhere;  // where `name` is read
  std::array<Alias, 5> aliases = {};
  Range range = {};                // of a number, or of each bias
  ListBounds list = {};            // of texts and token sequences
  absl::string_view expected;      // in messages, where the range does not say it all
  absl::string_view default_text;  // in the document, where the member's default does not say it
  bool beam_search =
      false;               // a beam search heeds it; it refuses the others unless they are neutral
  absl::string_view help;  // what it does
  Flag flag = {};
};

// A row: the member that holds the value, and its description. The member's type is the
// parameter's.
template <typename Params, typename T>
struct Parameter {
  using params_type = Params;
  using value_type = T;

  T Params::*member;
  Description about;
};
template <typename Params, typename T>
Parameter(T Params::*, Description) -> Parameter<Params, T>;

inline constexpr std::tuple kParameters = {
    Parameter{&StopParams::max_tokens,
              {.name = "max_tokens",
               .apis = kCompletions | kChat | kBatch | kMessages,
               .aliases = {Alias{"max_completion_tokens", kChat | kBatch},
                           Alias{"max_output_tokens", kResponses, true},
                           Alias{"num_predict", kOllama, true},
                           Alias{"max_new_tokens", kCompletions | kChat},
                           Alias{"n_predict", kCompletions | kChat, true}},
               .range = {.low = 1},
               .default_text = "what the context holds; 16 in completions",
               .beam_search = true,
               .help = "Longest answer, in tokens; -1 and -2 in num_predict and n_predict: what "
                       "the context holds.",
               .flag = {.help = "Longest answer; 0 = up to the model's context.",
                        .unit = "tokens",
                        .initial = 256,
                        .unset = 0}}},
    Parameter{&SamplingParams::temperature,
              {.name = "temperature",
               .range = {.low = 0},
               .beam_search = true,  // the router refuses it unless absent or 0
               .help = "Divides the logits; 0 takes the likeliest token (greedy).",
               .flag = {.help = "0 = greedy."}}},
    Parameter{&SamplingParams::top_k,
              {.name = "top_k",
               .range = {.low = 0},
               .expected = ">= 1, or 0 or -1 for off",
               .help = "Samples among this many likeliest tokens; 0 or -1 = all.",
               .flag = {.help = "Sample among this many likeliest tokens; 0 = all."}}},
    Parameter{&SamplingParams::top_p,
              {.name = "top_p",
               .range = {.low = 0, .high = 1},
               .help = "Samples among the likeliest tokens of this total probability; 0 takes "
                       "the likeliest one.",
               .flag = {.help = "Sample among the likeliest tokens of this total "
                                "probability."}}},
    Parameter{&SamplingParams::min_p,
              {.name = "min_p",
               .range = {.low = 0, .high = 1},
               .help = "Samples among tokens at least this likely relative to the "
                       "likeliest.",
               .flag = {.help = "Sample among tokens at least this likely relative to "
                                "the likeliest."}}},
    Parameter{&SamplingParams::repetition_penalty,
              {.name = "repetition_penalty",
               .aliases = {Alias{"repeat_penalty", kAllHttp}},
               .range = {.low = 0, .low_excluded = true},
               .help = "Divides positive logits of tokens in the prompt or the answer, "
                       "multiplies negative ones.",
               .flag = {.help = "1 = none."}}},
    Parameter{&SamplingParams::presence_penalty,
              {.name = "presence_penalty",
               .range = {.low = -kPenaltyMax, .high = kPenaltyMax},
               .help = "Subtracted from the logits of tokens in the answer so far."}},
    Parameter{&SamplingParams::frequency_penalty,
              {.name = "frequency_penalty",
               .range = {.low = -kPenaltyMax, .high = kPenaltyMax},
               .help = "Subtracted from a token's logit for each time it is in the "
                       "answer so far."}},
    Parameter{&SamplingParams::seed,
              {.name = "seed",
               .default_text = "drawn by the router",
               .beam_search = true,
               .help = "Equal seeds give equal answers. Any 64 bits, with or without a "
                       "sign; -1 in JSON: the router draws one.",
               .flag = {.help = "Equal seeds give equal answers; -1 = the router draws "
                                "one.",
                        .initial = -1,
                        .unset = -1}}},
    Parameter{&SamplingParams::logit_bias,
              {.name = "logit_bias",
               .range = {.low = -kLogitBiasMax, .high = kLogitBiasMax},
               .help = "Added to the logits of the tokens named."}},
    Parameter{&SamplingParams::allowed_token_ids,
              {.name = "allowed_token_ids",
               .default_text = "all",
               .help = "The only tokens that may be generated."}},
    Parameter{&SamplingParams::bad_words,
              {.name = "bad_words",
               .list = {kBadWordsMax, 1, kBadWordTokensMax},
               .help = "What must not be generated: texts over HTTP, in batches and in "
                       "GenerateRequest.bad_words; sequences of token ids here."}},
    Parameter{&SamplingParams::logprobs,
              {.name = "logprobs",
               .apis = kCompletions,
               .aliases = {Alias{"top_logprobs", kChat | kResponses, true}},
               .range = {.low = 0, .high = kLogprobsMax},
               .default_text = "none",
               .beam_search = true,
               .help = "Log-probabilities of the chosen token and of this many likeliest "
                       "ones. Chats ask with \"logprobs\": true, responses with "
                       "\"include\"."}},
    Parameter{&StopParams::min_tokens,
              {.name = "min_tokens",
               .aliases = {Alias{"min_new_tokens", kAllHttp}},
               .range = {.low = 0},
               .help = "Nothing stops the answer before this many tokens; at most "
                       "max_tokens."}},
    Parameter{&StopParams::stop,
              {.name = "stop",
               .apis = kEverywhere & ~kMessages,
               .aliases = {Alias{"stop_sequences", kMessages}},
               .list = {kStopStringsMax, 1, kStopStringBytesMax},
               .help = "Texts that end the answer. A single text need not be a list over "
                       "HTTP.",
               .flag = {.help = "Texts that end the answer."}}},
    Parameter{
        &StopParams::stop_token_ids,
        {.name = "stop_token_ids", .beam_search = true, .help = "Tokens that end the answer."}},
    Parameter{&StopParams::ignore_eos,
              {.name = "ignore_eos",
               .beam_search = true,
               .help = "Goes on after the model ends its answer.",
               .flag = {.help = "Go on after the model ends its answer."}}},
    Parameter{&StopParams::include_stop_str_in_output,
              {.name = "include_stop_str_in_output",
               .beam_search = true,
               .help = "Keeps the stop text that ended the answer at its end."}}};

// Calls `visit` with every row, in order. `visit` is a generic lambda: rows differ in type.
template <typename Visitor>
void ForEachParameter(Visitor&& visit) {
  std::apply([&](const auto&... rows) { (visit(rows), ...); }, kParameters);
}

// A table of all rows in Markdown: docs/PARAMETERS.md.
std::string ParametersMarkdown();

}  // namespace tandem::request
