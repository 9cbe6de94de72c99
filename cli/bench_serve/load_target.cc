#include "cli/bench_serve/load_target.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/config/value.h"

namespace tandem::cli {

std::string TargetAddress::text() const {
  return absl::StrCat(grpc  ? "grpc://"
                      : tls ? "https://"
                            : "http://",
                      absl::StrContains(host, ':') ? absl::StrCat("[", host, "]") : host, ":", port,
                      path);
}

absl::StatusOr<TargetAddress> ParseTarget(absl::string_view text) {
  const auto refuse = [text](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--target: '", text, "' ", why,
        ", expected http://HOST:PORT, https://HOST:PORT, grpc://HOST:PORT or HOST:PORT"));
  };
  TargetAddress address;
  absl::string_view rest = text;
  address.grpc = absl::ConsumePrefix(&rest, "grpc://");
  address.tls = !address.grpc && absl::ConsumePrefix(&rest, "https://");
  if (!address.grpc && !address.tls) absl::ConsumePrefix(&rest, "http://");
  const size_t slash = rest.find('/');
  absl::string_view path = slash == absl::string_view::npos ? "" : rest.substr(slash);
  const std::string authority = config::CompleteAddress(std::string(rest.substr(0, slash)));
  path = absl::StripSuffix(absl::StripSuffix(absl::StripSuffix(path, "/"), "/v1"), "/");
  if (address.grpc && !path.empty()) return refuse("has a path");
  const size_t colon = authority.rfind(':');
  if (colon == std::string::npos) return refuse("has no port");
  absl::string_view host = absl::string_view(authority).substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) host = absl::StripSuffix(host, "]");
  int32_t port = 0;
  if (!absl::SimpleAtoi(authority.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return refuse("has a port that is no number from 1 to 65535");
  }
  if (host.empty()) return refuse("has no host");
  for (const char c : path) {
    if (c <= ' ' || c == 127) return refuse("has a path with spaces");
  }
  address.host = std::string(host);
  address.port = absl::StrCat(port);
  address.path = std::string(path);
  return address;
}

}  // namespace tandem::cli
