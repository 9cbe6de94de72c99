#include "common/rpc/join_proof.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/keyed_tag.h"
#include "common/runtime/random.h"

namespace tandem::rpc {
namespace {

constexpr char kPurpose[] = "join";
constexpr char kWelcomePurpose[] = "welcome";
constexpr size_t kChallengeBytes = 16;

std::string Proven(absl::string_view challenge, const v1::Registration& bare) {
  return absl::StrCat(challenge, bare.SerializeAsString());
}

// `join_proof` covers the challenge and the nonce.
std::string Proven(absl::string_view join_proof, const v1::Welcome& bare) {
  return absl::StrCat(join_proof, bare.SerializeAsString());
}

}  // namespace

std::string NewChallenge() { return SecretBytes(kChallengeBytes); }

void ProveJoin(absl::string_view secret, absl::string_view challenge,
               v1::Registration& registration) {
  registration.clear_proof();
  registration.set_proof(KeyedTag(secret, kPurpose, Proven(challenge, registration)));
}

absl::Status CheckJoinProof(absl::string_view secret, absl::string_view challenge,
                            const v1::Registration& registration) {
  v1::Registration bare = registration;
  bare.clear_proof();
  if (IsKeyedTag(registration.proof(), secret, kPurpose, Proven(challenge, bare))) {
    return absl::OkStatus();
  }
  return absl::UnauthenticatedError(
      absl::StrCat("node '", absl::Utf8SafeCHexEscape(registration.node_id().substr(0, 128)),
                   "' does not hold this fleet's secret (fleet-secret-file): its proof has ",
                   registration.proof().size(), " bytes, expected ", kKeyedTagBytes,
                   " made with the router's secret"));
}

void ProveWelcome(absl::string_view secret, absl::string_view join_proof, v1::Welcome& welcome) {
  welcome.clear_proof();
  welcome.set_proof(KeyedTag(secret, kWelcomePurpose, Proven(join_proof, welcome)));
}

absl::Status CheckWelcomeProof(absl::string_view secret, absl::string_view join_proof,
                               const v1::Welcome& welcome) {
  v1::Welcome bare = welcome;
  bare.clear_proof();
  if (IsKeyedTag(welcome.proof(), secret, kWelcomePurpose, Proven(join_proof, bare))) {
    return absl::OkStatus();
  }
  return absl::UnauthenticatedError(
      absl::StrCat("router '", absl::Utf8SafeCHexEscape(welcome.router_id().substr(0, 128)),
                   "' does not prove this fleet's secret (fleet-secret-file): its proof has ",
                   welcome.proof().size(), " bytes, expected ", kKeyedTagBytes,
                   " made with the node's secret; routers of earlier releases send none"));
}

}  // namespace tandem::rpc
