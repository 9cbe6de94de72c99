#include "router/front_end/http/request_host.h"

#include <arpa/inet.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/shown_text.h"

namespace tandem::router {
namespace {

// The host of "[scheme://]host[:port]", in lower case; an IPv6 address without brackets.
std::string HostOf(absl::string_view authority) {
  if (const size_t scheme = authority.find("://"); scheme != absl::string_view::npos)
    authority.remove_prefix(scheme + 3);
  if (absl::ConsumePrefix(&authority, "["))
    return absl::AsciiStrToLower(authority.substr(0, authority.find(']')));
  // A name with a dot at its end is the same name.
  return absl::AsciiStrToLower(absl::StripSuffix(authority.substr(0, authority.find(':')), "."));
}

bool IsAddress(const std::string& host) {
  in6_addr parsed;
  return inet_pton(AF_INET, host.c_str(), &parsed) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &parsed) == 1;
}

// Whether no site of the internet can have the name: one label, or below a domain that is kept for
// local names.
bool IsLocalName(const std::string& host) {
  for (const char* domain : {".localhost", ".local", ".internal", ".home.arpa", ".test", ".lan"}) {
    if (absl::EndsWith(host, domain)) return true;
  }
  return !absl::StrContains(host, '.');
}

}  // namespace

bool IsLoopback(absl::string_view address) {
  const std::string host = HostOf(address);
  in_addr parsed;
  if (inet_pton(AF_INET, host.c_str(), &parsed) == 1) return ntohl(parsed.s_addr) >> 24 == 127;
  return host == "localhost" || host == "::1";
}

absl::Status CheckHost(const HttpRequest& request, bool loopback,
                       const std::vector<std::string>& allowed_origins) {
  const std::string host = HostOf(request.Header("host"));
  if (IsAddress(host) || IsLocalName(host)) return absl::OkStatus();
  const absl::string_view origin = request.Header("origin");
  // A page may keep its browser from saying more than "null".
  const bool of_its_page = origin == "null" || HostOf(origin) == host;
  if (!loopback && !of_its_page) return absl::OkStatus();
  for (const std::string& allowed : allowed_origins) {
    if (allowed == "*" || absl::EqualsIgnoreCase(allowed, origin) || HostOf(allowed) == host)
      return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat("host: ", Shown(host),
                   ", expected an address, a local name or the host of one of --allowed-origins: "
                   "this router asks for no API key"));
}

}  // namespace tandem::router
