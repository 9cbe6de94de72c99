// OpenAI's /v1/completions and /v1/chat/completions bodies, with vLLM's extra parameters, as
// requests of ours. Everything that has a meaning here is mapped; a parameter that would change the
// answer and is not served is refused; fields nobody knows are ignored unless the client asks to be
// strict. Ranges of sampling parameters are checked where all front ends' are
// (router/front_end/request_validation.h). Thread safety: pure functions.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/front_end/http/json_body.h"
#include "router/front_end/http/json_fields.h"
#include "router/front_end/model_assets.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

struct ResponseParts;  // router/front_end/http/response_request.h

enum class ApiKind { kCompletion, kChat, kResponse };
// How an answer's text becomes tool calls.
enum class ToolMode {
  kNone,      // it does not
  kAuto,      // <tool_call>{…}</tool_call> sections are calls
  kNamed,     // all of it is one call's arguments
  kRequired,  // a JSON list of calls
};

struct ApiRequest {
  ApiKind kind = ApiKind::kCompletion;
  std::vector<v1::GenerateRequest> requests;  // one a prompt, in order
  size_t prompts = 0;  // how many there were, once `requests` have gone their way
  std::string model;   // as the client named it
  int32_t n = 1;       // choices a prompt
  // Only so many of a prompt's last tokens are its prompt; -1: as many as the context holds.
  std::optional<int32_t> truncate_prompt_tokens;
  bool stream = false;
  bool include_usage = false;     // a last chunk with the usage
  bool continuous_usage = false;  // the usage so far in every chunk
  bool echo = false;
  std::optional<int32_t> logprobs;  // top ones beside the chosen token's
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // "token_id:17" for a token's text in logprobs
  bool timing = false;         // a `timing` block with the answer
  ToolMode tool_mode = ToolMode::kNone;
  std::string tool_name;       // kNamed
  bool parallel_calls = true;  // else only the first of an answer's calls is given
  // kResponse: what only that API has. Shared by copies of a request.
  std::shared_ptr<ResponseParts> response;
};

// kInvalidArgument and kUnimplemented name the field: "top_p: …". `strict` refuses unknown fields.
absl::StatusOr<ApiRequest> ReadCompletion(const Json& body, bool strict);
// Renders the conversation as well; the prompt comes out as token ids.
absl::StatusOr<ApiRequest> ReadChat(const Json& body, const ModelAssets& assets, absl::Time now,
                                    bool strict);

// Cuts the prompts where truncate_prompt_tokens is given; they are token ids then. kInvalidArgument
// when it is more than the model's context.
absl::Status TruncatePrompts(const ModelAssets& assets, ApiRequest& api);

// ---- parts of the above

// What both endpoints share, into `request` and `api`.
void ReadSampling(Fields& fields, ApiRequest& api, v1::GenerateRequest& request);
// guided_*, structured_outputs and response_format.
void ReadGuided(Fields& fields, v1::GenerateRequest& request);
// A conversation's messages, tools and template parameters as the prompt's text.
absl::StatusOr<std::string> RenderMessages(Fields& fields, const ModelAssets& assets,
                                           absl::Time now, bool with_tools);

}  // namespace tandem::router
