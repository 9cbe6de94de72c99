#include "common/rpc/peer_identity.h"

#include <arpa/inet.h>
#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace tandem::rpc {
namespace {

constexpr absl::string_view kScheme = "spiffe://";
constexpr absl::string_view kMark = "/tandem/";
constexpr PeerRole kRoles[] = {PeerRole::kRouter, PeerRole::kPrefill, PeerRole::kDecode,
                               PeerRole::kCli};
// Peers choose what their certificates say: messages quote only so much of it.
constexpr size_t kQuotedMax = 256;

std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::Utf8SafeCHexEscape(text.substr(0, kQuotedMax)), "'");
}

std::optional<PeerIdentity> Parse(absl::string_view uri) {
  if (!absl::ConsumePrefix(&uri, kScheme)) return std::nullopt;
  const size_t mark = uri.rfind(kMark);
  if (mark == absl::string_view::npos || mark == 0) return std::nullopt;
  const absl::string_view name = uri.substr(mark + kMark.size());
  for (const PeerRole role : kRoles) {
    if (name == RoleName(role)) return PeerIdentity{std::string(uri.substr(0, mark)), role};
  }
  return std::nullopt;
}

std::string Roles(const PeerRule& rule) {
  return absl::StrJoin(rule.roles, " or ", [](std::string* out, PeerRole role) {
    absl::StrAppend(out, RoleName(role));
  });
}

// Calls `take`(kind, value) for each alternative name; GEN_URI and the like say of which kind.
template <typename Take>
void ForEachName(X509* certificate, const Take& take) {
  auto* names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names); ++i) {
    int kind = 0;
    const void* name = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &kind);
    if (kind != GEN_URI && kind != GEN_DNS && kind != GEN_IPADD) continue;
    const auto* value = static_cast<const ASN1_STRING*>(name);
    take(kind, absl::string_view(reinterpret_cast<const char*>(ASN1_STRING_get0_data(value)),
                                 static_cast<size_t>(ASN1_STRING_length(value))));
  }
  GENERAL_NAMES_free(names);
}

std::vector<PeerIdentity> IdentitiesIn(const std::vector<std::string>& uris) {
  std::vector<PeerIdentity> found;
  for (const std::string& uri : uris) {
    if (const auto identity = Parse(uri)) found.push_back(*identity);
  }
  return found;
}

}  // namespace

absl::string_view RoleName(PeerRole role) {
  switch (role) {
    case PeerRole::kRouter:
      return "router";
    case PeerRole::kPrefill:
      return "prefill";
    case PeerRole::kDecode:
      return "decode";
    case PeerRole::kCli:
      return "cli";
  }
  return "";
}

std::string PeerIdentity::uri() const {
  return absl::StrCat(kScheme, fleet, kMark, RoleName(role));
}

absl::StatusOr<PeerIdentity> IdentityOf(const std::vector<std::string>& uris) {
  const std::vector<PeerIdentity> found = IdentitiesIn(uris);
  if (found.size() == 1) return found[0];
  return absl::PermissionDeniedError(
      absl::StrCat("the certificate names ", found.empty() ? "no role" : "several roles",
                   ": expected one URI spiffe://FLEET/tandem/ROLE, found ",
                   uris.empty() ? "no URI" : Quoted(absl::StrJoin(uris, " "))));
}

absl::Status CheckPeer(const PeerRule& rule, const std::vector<std::string>& uris) {
  if (rule.unnamed && IdentitiesIn(uris).empty()) return absl::OkStatus();
  const absl::StatusOr<PeerIdentity> found = IdentityOf(uris);
  if (!found.ok()) {
    return absl::PermissionDeniedError(
        absl::StrCat("expected the role ", Roles(rule), ": ", found.status().message()));
  }
  if (std::find(rule.roles.begin(), rule.roles.end(), found->role) == rule.roles.end()) {
    return absl::PermissionDeniedError(
        absl::StrCat("expected the role ", Roles(rule), ", found the role ", RoleName(found->role),
                     " in the certificate of ", Quoted(found->uri())));
  }
  if (!rule.fleet.empty() && found->fleet != rule.fleet) {
    return absl::PermissionDeniedError(absl::StrCat("expected the fleet ", Quoted(rule.fleet),
                                                    ", found the fleet ", Quoted(found->fleet),
                                                    " in the certificate"));
  }
  return absl::OkStatus();
}

std::vector<std::string> UrisOf(X509* certificate) {
  std::vector<std::string> uris;
  ForEachName(certificate, [&uris](int kind, absl::string_view value) {
    if (kind == GEN_URI) uris.emplace_back(value);
  });
  return uris;
}

std::vector<std::string> HostsOf(X509* certificate) {
  std::vector<std::string> hosts;
  ForEachName(certificate, [&hosts](int kind, absl::string_view value) {
    char text[INET6_ADDRSTRLEN] = {};
    if (kind == GEN_DNS) hosts.emplace_back(value);
    if (kind != GEN_IPADD || (value.size() != 4 && value.size() != 16)) return;
    inet_ntop(value.size() == 4 ? AF_INET : AF_INET6, value.data(), text, sizeof(text));
    hosts.emplace_back(text);
  });
  return hosts;
}

std::vector<std::string> UrisOf(const grpc::AuthContext& context) {
  std::vector<std::string> uris;
  for (const grpc::string_ref& uri : context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME))
    uris.emplace_back(uri.data(), uri.size());
  return uris;
}

}  // namespace tandem::rpc
