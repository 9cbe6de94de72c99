#include "router/front_end/http/request_headers.h"

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "router/front_end/http/api_dialect.h"
#include "router/front_end/http/json_fields.h"

namespace tandem::router {
namespace {

constexpr size_t kRequestIdBytesKept = 128;

}  // namespace

std::string GivenRequestId(const HttpRequest& request) {
  const absl::string_view id = request.Header("x-request-id");
  if (id.empty() || id.size() > kRequestIdBytesKept) return "";
  for (const char c : id) {
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c))) return "";
  }
  return std::string(id);
}

bool IsJson(const HttpRequest& request) {
  const absl::string_view content_type = request.Header("content-type");
  const absl::string_view type =
      absl::StripAsciiWhitespace(content_type.substr(0, content_type.find(';')));
  if (absl::EqualsIgnoreCase(type, "application/json")) return true;
  const bool unasked =
      type.empty() || absl::EqualsIgnoreCase(type, "application/x-www-form-urlencoded");
  return unasked && request.Header("origin").empty();
}

std::string Authorization(const HttpRequest& request) {
  const absl::string_view key = request.Header("x-api-key");
  const absl::string_view authorization = request.Header("authorization");
  if (!authorization.empty() || key.empty()) return std::string(authorization);
  return absl::StrCat("Bearer ", key);
}

absl::Status NameKeyHeader(const absl::Status& status, const HttpRequest& request) {
  if (!request.Header("authorization").empty()) return status;
  if (!request.Header("x-api-key").empty()) {
    return RenameField(status, {{"authorization", "x-api-key"}});
  }
  if (!absl::IsUnauthenticated(status) || DialectOf(request) != Dialect::kAnthropic) return status;
  return absl::UnauthenticatedError("x-api-key: missing, expected an API key");
}

absl::Status CheckOneHost(const HttpRequest& request) {
  const auto hosts =
      absl::c_count_if(request.headers, [](const auto& header) { return header.first == "host"; });
  if (hosts == 1 || (hosts == 0 && !request.chunked_allowed)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("host: ", hosts == 0 ? "missing" : "given twice", ", expected one such header"));
}

}  // namespace tandem::router
