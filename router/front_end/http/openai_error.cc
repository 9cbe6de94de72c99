#include "router/front_end/http/openai_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "common/rpc/error_details.h"
#include "router/front_end/json_body.h"

namespace tandem::router {
namespace {

constexpr int64_t kRetryAfterDefault = 1;

// Messages about a field begin with its name: "messages[0].role: …".
Json ParamOf(absl::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == absl::string_view::npos || colon == 0) return nullptr;
  for (const char c : message.substr(0, colon)) {
    const bool name = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '.' || c == '[' || c == ']' || c == '-';
    if (!name) return nullptr;
  }
  return std::string(message.substr(0, colon));
}

std::string TypeOf(int http_status) {
  if (http_status == 401) return "authentication_error";
  if (http_status == 429) return "rate_limit_error";
  if (http_status == 408 || http_status == 504) return "timeout_error";
  return http_status >= 500 ? "server_error" : "invalid_request_error";
}

Json CodeOf(int http_status, const absl::Status& status) {
  if (status.code() == absl::StatusCode::kUnimplemented) return "unsupported_parameter";
  for (const char* bound :
       {"the context of ", "the model's context is ", "the largest decode node holds "}) {
    if (absl::StrContains(status.message(), bound)) return "context_length_exceeded";
  }
  if (http_status == 401) return "invalid_api_key";
  if (http_status == 404 && absl::StartsWith(status.message(), "model: ")) {
    return "model_not_found";
  }
  if (http_status == 404 && absl::StartsWith(status.message(), "previous_response_id: ")) {
    return "previous_response_not_found";
  }
  if (http_status == 429) return "rate_limit_exceeded";
  return nullptr;
}

absl::StatusCode CodeForHttp(int http_status) {
  switch (http_status) {
    case 401:
      return absl::StatusCode::kUnauthenticated;
    case 404:
      return absl::StatusCode::kNotFound;
    case 503:
      return absl::StatusCode::kUnavailable;
    default:
      return http_status >= 500 ? absl::StatusCode::kInternal : absl::StatusCode::kInvalidArgument;
  }
}

HttpReply Reply(int http_status, const absl::Status& status) {
  HttpReply reply;
  reply.status = http_status;
  reply.error = std::string(status.message());
  reply.body = absl::StrCat("{\"error\":", ErrorJson(http_status, status), "}");
  if (http_status == 429 || http_status == 503) {
    const absl::optional<absl::Cord> seconds = status.GetPayload(rpc::kRetryAfterPayload);
    reply.headers.emplace_back("retry-after", seconds.has_value()
                                                  ? std::string(*seconds)
                                                  : absl::StrCat(kRetryAfterDefault));
  }
  if (http_status == 401) reply.headers.emplace_back("www-authenticate", "Bearer");
  return reply;
}

}  // namespace

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kFailedPrecondition:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
      return 499;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

std::string ErrorJson(int http_status, const absl::Status& status) {
  return JsonText(Json{{"message", std::string(status.message())},
                       {"type", TypeOf(http_status)},
                       {"param", ParamOf(status.message())},
                       {"code", CodeOf(http_status, status)}});
}

HttpReply ErrorReply(const absl::Status& status) { return Reply(HttpStatusOf(status), status); }

HttpReply ErrorReply(int http_status, const std::string& message) {
  return Reply(http_status, absl::Status(CodeForHttp(http_status), message));
}

}  // namespace tandem::router
