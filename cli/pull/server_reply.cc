#include "cli/pull/server_reply.h"

#include <curl/curl.h>

#include <algorithm>
#include <ctime>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace tandem::cli {
namespace {

constexpr size_t kValidatorBytesMax = 256;

// "bytes FROM-TO/TOTAL". Another form leaves the reply as it is.
void ReadContentRange(absl::string_view value, ServerReply& reply) {
  if (!absl::ConsumePrefix(&value, "bytes ")) return;
  const size_t dash = value.find('-'), slash = value.find('/');
  if (dash == absl::string_view::npos || slash == absl::string_view::npos) return;
  int64_t from = 0, total = 0;
  if (absl::SimpleAtoi(value.substr(0, dash), &from)) reply.range_from = from;
  if (absl::SimpleAtoi(value.substr(slash + 1), &total)) reply.file_bytes = total;
}

}  // namespace

void ServerReply::ReadHeader(absl::string_view line) {
  const size_t colon = line.find(':');
  if (colon == absl::string_view::npos) return;
  const std::string name = absl::AsciiStrToLower(line.substr(0, colon));
  const absl::string_view value = absl::StripAsciiWhitespace(line.substr(colon + 1));
  const bool sendable = value.size() <= kValidatorBytesMax &&
                        std::all_of(value.begin(), value.end(), absl::ascii_isprint);
  const std::string validator(sendable ? value : "");
  int64_t number = 0;
  const bool is_number = absl::SimpleAtoi(value, &number) && number >= 0;
  if (name == "etag") version.etag = validator;
  if (name == "last-modified") version.last_modified = validator;
  if (name == "date") date = validator;
  if (name == "content-length" && is_number) length = number;
  if (name == "content-range") ReadContentRange(value, *this);
  if (name == "retry-after" && is_number) retry_after = absl::Seconds(number);
}

// A date tells versions apart only if the file was older than the answer (RFC 9110, 8.8.2.2).
FileVersion ServerReply::StrongVersion() const {
  FileVersion strong = version;
  const time_t modified = curl_getdate(version.last_modified.c_str(), nullptr);
  const time_t sent = curl_getdate(date.c_str(), nullptr);
  if (modified < 0 || sent < 0 || modified >= sent) strong.last_modified.clear();
  return strong;
}

bool IsStrong(absl::string_view etag) { return !etag.empty() && !absl::StartsWith(etag, "W/"); }

}  // namespace tandem::cli
