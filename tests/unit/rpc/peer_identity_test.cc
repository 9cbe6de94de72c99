// Goal: exactly one URI of a certificate says which role of which fleet it is for; rules take whom
// they name, refuse all others, and say what they expected and found.
#include "common/rpc/peer_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Refusal(const PeerRule& rule, const std::vector<std::string>& uris) {
  const absl::Status status = CheckPeer(rule, uris);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  return std::string(status.message());
}

TEST(PeerIdentity, IsWhatTheUriSays) {
  for (const PeerRole role :
       {PeerRole::kRouter, PeerRole::kPrefill, PeerRole::kDecode, PeerRole::kCli}) {
    for (const std::string fleet : {"tandem", "corp.example/ns/a", "a/tandem/b"}) {
      const std::string uri = absl::StrCat("spiffe://", fleet, "/tandem/", RoleName(role));
      // Beside names that other software reads.
      ASSERT_OK_AND_ASSIGN(const PeerIdentity identity,
                           IdentityOf({"https://corp.example", uri, "spiffe://corp.example/x"}));
      EXPECT_EQ(identity.fleet, fleet);
      EXPECT_EQ(identity.role, role);
      EXPECT_EQ(identity.uri(), uri);
    }
  }
}

TEST(PeerIdentity, IsExactlyOne) {
  const std::vector<std::vector<std::string>> none = {
      {},
      {""},
      {"spiffe://tandem/router"},
      {"spiffe:///tandem/router"},
      {"spiffe://a/tandem/routers"},
      {"spiffe://a/tandem/Router"},
      {"spiffe://a/tandem/router/"},
      {"spiffe://a/tandem/"},
      {"http://a/tandem/router"},
      {" spiffe://a/tandem/router"},
      {std::string("spiffe://a/tandem/router\0", 25)}};
  for (const auto& uris : none) {
    EXPECT_THAT(std::string(IdentityOf(uris).status().message()), HasSubstr("names no role"));
  }
  const auto two = IdentityOf({"spiffe://a/tandem/router", "spiffe://a/tandem/decode"});
  EXPECT_THAT(std::string(two.status().message()), HasSubstr("several roles"));
  // The maker of the certificate chose its length.
  const auto endless = IdentityOf({std::string(100'000, '\x01')});
  EXPECT_LT(endless.status().message().size(), 2000u);
}

TEST(PeerIdentity, RulesNameWhatTheyExpectAndFind) {
  const PeerRule nodes = {.fleet = "a", .roles = {PeerRole::kPrefill, PeerRole::kDecode}};
  EXPECT_OK(CheckPeer(nodes, {"spiffe://a/tandem/prefill"}));
  EXPECT_OK(CheckPeer(nodes, {"spiffe://a/tandem/decode"}));
  EXPECT_THAT(
      Refusal(nodes, {"spiffe://a/tandem/router"}),
      AllOf(HasSubstr("expected the role prefill or decode"), HasSubstr("found the role router")));
  EXPECT_THAT(Refusal(nodes, {"spiffe://a/b/tandem/decode"}),
              AllOf(HasSubstr("expected the fleet 'a'"), HasSubstr("found the fleet 'a/b'")));
  EXPECT_THAT(Refusal(nodes, {}),
              AllOf(HasSubstr("expected the role prefill or decode"), HasSubstr("no URI")));
  EXPECT_THAT(Refusal(nodes, {"spiffe://a/tandem/decode", "spiffe://a/tandem/prefill"}),
              HasSubstr("several roles"));
  const PeerRule clients = {.roles = {PeerRole::kCli}, .unnamed = true};
  EXPECT_OK(CheckPeer(clients, {}));
  EXPECT_OK(CheckPeer(clients, {"https://corp.example/someone"}));
  EXPECT_OK(CheckPeer(clients, {"spiffe://any/tandem/cli"}));
  EXPECT_THAT(Refusal(clients, {"spiffe://a/tandem/decode"}), HasSubstr("found the role decode"));
  EXPECT_THAT(Refusal(clients, {"spiffe://a/tandem/cli", "spiffe://a/tandem/decode"}),
              HasSubstr("several roles"));
}

}  // namespace
}  // namespace tandem::rpc
