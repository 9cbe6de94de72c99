// A request of the HTTP API after its JSON body was read: what to generate, as requests like those
// of gRPC, and how to write the answer. Each endpoint has its own reader
// (completion_request.h, chat_request.h, response_request.h, ollama_request.h, anthropic_request.h)
// and writer (answer_format.h).
//
// All readers follow one rule for fields. A field that has a meaning here is mapped. A field that
// would change the answer and is not served is refused. Other fields are ignored, unless the client
// asks for strict reading; then they are refused.
// Thread safety: plain values. Owner: the answer that a request leads to.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "router/front_end/http/fleet_room.h"
#include "router/front_end/http/json_fields.h"
#include "router/front_end/http/stream_resumption.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

struct ResponseParts;  // router/front_end/http/response_request.h

enum class ApiKind { kCompletion, kChat, kResponse, kOllamaGenerate, kOllamaChat, kMessage };

// How an answer's text becomes tool calls.
enum class ToolMode {
  kNone,      // never
  kAuto,      // <tool_call>{…}</tool_call> sections are calls
  kNamed,     // all of it is one call's arguments
  kRequired,  // a JSON list of calls
};

struct ApiRequest {
  ApiKind kind = ApiKind::kCompletion;
  std::vector<v1::GenerateRequest> requests;  // one for each prompt, in order
  size_t prompts = 0;  // how many there were; set when `requests` are moved to the router
  std::string model;   // as the client named it
  // Where the client's body calls a value otherwise than the router, which refuses it later on.
  FieldNames field_names;
  int32_t n = 1;  // choices for each prompt
  // Each prompt is cut to this many of its last tokens; -1: as many as the context holds beside the
  // answer's limit. See truncate_prompts.h.
  std::optional<int32_t> truncate_prompt_tokens;
  bool leaves_answer = false;  // with -1: beside a share of the context where there is no limit
  // What the prompt or the answer's limit was made to fit; in another room it may be another
  // request.
  std::optional<FleetRoom> fitted_to;
  bool chat_turn = false;  // the prompt is a chat, and the answer a message of its own
  bool stream = false;
  bool include_usage = false;     // a last chunk with the usage
  bool continuous_usage = false;  // the usage so far in every chunk
  bool echo = false;
  bool keep_special_tokens = false;  // in the text
  std::optional<int32_t> logprobs;   // top ones beside the chosen token's
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // "token_id:17" for a token's text in logprobs
  bool timing = false;         // a `timing` block with the answer
  bool tells_tier = false;     // the service tier that served it, where the API has a place for it
  // Of a stream that can be continued, what each event's id begins with, and of one that is being
  // continued, what the client has already of each answer; see stream_resumption.h.
  std::string event_id_begin;
  bool resumes = false;
  std::vector<StreamPosition> received;
  ToolMode tool_mode = ToolMode::kNone;
  std::string tool_name;       // kNamed
  bool parallel_calls = true;  // false: the client gets only the first of an answer's calls
  // kResponse: what only that API has. Shared because copies of a request have the same parts.
  std::shared_ptr<ResponseParts> response;
};

}  // namespace tandem::router
