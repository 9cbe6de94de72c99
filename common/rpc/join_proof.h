// Proof that a node and a router hold the fleet's secret, without sending the secret. The router
// draws a challenge for each stream; the node answers with a keyed tag over the challenge and its
// registration, which has a nonce of the node's; the router answers that with a keyed tag over the
// node's tag and its welcome. A tag overheard on one stream is useless on another. The node proves
// first, because a router's port takes calls from anyone, who could then try secrets on its tag
// (docs/adr/0050-roles-are-in-certificates.md).
// Thread safety: pure functions, but NewChallenge draws random bytes.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::rpc {

// The key of the challenge in the initial metadata of a router's stream.
inline constexpr char kChallengeKey[] = "tandem-challenge-bin";

// A challenge, or a nonce: random bytes that the peer cannot predict.
std::string NewChallenge();
// Sets registration.proof to the tag.
void ProveJoin(absl::string_view secret, absl::string_view challenge,
               v1::Registration& registration);
// Errors: kUnauthenticated, which names the node, when the proof is missing or wrong.
absl::Status CheckJoinProof(absl::string_view secret, absl::string_view challenge,
                            const v1::Registration& registration);
// Sets welcome.proof to the tag that answers a registration whose proof was `join_proof`.
void ProveWelcome(absl::string_view secret, absl::string_view join_proof, v1::Welcome& welcome);
// Errors: kUnauthenticated, which names the router, when the proof is missing or wrong.
absl::Status CheckWelcomeProof(absl::string_view secret, absl::string_view join_proof,
                               const v1::Welcome& welcome);

}  // namespace tandem::rpc
