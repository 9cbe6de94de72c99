// Proof that a node holds the fleet's secret, without sending the secret: the router draws a
// challenge for each stream, and the node answers with a keyed tag over the challenge and its
// registration. A tag overheard on one stream is useless on another.
// Thread safety: pure functions, but NewChallenge draws random bytes.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::rpc {

// The key of the challenge in the initial metadata of a router's stream.
inline constexpr char kChallengeKey[] = "tandem-challenge-bin";

// A challenge of random bytes that no node can predict.
std::string NewChallenge();
// Sets registration.proof to the tag.
void ProveJoin(absl::string_view secret, absl::string_view challenge,
               v1::Registration& registration);
// Errors: kUnauthenticated, which names the node, when the proof is missing or wrong.
absl::Status CheckJoinProof(absl::string_view secret, absl::string_view challenge,
                            const v1::Registration& registration);

}  // namespace tandem::rpc
