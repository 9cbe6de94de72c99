// Goal: no bytes on a connection, however they are split, crash the parser that finds requests in
// them, or the code that turns their contents into this project's requests.
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/runtime/random.h"
#include "router/front_end/http/anthropic_request.h"
#include "router/front_end/http/chat_request.h"
#include "router/front_end/http/completion_request.h"
#include "router/front_end/http/ollama_request.h"
#include "router/front_end/http/request_reader.h"
#include "router/front_end/http/response_request.h"
#include "router/front_end/http/stream_resumption.h"
#include "router/front_end/trace_parent.h"

namespace {

using tandem::router::ApiRequest;
using tandem::router::HttpRequest;
using tandem::router::Json;
using tandem::router::ModelAssets;
using tandem::router::RequestReader;

// Errors are fine; only crashes, leaks and hangs are findings.
void Map(absl::string_view body) {
  static const std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  for (const bool strict : {false, true}) {
    const absl::StatusOr<Json> json =
        tandem::router::ParseJsonBody(body, {.packs_prompts = !strict});
    if (!json.ok()) return;
    const absl::StatusOr<ApiRequest> completion = tandem::router::ReadCompletion(*json, strict);
    const absl::StatusOr<ApiRequest> chat =
        tandem::router::ReadChat(*json, *assets, absl::UnixEpoch(), strict);
    // What was kept before is a list, of items that may be any.
    const auto find = [&](const std::string&) -> absl::StatusOr<Json> {
      Json items = json->value("input", Json::array());
      return items.is_array() ? std::move(items) : Json::array();
    };
    const absl::StatusOr<ApiRequest> response =
        tandem::router::ReadResponse(*json, *assets, absl::UnixEpoch(), {strict, true, find});
    const absl::StatusOr<ApiRequest> message =
        tandem::router::ReadAnthropic(*json, *assets, {absl::UnixEpoch(), strict, !strict});
    const absl::StatusOr<ApiRequest> ollama_chat =
        tandem::router::ReadOllamaChat(*json, *assets, {absl::UnixEpoch(), strict});
    const absl::StatusOr<ApiRequest> ollama_prompt =
        tandem::router::ReadOllamaGenerate(*json, *assets, {absl::UnixEpoch(), strict});
    [[maybe_unused]] const auto load = tandem::router::OllamaLoadReason(*json);
    [[maybe_unused]] const bool any = completion.ok() || chat.ok() || response.ok() ||
                                      message.ok() || ollama_chat.ok() || ollama_prompt.ok();
  }
}

// A stream that the headers of a request ask to continue.
void Continue(const HttpRequest& head) {
  static const std::unique_ptr<tandem::Random> random = tandem::NewSeededRandom(1);
  ApiRequest api;
  api.stream = true;
  api.requests.emplace_back();
  std::string id = "answer";
  [[maybe_unused]] const absl::Status status =
      tandem::router::MakeResumable(head, "f", *random, id, api);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  Map(bytes);
  [[maybe_unused]] const std::string trace = tandem::router::TraceIdOf(bytes);
  HttpRequest last;
  last.headers = {{"last-event-id", std::string(bytes)}};
  Continue(last);
  // The first byte chooses how the rest is split.
  const size_t piece = size == 0 ? 1 : 1 + data[0] % 64;
  RequestReader reader({.header_bytes_max = 4096, .body_bytes_max = 65536});
  for (size_t at = 0; at < size; at += piece) {
    reader.Append(bytes.substr(at, piece));
    while (true) {
      RequestReader::Result next = reader.Next();
      reader.TakeContinue();
      const auto* request = std::get_if<HttpRequest>(&next);
      if (request == nullptr) break;
      Map(request->body);
      Continue(*request);
    }
  }
  return 0;
}
