// The endpoints of /v1/responses: answering, keeping, and giving back what was kept
// (docs/adr/0032-kept-responses.md). Contract: router/front_end/http/http_api.h.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "router/front_end/http/http_api.h"
#include "router/front_end/http/openai_error.h"
#include "router/front_end/http/response_request.h"
#include "router/front_end/long_work.h"

namespace tandem::router {
namespace {

constexpr absl::string_view kPrefix = "/v1/responses/";

bool HasTrue(absl::string_view query, absl::string_view name) {
  for (const absl::string_view member : absl::StrSplit(query, '&')) {
    if (member == absl::StrCat(name, "=true")) return true;
  }
  return false;
}

absl::Status NotKept(absl::string_view field, absl::string_view id) {
  return absl::NotFoundError(
      absl::StrCat(field, ": ", ShownInQuotes(id),
                   " is not kept by this router: it was never here, was deleted, was ",
                   "dropped to make room, or another router answered it"));
}

}  // namespace

absl::StatusOr<Json> HttpApi::ItemsOf(Call& call, const std::string& id) {
  const std::shared_ptr<const ResponseStore::Kept> kept = responses_.Find(OwnerOf(call), id);
  if (kept == nullptr) return NotKept("previous_response_id", id);
  const size_t bytes = kept->object.size() + kept->items.size();
  if (!call.on_long_work && bytes > LongWork::kShortBytesMax) {
    call.kept_bytes = bytes;
    return absl::UnavailableError("the conversation is to be read on the thread for long work");
  }
  ASSIGN_OR_RETURN(Json conversation, ParseJsonBody(absl::StrCat("{\"items\":", kept->items, "}")));
  ASSIGN_OR_RETURN(Json object, ParseJsonBody(kept->object));
  Json& items = conversation["items"];
  for (Json& item : object["output"]) items.push_back(std::move(item));
  return std::move(items);
}

absl::StatusOr<ApiRequest> HttpApi::ResponseOf(Call& call) {
  ASSIGN_OR_RETURN(const Json body, ParseBody(call));
  ResponseReading reading = {AsksForStrict(call, body), responses_.on(), nullptr};
  if (responses_.on()) {
    reading.find = [&](const std::string& id) { return ItemsOf(call, id); };
  }
  return ReadResponse(body, deps_.session.assets, call.now, reading);
}

void HttpApi::Responses(Call& call) {
  absl::StatusOr<ApiRequest> api = ResponseOf(call);
  if (call.kept_bytes > 0 && !call.on_long_work) {
    return RunOnLongWork(call, call.request.body.size() + call.kept_bytes, &HttpApi::Responses);
  }
  if (!api.ok()) return Reply(call, ErrorReply(api.status()));
  if (api->response->store) {
    api->response->keep = [this, owner = OwnerOf(call)](const std::string& id, std::string object,
                                                        std::string items) {
      responses_.Keep(owner, id, {std::move(object), std::move(items)});
    };
  }
  api->response->PackSettings();
  Generate(call, *std::move(api), "resp_");
}

// How many tokens the prompt of such a request has.
void HttpApi::InputTokens(Call& call) {
  absl::StatusOr<ApiRequest> api = ResponseOf(call);
  if (call.kept_bytes > 0 && !call.on_long_work) {
    return RunOnLongWork(call, call.request.body.size() + call.kept_bytes, &HttpApi::InputTokens);
  }
  absl::Status status = api.ok() ? CheckServes(api->model) : api.status();
  if (status.ok()) status = FitPrompts(call, *api);
  if (!status.ok()) return Reply(call, ErrorReply(status));
  const Json counted = {{"object", "response.input_tokens"},
                        {"input_tokens", api->requests[0].tokens().ids_size()}};
  Reply(call, {.body = JsonText(counted)});
}

void HttpApi::KeptResponse(Call& call) {
  const std::string id(absl::StripPrefix(call.request.path, kPrefix));
  if (call.request.method == "DELETE") {
    if (!responses_.Erase(OwnerOf(call), id)) {
      return Reply(call, ErrorReply(NotKept("response_id", id)));
    }
    const Json deleted = {{"id", id}, {"object", "response"}, {"deleted", true}};
    return Reply(call, {.body = JsonText(deleted)});
  }
  if (HasTrue(call.request.query, "stream")) {
    return Reply(call,
                 ErrorReply(absl::UnimplementedError(
                     "stream: true, expected false: a kept response cannot be streamed again")));
  }
  const std::shared_ptr<const ResponseStore::Kept> kept = responses_.Find(OwnerOf(call), id);
  if (kept == nullptr) return Reply(call, ErrorReply(NotKept("response_id", id)));
  Reply(call, {.body = kept->object});
}

// What is kept has ended.
void HttpApi::CancelResponse(Call& call) {
  const std::string id(absl::StripSuffix(absl::StripPrefix(call.request.path, kPrefix), "/cancel"));
  if (responses_.Find(OwnerOf(call), id) == nullptr) {
    return Reply(call, ErrorReply(NotKept("response_id", id)));
  }
  Reply(call, ErrorReply(400, absl::StrCat("response_id: ", ShownInQuotes(id),
                                           " has ended; only responses made in the background ",
                                           "can be cancelled, and these are not served")));
}

}  // namespace tandem::router
